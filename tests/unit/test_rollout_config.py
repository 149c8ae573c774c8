"""How a rollout is configured, and what a command line changes of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.errors import AppError
from deployments.loading import load_config
from deployments.rollout_config import RolloutConfig
from hybrid_serve.durations import format_duration, parse_duration
from hybrid_serve.rollout.wire import RolloutOptions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("30s", 30), ("1h", 3600), ("1h30m", 5400), ("1.5 h", 5400), ("500ms", 0.5), (45, 45), ("0", 0),
     (2.5, 2.5), ("2 min", 120), ("1d", 86400)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 fortnights", "-5m", "5m 3", "1e3", "nan", True, None, "5m,"])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_durations_are_shown_in_the_largest_unit_that_they_fill() -> None:
    assert [format_duration(one) for one in (0.25, 45, 60, 90, 7200)] == ["0.25 s", "45 s", "1 min", "1.5 min", "2 h"]


def test_an_empty_section_is_the_planners_default() -> None:
    assert RolloutConfig().options() == RolloutOptions()


def test_every_field_reaches_the_planner(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    section = {
        "canary": "10%",
        "bake_s": "2m",
        "max_unavailable": "20 %",
        "drain_timeout_s": "30s",
        "start_timeout_s": "1h",
        "min_requests": 7,
        "gates": {"error_rate": 0.5, "ttft_ratio": 3, "tpot_ratio": 4, "acceptance_ratio": 0.25},
    }
    file.write_text(yaml.safe_dump({"rollout": section}))
    options = load_config(file).rollout.options(allow_outage=True)
    assert (options.canary, options.bake_s, options.max_unavailable) == ("10%", 120, "20%")
    assert (options.drain_s, options.start_s, options.allow_outage) == (30, 3600, True)
    gates = options.gates
    assert (gates.error_rate, gates.ttft_ratio, gates.tpot_ratio, gates.acceptance_ratio) == (0.5, 3, 4, 0.25)
    assert gates.min_requests == 7


def test_a_command_line_is_over_the_configuration() -> None:
    options = RolloutConfig(canary="3", bake_s=5).options(bake="1m", max_unavailable=2)
    assert (options.canary, options.bake_s, options.max_unavailable) == ("3", 60, "2")


def test_a_wrong_command_line_is_told_all_at_once() -> None:
    with pytest.raises(AppError) as caught:
        RolloutConfig().options(canary="some", bake="soon", max_unavailable="0")
    text = str(caught.value)
    assert "canary: 'some' is no number of replicas" in text and "bake_s: 'soon' is not a duration" in text
    assert "max_unavailable: with 0 no replica could ever be changed" in text


@pytest.mark.parametrize("canary", ["-1", "0%", "101%", "1.5", "", True, "10 percent"])
def test_what_is_no_number_of_replicas_is_refused(tmp_path: Path, canary: Any) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(yaml.safe_dump({"rollout": {"canary": canary}}))
    with pytest.raises(AppError, match=r"rollout\.canary: .*is no number of replicas"):
        load_config(file)


def test_its_fields_are_overridden_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text("{}")
    config = load_config(file, {"bake_s": "1m", "rollout.gates.ttft_ratio": "4", "rollout.canary": "25%"})
    assert (config.rollout.bake_s, config.rollout.gates.ttft_ratio, config.rollout.canary) == (60, 4, "25%")
