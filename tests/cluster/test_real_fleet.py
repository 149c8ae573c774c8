"""A fleet of three unlike pools with real engines, run by the benchmark that the documentation names."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LONGEST_S = 1500
MAX_QUEUE_S = 4
REQUESTS = 240

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LONGEST_S + 100)]

ROOT = Path(__file__).parents[2]
PHASES = ("plans", "shares", "planner", "node", "overload")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the benchmark wrote. It runs a Ray of its own: the tests' has one node."""
    folder = tmp_path_factory.mktemp("fleet")
    command = [
        sys.executable, "-m", "benchmarks.fleet", "--phases", ",".join(PHASES), "--output", str(folder / "fleet.json"),
        "--requests", str(REQUESTS), "--flood", "500", "--rate", "2", f"limits.max_queue_s={MAX_QUEUE_S}",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it then stops its nodes
            process.wait(timeout=60)
    assert process.returncode == 0, log.read_text()[-6000:]
    record: dict[str, Any] = json.loads((folder / "fleet.json").read_text())
    return record


def test_each_replica_runs_its_own_plan_exactly(record: dict[str, Any]) -> None:
    (h20,), (h200,), (l40s,) = (record["plans"]["pools"][pool] for pool in ("h20", "h200", "l40s"))
    for replica in (h20, h200, l40s):
        assert replica["differences"] == []
        assert replica["predicted_kv_tokens"] == replica["actual_kv_tokens"] > 0
        assert replica["predicted_num_blocks"] == replica["actual_num_blocks"]
    assert l40s["actual_num_blocks"] < h20["actual_num_blocks"] < h200["actual_num_blocks"]


def test_replicas_agree_where_they_must(record: dict[str, Any]) -> None:
    replicas = [replica for (replica,) in record["plans"]["pools"].values()]
    assert len({(r["max_model_len"], r["prefix_match_unit"], r["generation"]) for r in replicas}) == 1
    (agreement,) = record["plans"]["agreements"]
    assert agreement["max_model_len"] == replicas[0]["max_model_len"]


def test_requests_are_shared_by_free_capacity(record: dict[str, Any]) -> None:
    shares = record["shares"]
    assert shares["ends"] == {"done": REQUESTS}
    assert shares["worst_deviation"] <= 0.10, shares["pools"]


def test_above_capacity_there_is_only_503_with_retry_after_and_what_is_accepted_ends(record: dict[str, Any]) -> None:
    overload = record["overload"]
    assert set(overload["ends"]) == {"done", "refused"} and set(overload["statuses"]) == {"200", "503"}
    assert overload["ends"]["done"] >= 30
    # The wait for room, and then the prefill of as many requests as the fleet holds, on two cores.
    assert overload["first_content_p99_s"] <= MAX_QUEUE_S + 15


def test_a_killed_planner_costs_no_request_and_comes_back_with_the_same_plans(record: dict[str, Any]) -> None:
    killed = record["planner"]
    assert killed["lost"] == [] and killed["integrity"] == ""
    assert killed["planner_starts"] == 2
    assert len(killed["replicas_kept"]) == 3 and killed["plans_kept"]
    assert killed["whole_again_s"] < 30


def test_a_node_that_dies_costs_at_most_what_streams_on_it_and_is_replaced(record: dict[str, Any]) -> None:
    killed = record["node"]
    assert killed["lost_that_were_sent_after"] == 0
    assert len(killed["lost"]) <= killed["streaming_on_it"] + killed["sent_since_the_count"]
    assert {lost["end"] for lost in killed["lost"]} <= {"error event", "broken"}
    assert len(killed["replicas_kept"]) == 2 and killed["plans_kept"]
    assert killed["integrity"] == "" and killed["left_over_processes"] == []
