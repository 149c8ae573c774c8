"""`hybrid-serve status` without Ray: what the table says, and that it says what is missing."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hybrid_serve import status_command
from hybrid_serve.cli import main
from hybrid_serve.cluster_connection import NoFleetError
from hybrid_serve.negotiation.planner import Planner
from tests.fleets import RETRAINED, fleet_of, offer_of, problem, report_of
from tests.planner_double import rollouts, step

FLEET = fleet_of({"big": problem(80), "small": problem(6)})


async def a_planner() -> Planner:
    """One replica as planned, one that starts, one refused twice."""
    planner = Planner()
    big, small = offer_of(FLEET, "big", "seed#big#1"), offer_of(FLEET, "small", "seed#small#1")
    answer = await planner.negotiate(big)
    await planner.report(big, answer, report_of(answer), "i")
    await planner.negotiate(small)
    for _ in range(2):
        await planner.negotiate(replace(small, replica_id="seed#small#2", drafter_fingerprint=RETRAINED))
    return planner


async def shown(planner: Planner) -> dict[str, Any]:
    """What the command asks for."""
    return {**await planner.status(), "rollouts": await planner.rollouts(None)}


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_the_table_has_a_line_a_replica_with_predicted_and_actual() -> None:
    status = await shown(await a_planner())
    status["rollouts"] = rollouts(replicas=[step("seed#big#1", "serving", "big", 4)])
    lines = rows(status_command.table(status))[1:]
    (big, small) = (replica for replica in status["replicas"])
    tokens = f"{big['predicted_kv_tokens']:,}"
    groups = str(len(big["plan"]["groups"]))
    assert lines[0][:4] == ["model", "pool", "replica", "state"]
    figures = [big["plan_id"], tokens, "=", tokens, groups]
    expected = ["seed", "big", "seed#big#1", "running", *figures, "planner", "32,768"]
    assert lines[1] == [*expected, "4"]
    assert lines[2][-1] == "-" and lines[2][3] == "offered" and lines[2][6] == "-" and small["report"] is None


async def test_refusals_are_shown_with_their_reason_and_how_often() -> None:
    text = status_command.table(await shown(await a_planner()))
    (line,) = (line for line in text.splitlines() if line.startswith("refused"))
    assert line.startswith("refused 2 x, last 0 s ago: seed") and str(RETRAINED) in line and FLEET.generation in line


async def test_differences_notes_restarts_and_a_broken_book_are_said() -> None:
    planner = await a_planner()
    offer = offer_of(FLEET, "big", "seed#big#3")
    answer = await planner.negotiate(offer)
    await planner.report(offer, answer, replace(report_of(answer), num_blocks=7), "i")
    status = await shown(planner) | {"starts": 3, "integrity": "r1 filed under r2", "forgotten_for_space": 4}
    text = status_command.table(status)
    assert "mismatch" in text and "got 7" in text
    assert "planner: started 3 x (2 restarts)" in text
    assert "4 x one was dropped" in text
    assert "THE PLANNER'S BOOK IS NOT CONSISTENT: r1 filed under r2" in text


async def test_a_planner_without_replicas_is_said() -> None:
    text = status_command.table(await shown(Planner()))
    assert text.splitlines() == ["no replica is known to the planner", "planner: started 1 x (0 restarts)"]


async def test_json_is_what_the_planner_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = await shown(await a_planner())
    monkeypatch.setattr(status_command, "ask", lambda address: status)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(status))


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 0), ({"integrity": "r1 filed under r2"}, 1), ({"replicas": "mismatch"}, 1)]
)
async def test_the_exit_status_tells_whether_all_runs_as_planned(
    changes: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = await shown(await a_planner())
    if changes.get("replicas") == "mismatch":
        changes = {"replicas": [status["replicas"][0] | {"state": "mismatch", "differences": ["num_blocks: ..."]}]}
    monkeypatch.setattr(status_command, "ask", lambda address: status | changes)
    assert main(["status"]) == code
    assert "running" in capsys.readouterr().out or code


def test_without_ray_there_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_ray(address: str) -> dict[str, Any]:
        raise NoFleetError(f"no Ray at address {address}: give --address")

    monkeypatch.setattr(status_command, "ask", no_ray)
    assert main(["status", "--address", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == "hybrid-serve status: no Ray at address 127.0.0.1:1: give --address\n"


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1", "is not HOST:PORT"), ("here:x", "is not HOST:PORT")])
def test_an_address_that_is_none_is_said(address: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", address]) == 2
    assert why in capsys.readouterr().err
