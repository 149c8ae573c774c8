"""Commands that only ask: validate, diff, history, status, over a planner that answers what it was told to."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments.generation import Problems, offer_of
from deployments.loading import load_config
from hybrid_serve import cluster_connection
from hybrid_serve.cli import main
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer
from tests.planner_double import PlannerDouble, raised_in_the_planner, rollout, rollouts, stand_in, step

DEMO_FLEET = str(Path(__file__).parents[2] / "configs" / "demo-fleet.yaml")
POOLS = ("h20", "h200", "l40s")
GIB = 2**30


@pytest.fixture(scope="module")
def running() -> GenerationOffer:
    """What the demo fleet was deployed with."""
    offer = offer_of(load_config(DEMO_FLEET), "default")
    assert not isinstance(offer, Problems)
    return offer


def planner_of(monkeypatch: pytest.MonkeyPatch, offer: GenerationOffer, **answers: Any) -> PlannerDouble:
    """One whose current generation, number 4, is this; two replicas in pool h20, one in the others."""
    names = ("default#h20#a", "default#h20#b", "default#h200#a", "default#l40s#a")
    replicas = [step(name, "serving", name.split("#")[1], 4) for name in names]
    usual = {
        "measured": {pool: [DeviceFacts(kind="cpu", name="cpu", memory_bytes=16 * GIB)] for pool in POOLS},
        "generation": {
            "number": 4,
            "digest": offer.digest,
            "config": offer.config,
            "pools": {name: _figures(pool) for name, pool in offer.pools.items()},
        },
        "pool_config": lambda app, digest, pool: offer.pools[pool].config,
        "rollouts": rollouts(replicas=replicas, current=4),
    }
    return stand_in(monkeypatch, PlannerDouble(**usual | answers))


def _figures(pool: PoolOffer) -> dict[str, Any]:
    names = ("model", "plan_id", "kv_tokens", "concurrency", "num_speculative_tokens")
    return {name: getattr(pool, name) for name in names}


def test_what_the_fleet_holds_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner = planner_of(monkeypatch, running)
    assert main(["validate", DEMO_FLEET]) == 0
    told = capsys.readouterr().out
    assert told.startswith("devices of h20, h200, l40s: as their replicas measured them\n")
    assert told.endswith("it can go out\n") and "39,919" in told
    assert {call[0] for call in planner.asked} <= {"measured", "generation", "pool_config"}, "nothing is touched"


def test_all_problems_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner_of(monkeypatch, running)
    wrong = ("pools.l40s.kv_memory=1MiB", "pools.h20.vllm=0.1.0")
    assert main(["validate", DEMO_FLEET, *wrong]) == 1
    told = capsys.readouterr().out
    assert "refused, pool l40s: one request of 4,096 tokens needs" in told and "1,048,576" in told
    assert "refused, pool h20: vLLM 0.1.0 is not supported" in told and told.count("what to change") == 2
    assert told.endswith("2 problems: it can't go out\n") and "59,879" in told, "what h200 holds is shown beside"
    assert main(["validate", DEMO_FLEET, *wrong, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert {(*problem["pools"], problem["model"]) for problem in shown["problems"]} == {
        ("l40s", "demo"),
        ("h20", "demo"),
    }
    assert all(problem["reason"] and problem["remedy"] for problem in shown["problems"])
    assert shown["devices"] == {"h200": "measured"}


def test_the_measured_device_counts_and_where_several_differ_the_smallest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    sizes = [DeviceFacts(kind="cpu", name="cpu", memory_bytes=size * GIB) for size in (16, 8)]
    planner_of(monkeypatch, running, measured={"h20": sizes, "h200": [sizes[0]], "l40s": []})
    assert main(["validate", DEMO_FLEET, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    h20, h200, _ = shown["models"][0]["pools"]
    assert h20["device"]["memory_bytes"] == 8 * GIB and h200["device"]["memory_bytes"] == 16 * GIB
    assert shown["devices"] == {"h20": "measured", "h200": "measured", "l40s": "described"}
    assert main(["validate", DEMO_FLEET]) == 0
    assert "; devices of l40s: as the configuration describes them" in capsys.readouterr().out


def test_a_drafter_that_was_trained_in_place_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    def retrained(app: str, digest: str, pool: str) -> Any:
        config = running.pools[pool].config
        fleet = replace(config.fleet, drafter_fingerprint=replace(config.fleet.drafter_fingerprint, weights="0" * 16))
        return replace(config, fleet=fleet)

    planner_of(monkeypatch, running, pool_config=retrained)
    assert main(["validate", DEMO_FLEET]) == 1
    told = capsys.readouterr().out
    assert "refused, pools h20, h200, l40s: the drafter in" in told and "was changed in place" in told
    assert told.endswith("1 problem: it can't go out\n")


def test_described_devices_are_asked_for_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner = planner_of(monkeypatch, running)
    assert main(["validate", DEMO_FLEET, "--described"]) == 0
    assert capsys.readouterr().out.startswith("devices: as the configuration describes them; no cluster was asked\n")
    assert planner.asked == []


def test_without_a_cluster_it_says_that_devices_are_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_runs(address: str) -> str:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster_connection, "_reachable", none_runs)
    assert main(["validate", DEMO_FLEET]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("devices: as the configuration describes them, since there is no Ray at address")


def test_a_cluster_that_was_named_and_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", DEMO_FLEET, "--address", "127.0.0.1:1"]) == 2
    assert "no Ray at address 127.0.0.1:1: nothing listens there" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["validate", DEMO_FLEET]) == 2
    assert "nothing listens there" in capsys.readouterr().err


def test_a_planner_that_does_not_answer_is_no_reason_to_guess(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner_of(monkeypatch, running, measured=ray.exceptions.GetTimeoutError("no answer"))
    assert main(["validate", DEMO_FLEET]) == 2
    assert "the planner did not answer in time" in capsys.readouterr().err


def test_a_difference_has_its_fields_their_cost_and_the_replicas_that_restart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner = planner_of(monkeypatch, running)
    arguments = ["diff", DEMO_FLEET, "pools.h20.kv_memory=64MiB", "limits.retries=1", "pools.l40s.num_cpus=0.5"]
    planned = offer_of(load_config(DEMO_FLEET, {"pools.h20.kv_memory": "64MiB"}), "default")
    assert not isinstance(planned, Problems)
    smaller = planned.pools["h20"].kv_tokens
    assert smaller is not None and smaller < 39_919
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"generation 4 ({running.digest}) -> ")
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["limits.retries"] == ["limits.retries", "2", "1", "live"]
    assert rows["pools.h20.kv_memory"] == ["pools.h20.kv_memory", "100663296", "67108864", "replan"]
    assert rows["pools.l40s.num_cpus"] == ["pools.l40s.num_cpus", "1.0", "0.5", "replace"]
    assert rows["h20"][:5] == ["h20", "replan", "39,919", "->", f"{smaller:,}"]
    assert rows["h200"][:3] == ["h200", "live", "59,879"]
    ends = [line for line in lines if line.startswith(("h20: ", "h200: ", "l40s: "))]
    assert ends == [
        "h20: engines restart inside their replicas, each after its requests: default#h20#a, default#h20#b",
        "h200: none restarts",
        "l40s: Ray Serve replaces the replicas: default#l40s#a",
    ]
    assert {call[0] for call in planner.asked} <= {"measured", "generation", "pool_config", "rollouts"}
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cost"] == "replace" and shown["generation"] == 4
    h20 = shown["pools"][0]
    assert (h20["before"]["kv_tokens"], h20["after"]["kv_tokens"]) == (39_919, smaller)
    assert h20["before"]["concurrency"] > h20["after"]["concurrency"]
    assert h20["replicas"] == ["default#h20#a", "default#h20#b"]


def test_the_same_configuration_differs_in_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner_of(monkeypatch, running)
    assert main(["diff", DEMO_FLEET]) == 0
    assert capsys.readouterr().out == "generation 4 is this already: nothing would change\n"


def test_how_it_goes_out_is_no_new_generation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner_of(monkeypatch, running)
    assert main(["diff", DEMO_FLEET, "rollout.bake_s=1m"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("generation 4 is this already") and "rollout.bake_s" in told


def test_a_difference_that_can_not_be_is_refused_with_its_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    planner_of(monkeypatch, running)
    assert main(["diff", DEMO_FLEET, "pools.l40s.kv_memory=1MiB"]) == 1
    assert capsys.readouterr().out.startswith("refused, pool l40s: one request of 4,096 tokens needs")
    assert main(["diff", DEMO_FLEET, "pools.l40s.kv_memory=1MiB", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["pools"] == ["l40s"]


def test_an_app_that_the_planner_does_not_know_has_nothing_to_differ_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: GenerationOffer
) -> None:
    unknown = raised_in_the_planner(ValueError("app chat is not known; known: default"))
    planner_of(monkeypatch, running, generation=unknown)
    assert main(["diff", DEMO_FLEET, "--app", "chat"]) == 2
    assert capsys.readouterr().err == "hybrid-serve diff: app chat is not known; known: default\n"


@pytest.mark.parametrize("command", ["diff", "validate", "rollout"])
def test_a_token_that_lies_in_the_home_is_shown_though_the_configuration_is_read_first(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    program = (
        "import os, sys; from hybrid_serve import cluster_connection as c, cli\n"
        "def connected(address): raise c.NoFleetError(os.environ.get('RAY_AUTH_MODE'))\n"
        "c._connect = lambda address, namespace: connected(address)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    arguments = [sys.executable, "-c", program, command, DEMO_FLEET, "--address", "127.0.0.1:1"]
    told = subprocess.run(
        arguments, capture_output=True, text=True, env=environment | {"HOME": str(tmp_path)}, check=False, timeout=60
    )
    assert (told.returncode, told.stderr.splitlines()[-1]) == (2, f"hybrid-serve {command}: token")


EVENTS = [
    {
        "at": "2026-11-30T12:00:00.123+00:00",
        "app": "default",
        "rollout": "",
        "generation": 1,
        "actor": "Ray Serve",
        "event": "deployed by Ray Serve, without gates",
        "reason": "",
    },
    {
        "at": "2026-11-30T12:05:00.456+00:00",
        "app": "default",
        "rollout": "rollout-1",
        "generation": 2,
        "actor": "planner",
        "event": "serves",
        "reason": "after 12 s",
        "replica": "default#h20#a",
        "pool": "h20",
    },
]


def test_the_history_has_generations_and_events_with_time_actor_and_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = stand_in(monkeypatch, PlannerDouble(history=EVENTS, rollouts=rollouts(rollout("baking"))))
    assert main(["history"]) == 0
    generations, events = capsys.readouterr().out.split("\n\n")
    first, second = (line.split() for line in generations.splitlines()[1:])
    assert first == ["default", "1", "current", "2026-11-30", "11:00:00", "ann@head", f"{1:016x}"]
    assert second[2:4] == ["rolling", "out"]
    deployed, serves = events.splitlines()[1:]
    assert deployed.startswith("2026-11-30 12:00:00  default") and "deployed by Ray Serve, without gates" in deployed
    assert serves.split()[:5] == ["2026-11-30", "12:05:00", "default", "rollout-1", "2"]
    assert "default#h20#a serves" in serves and serves.split()[-4:] == ["planner", "after", "12", "s"]
    assert planner.calls("history") == [(None,)]


def test_the_history_of_an_app_that_was_deleted_says_what_was_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, PlannerDouble(history=[], rollouts=rollouts(deployed=False)))
    assert main(["history"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["default", "1", "was", "current"]


def test_the_history_of_one_app_is_plain_values_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = rollouts()
    planner = stand_in(monkeypatch, PlannerDouble(history=EVENTS, rollouts=known))
    assert main(["history", "--json", "--app", "default"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"events": EVENTS, "generations": {"default": known["default"]["generations"]}}
    assert planner.calls("history") == [("default",)]


def test_without_any_app_the_history_is_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, PlannerDouble(history=[], rollouts={}))
    assert main(["history"]) == 0
    assert capsys.readouterr().out == "no generation is known\n"


def test_the_status_begins_with_a_line_for_each_app(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"replicas": [], "refused": [], "starts": 1, "forgotten_for_space": 0, "integrity": ""}
    known = rollouts(rollout("baking"))
    stand_in(monkeypatch, PlannerDouble(status=status, rollouts=known))
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "app default: generation 1, rollout-2 to generation 2: baking",
        "no replica is known to the planner",
    ]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**status, "rollouts": known}
