"""`hybrid-serve fleet plan` as a user runs it: the plan of each pool, and nothing started."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.fleet import plan_model
from deployments.loading import load_config
from hybrid_serve.cli import main
from tests.unit.gpu_fleet import CONFIGS, gpu_fleet, pool_named

DEMO_FLEET = str(CONFIGS / "demo-fleet.yaml")


@pytest.fixture
def gpu_config(tmp_path: Path) -> Path:
    return written(tmp_path, gpu_fleet(tmp_path))


def written(folder: Path, values: dict[str, Any]) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["fleet", "plan", *arguments, "--json"])
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return status, model


def test_every_pool_has_its_own_plan_under_one_agreement(gpu_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, model = answer(capsys, str(gpu_config))
    assert (status, model["problems"]) == (0, [])
    h20, h200, l40s = model["pools"]
    assert [pool["accelerator"] for pool in model["pools"]] == ["H20", "H200", "L40S"]
    assert [pool["tensor_parallel_size"] for pool in model["pools"]] == [1, 1, 4]
    assert len({pool["plan_id"] for pool in model["pools"]}) == 2, "tensor parallelism changes the layout, memory not"
    assert l40s["kv_tokens"] != h20["kv_tokens"] < h200["kv_tokens"]
    for pool in (h20, h200):
        assert pool["kv_tokens"] > pool["stock_kv_tokens"]
        assert pool["concurrency_of_workload"] > pool["stock_concurrency_of_workload"]
    assert all(pool["kv_tokens"] >= model["agreement"]["max_model_len"] for pool in model["pools"])
    assert model["agreement"]["prefix_match_unit"] > 0
    for pool, cost in zip(model["pools"], (1.0, 2.5, 2.0), strict=True):
        assert pool["cost_per_million_kv_tokens"] == pytest.approx(cost * 1e6 / pool["kv_tokens"])


def test_it_shows_what_the_builder_plans(gpu_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = answer(capsys, str(gpu_config), "pools.h20.cost=3", "max_model_len=100000")
    (served,) = load_config(gpu_config, {"max_model_len": 100000}).served
    built = plan_model(served)
    assert (
        built.agreement is not None and built.agreement.max_model_len == shown["agreement"]["max_model_len"] == 100000
    )
    assert [pool.decision.plan.plan_id for pool in built.pools] == [pool["plan_id"] for pool in shown["pools"]]


def test_the_table_has_a_line_a_pool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "plan", DEMO_FLEET]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("demo: max_model_len 4,096 (what every pool holds), prefix_match_unit none")
    rows = [line.split() for line in lines if line.split() and line.split()[0] in ("h20", "h200", "l40s")]
    assert [row[1:3] for row in rows] == [["H20", "(cpu)"], ["H200", "(cpu)"], ["L40S", "(cpu)"]]
    assert len({len(line) for line in lines if "0.29.0" in line}) == 1, "columns stand below each other"


def test_without_costs_there_is_no_column_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = yaml.safe_load(Path(DEMO_FLEET).read_text())
    for pool in values["pools"]:
        del pool["cost"]
    file = written(tmp_path, values)
    assert main(["fleet", "plan", str(file)]) == 0
    assert "cost" not in capsys.readouterr().out
    _, model = answer(capsys, str(file))
    assert {pool["cost_per_million_kv_tokens"] for pool in model["pools"]} == {None}


def test_a_pool_that_can_not_is_refused_by_name_beside_the_plans_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = ("pools.l40s.kv_memory=1MiB", "pools.h20.vllm=0.1.0")
    status, model = answer(capsys, DEMO_FLEET, *wrong)
    assert status == 1 and [pool["name"] for pool in model["pools"]] == ["h200"]
    assert {tuple(problem["pools"]) for problem in model["problems"]} == {("l40s",), ("h20",)}
    assert main(["fleet", "plan", DEMO_FLEET, *wrong]) == 1
    told = capsys.readouterr().out
    assert "refused, pool l40s: one request of 4,096 tokens needs" in told
    assert "refused, pool h20: vLLM 0.1.0 is not supported" in told and "h200" in told


def test_where_no_pool_can_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fleet", "plan", DEMO_FLEET, "engine.num_speculative_tokens=99"]
    assert main(arguments) == 1
    told = capsys.readouterr().out
    assert told.startswith("demo: no pool can be deployed") and "pools h20, h200, l40s: num_speculative_tokens" in told


def test_an_estimate_and_a_release_that_was_not_checked_are_said(
    gpu_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_named(values := yaml.safe_load(gpu_config.read_text()), "h200")["vllm"] = "0.30.1"
    pool_named(values, "h20")["kv_memory"] = "20GiB"
    gpu_config.write_text(yaml.safe_dump(values))
    assert main(["fleet", "plan", str(gpu_config)]) == 0
    told = capsys.readouterr().out
    assert "KV memory of h200, l40s is an estimate" in told
    assert "vLLM 0.30.1 was not checked itself: it is planned as 0.29.0" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/no/such/file.yaml"], "can't read the configuration /no/such/file.yaml"),
        ([DEMO_FLEET, "pools.h2.cost=1"], "pools.h2.cost: there is no such pool"),
        ([DEMO_FLEET, "nonsense"], "'nonsense' is not key=value"),
    ],
)
def test_a_mistake_in_the_configuration_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["fleet", "plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == ""


def test_the_other_commands_do_without_ray() -> None:
    program = "import sys, hybrid_serve.cli; hybrid_serve.cli.parser(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
