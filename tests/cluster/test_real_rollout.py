"""Another K for a fleet of real engines, under load."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.known_requests import Answers, endless, figures, questions
from benchmarks.load import Load
from deployments.config import AppConfig
from tests.cluster.conftest import until
from tests.cluster.rolling import rolling

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[2] / "configs" / "demo-fleet.yaml"
POOLS = 2
REQUESTS_PER_S = 1.5


def config(num_speculative_tokens: int = 7) -> AppConfig:
    """The demo's first two pools, a replica each, on one node."""
    values = yaml.safe_load(CONFIG.read_text())
    values["engine"]["num_speculative_tokens"] = num_speculative_tokens
    values["pools"] = [
        {**pool, "label_selector": {}, "num_cpus": 1, "max_replicas": 1} for pool in values["pools"][:POOLS]
    ]
    # Two engines and their load share two cores: while one starts, the other answers late.
    values["limits"] = {"max_queue_s": 240}
    # And of some twenty questions, those that one generation is asked may be easier to draft for than the other's.
    gates = {"ttft_ratio": 50.0, "tpot_ratio": 50.0, "acceptance_ratio": 0.7}
    values["rollout"] = {"bake_s": 5, "min_requests": 5, "gates": gates}
    return AppConfig.model_validate(values)


def test_another_k_goes_out_under_load_and_every_request_is_answered_as_before(
    deployed: Callable[[AppConfig], Any],
) -> None:
    asked = questions(20, seed=5)
    with deployed(config()) as app:
        heard = Load(app.url, "demo")
        # One at a time: where two tokens are almost equally likely, the one that is taken may depend on the batch.
        asyncio.run(heard.closed_loop(asked, 1))
        answers = Answers(heard.outcomes)
        with rolling(app, config, endless(asked, seed=5), REQUESTS_PER_S) as fleet, fleet.watched() as watch:
            sent = len(fleet.load.outcomes)
            name = fleet.begin(num_speculative_tokens=5)
            last = watch.until_over(name, 500)
            after = fleet.settled()
            until(lambda: len(fleet.sent_since(sent)) > 15, seconds=120)
        assert (last["name"], last["phase"], last["failure"]) == (name, "done", "")
        (current,) = [each for each in after["generations"] if each["number"] == after["current"]]
        assert {pool["num_speculative_tokens"] for pool in current["pools"].values()} == {5}
        assert len(after["replicas"]) == POOLS
        found = figures(fleet.load.outcomes, answers)
        assert (found["failed"], found["wrong_answers"]) == (0, 0), found
