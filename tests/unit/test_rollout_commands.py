"""Commands that begin, watch, pause and take back a rollout, over a planner that answers what it was told to."""

import json
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from hybrid_serve.cli import main
from hybrid_serve.rollout.wire import GenerationOffer, RolloutOptions
from tests.planner_double import PlannerDouble, Script, raised_in_the_planner, rollout, rollouts, stand_in, step

DEMO_FLEET = str(Path(__file__).parents[2] / "configs" / "demo-fleet.yaml")
UNKNOWN = raised_in_the_planner(ValueError("app default is not known; known: none"))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_serve.rollout_watch.PERIOD_S", 0.0)


def planner_with(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> PlannerDouble:
    """One that knows no device and no generation yet, and begins what it is asked to."""
    usual = {"measured": {}, "generation": UNKNOWN, "begin": {"started": "rollout-2", "generation": 2}}
    return stand_in(monkeypatch, PlannerDouble(**usual | answers))


def to_the_end(*looks: dict[str, Any], end: str = "done", **values: Any) -> Script:
    return Script(*(rollouts(look) for look in looks), rollouts(last=rollout(end, **values)))


def test_a_rollout_is_begun_and_shown_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = rollout("canary", steps=[step("r1", "draining")]), rollout("baking", steps=[step("r1", "serving")])
    planner = planner_with(monkeypatch, rollouts=to_the_end(*looks))
    assert main(["rollout", DEMO_FLEET, "num_speculative_tokens=5", "--reason", "fewer drafts"]) == 0
    shown = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert shown[:3] == ["rollout-2, generation 1 -> 2, by ann@head", "canary", "  h20 r1: draining, generation 1"]
    assert "baking" in shown and shown[-1] == "done: generation 2 serves"
    ((offer, options, actor, reason),) = planner.calls("begin")
    assert isinstance(offer, GenerationOffer) and set(offer.pools) == {"h20", "h200", "l40s"}
    assert {pool.num_speculative_tokens for pool in offer.pools.values()} == {5}
    assert options == RolloutOptions() and "@" in actor and reason == "fewer drafts"


def test_the_command_line_is_over_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_with(monkeypatch, rollouts=to_the_end())
    options = ["--canary", "10%", "--bake", "2m", "--max-unavailable", "20%", "--allow-outage"]
    assert main(["rollout", DEMO_FLEET, "rollout.bake_s=1h", *options, "rollout.gates.ttft_ratio=3"]) == 0
    ((_, given, _, _),) = planner.calls("begin")
    assert (given.canary, given.bake_s, given.max_unavailable, given.allow_outage) == ("10%", 120.0, "20%", True)
    assert given.gates.ttft_ratio == 3.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rollout", DEMO_FLEET, "--canary", "some"], "canary: 'some' is no number of replicas"),
        (["rollout", DEMO_FLEET, "--bake", "soon"], "'soon' is not a duration"),
        (["rollout", DEMO_FLEET, "--max-unavailable", "0"], "give 1 or more"),
        (["rollout", DEMO_FLEET, "pools.h2.cost=1"], "pools.h2.cost: there is no such pool"),
        (["rollout", "/no/such.yaml"], "can't read the configuration /no/such.yaml"),
        (["rollout", DEMO_FLEET, "--serve-config", "f", "--bake", "5m"], "rollout.bake_s=5m"),
        (["rollout"], "give a configuration, or --attach"),
        (["rollout", DEMO_FLEET, "--attach"], "--attach begins nothing"),
    ],
)
def test_what_can_not_be_asked_for_is_told_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    planner = planner_with(monkeypatch)
    assert main(arguments) == 2
    assert told in capsys.readouterr().err and planner.asked == []


def test_a_pool_that_can_not_hold_it_is_refused_before_the_planner_is_asked_to_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = planner_with(monkeypatch)
    assert main(["rollout", DEMO_FLEET, "pools.l40s.kv_memory=1MiB"]) == 1
    told = capsys.readouterr().err
    assert "pool l40s: one request of 4,096 tokens needs" in told and "what to change" in told
    assert planner.calls("begin") == []


def test_what_the_planner_refuses_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    planner_with(monkeypatch, begin={"refused": "rollout-1 of default is active, baking"})
    assert main(["rollout", DEMO_FLEET]) == 1
    assert capsys.readouterr().err == "hybrid-serve rollout: rollout-1 of default is active, baking\n"
    assert main(["rollout", DEMO_FLEET, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["refused"] == "rollout-1 of default is active, baking"


def test_what_runs_already_is_not_rolled_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = planner_with(monkeypatch, begin={"unchanged": 7})
    assert main(["rollout", DEMO_FLEET]) == 0
    assert capsys.readouterr().out == "generation 7 is this already: nothing to do\n"
    assert planner.calls("rollouts") == []


def test_the_same_configuration_twice_shows_the_rollout_that_is_active(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, begin={"attached": "rollout-2"}, rollouts=to_the_end(rollout("rolling")))
    assert main(["rollout", DEMO_FLEET]) == 0
    assert capsys.readouterr().out.startswith("rollout-2 does this already\n")


@pytest.mark.parametrize(
    ("end", "why"), [("rolled back", "pool h20: TTFT: ..."), ("superseded", "Ray Serve deployed 3")]
)
def test_a_rollout_that_did_not_go_through_is_status_1_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str, why: str
) -> None:
    planner_with(monkeypatch, rollouts=to_the_end(rollout("baking"), end=end, failure=why))
    assert main(["rollout", DEMO_FLEET]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert end in last and why in last


def test_detached_from_the_start_it_is_only_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = planner_with(monkeypatch)
    assert main(["rollout", DEMO_FLEET, "--detach", "--app", "chat"]) == 0
    assert "hybrid-serve rollout --attach --app chat" in capsys.readouterr().out
    assert len(planner.calls("begin")) == 1 and planner.calls("rollouts") == []


def test_ctrl_c_leaves_the_rollout_alone_and_says_how_to_come_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = planner_with(monkeypatch, rollouts=Script(rollouts(rollout("baking")), KeyboardInterrupt()))
    assert main(["rollout", DEMO_FLEET]) == 3
    assert "hybrid-serve rollout --attach shows it, hybrid-serve rollback takes it back" in capsys.readouterr().err
    assert {call[0] for call in planner.asked} == {"measured", "generation", "begin", "rollouts"}, (
        "nothing is cancelled"
    )


def test_ctrl_c_while_it_is_begun_says_that_it_may_have_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, begin=KeyboardInterrupt())
    assert main(["rollout", DEMO_FLEET]) == 3
    assert "it may have begun: hybrid-serve rollout --attach shows it" in capsys.readouterr().err


def test_attaching_shows_the_active_rollout_and_begins_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = planner_with(monkeypatch, rollouts=to_the_end(rollout("baking"), rollout("rolling")))
    assert main(["rollout", "--attach"]) == 0
    assert "rolling, wave 1" in capsys.readouterr().out and planner.calls("begin") == []


def test_attaching_after_the_end_tells_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, rollouts=to_the_end(end="rolled back", failure="the drafter is corrupt"))
    assert main(["rollout", "--attach"]) == 1
    assert "the drafter is corrupt" in capsys.readouterr().out


def test_without_any_rollout_there_is_nothing_to_attach_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, rollouts=rollouts())
    assert main(["rollout", "--attach"]) == 2
    assert "no rollout of app default is known" in capsys.readouterr().err


def test_a_planner_that_dies_is_told_once_and_asked_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = ray.exceptions.GetTimeoutError("no answer")
    looks = [rollouts(rollout("baking")), silent, {}, rollouts(rollout("baking")), rollouts(last=rollout("done"))]
    planner_with(monkeypatch, rollouts=Script(*looks))
    assert main(["rollout", DEMO_FLEET]) == 0
    shown = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert len([line for line in shown if "did not answer" in line]) == 1
    back = shown.index("the planner answers again")
    assert back == shown.index("baking") + 2 and shown[-1] == "done: generation 2 serves"


def test_a_rollout_that_a_later_one_has_pushed_out_of_the_book_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = rollouts(last=rollout("done", name="rollout-3"))
    planner_with(monkeypatch, rollouts=Script(rollouts(rollout("baking")), later))
    assert main(["rollout", DEMO_FLEET]) == 1
    assert "rollout-2 is over" in capsys.readouterr().err


def test_for_machines_there_is_one_object_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = ray.exceptions.GetTimeoutError("no answer")
    looks = [rollouts(rollout("canary")), silent, rollouts(rollout("canary")), rollouts(last=rollout("done"))]
    planner_with(monkeypatch, rollouts=Script(*looks))
    assert main(["rollout", DEMO_FLEET, "--json"]) == 0
    captured = capsys.readouterr()
    begun, canary, died, back, end = map(json.loads, captured.out.splitlines())
    assert begun == {"app": "default", "started": "rollout-2", "generation": 2}
    assert canary["rollout"] == rollout("canary") and canary["changes"] and canary["app"] == "default"
    assert (died["planner"], back["planner"]) == ("silent", "answers")
    assert end["rollout"]["phase"] == "done" and captured.err == ""


def test_a_rollback_is_asked_for_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    back = {"name": "rollout-2", "kind": "rollback", "from": 3, "to": 1}
    answer = {"started": "rollout-2", "generation": 1}
    planner = planner_with(
        monkeypatch, rollback=answer, rollouts=to_the_end(rollout("rolling", **back), end="done", **back)
    )
    assert main(["rollback", "--to", "1", "--reason", "too slow"]) == 0
    ((app, to, actor, reason),) = planner.calls("rollback")
    assert (app, to, reason) == ("default", 1, "too slow") and "@" in actor
    assert capsys.readouterr().out.splitlines()[-1].endswith("done: generation 1 serves")


@pytest.mark.parametrize(("kind", "status"), [("rollout", 0), ("rollback", 1)])
def test_taking_an_active_rollout_back_succeeds_and_a_rollback_that_is_rolled_back_fails(
    monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    answer = {"started": "rollout-2", "generation": 1}
    looks = to_the_end(rollout("rolling back", kind=kind), end="rolled back", kind=kind)
    planner_with(monkeypatch, rollback=answer, rollouts=looks)
    assert main(["rollback"]) == status


def test_a_rollback_that_is_refused_names_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, rollback={"refused": "generation 9 is unknown; default has 1 (good), 2 (current)"})
    assert main(["rollback", "--to", "9"]) == 1
    assert "default has 1 (good), 2 (current)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "answer", "told"),
    [
        ("pause", {"paused": "rollout-2"}, "rollout-2 is paused: hybrid-serve resume goes on with it\n"),
        ("resume", {"resumed": "rollout-2"}, "rollout-2 goes on\n"),
        ("pause", {"unchanged": 2}, "it is paused already\n"),
        ("resume", {"unchanged": 2}, "it is not paused\n"),
    ],
)
def test_pausing_and_going_on_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, answer: dict[str, Any], told: str
) -> None:
    planner = planner_with(monkeypatch, **{command: answer})
    assert main([command]) == 0
    assert capsys.readouterr().out == told
    ((app, actor),) = planner.calls(command)
    assert app == "default" and "@" in actor
    assert main([command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_without_a_rollout_there_is_nothing_to_pause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    planner_with(monkeypatch, **{command: {"refused": "no rollout of default is active"}})
    assert main([command]) == 1
    assert capsys.readouterr().err == f"hybrid-serve {command}: no rollout of default is active\n"


def test_an_app_that_the_planner_does_not_know_is_told_with_those_it_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = raised_in_the_planner(ValueError("app chat is not known; known: default"))
    planner_with(monkeypatch, rollback=error, pause=error)
    for command in ("rollback", "pause"):
        assert main([command, "--app", "chat"]) == 2
        assert capsys.readouterr().err == f"hybrid-serve {command}: app chat is not known; known: default\n"


def test_a_planner_of_an_older_release_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, PlannerDouble())
    assert main(["pause"]) == 2
    assert "the planner that runs is of an older release of hybrid_serve than this command" in capsys.readouterr().err


def test_an_error_inside_the_planner_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner_with(monkeypatch, pause=raised_in_the_planner(KeyError("r1")))
    assert main(["pause"]) == 2
    assert capsys.readouterr().err == "hybrid-serve pause: the planner failed: KeyError('r1'). Its log says more\n"


def test_the_file_for_serve_deploy_says_what_is_wanted_and_begins_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planner = planner_with(monkeypatch)
    file = tmp_path / "serve.yaml"
    arguments = ["rollout", DEMO_FLEET, "num_speculative_tokens=5", "--serve-config", str(file)]
    assert main(arguments) == 0
    assert f"{file} is new: serve deploy {file} rolls generation" in capsys.readouterr().out
    assert planner.calls("begin") == []
    (app,) = yaml.safe_load(file.read_text())["applications"]
    assert app["args"] == {"config": DEMO_FLEET, "num_speculative_tokens": "5"}
    (ingress,) = app["deployments"]
    assert ingress["user_config"]["desired"]["config"]["engine"]["num_speculative_tokens"] == 5


def test_in_a_file_that_is_there_only_what_is_wanted_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planner_with(monkeypatch)
    file = tmp_path / "serve.yaml"
    file.write_text((Path(DEMO_FLEET).parents[1] / "deploy" / "serve.yaml").read_text())
    before = yaml.safe_load(file.read_text())
    arguments = ["rollout", DEMO_FLEET, "--serve-config", str(file), "--reason", "as tested"]
    assert main(arguments) == 2
    assert "of ours: fleet" in capsys.readouterr().err and yaml.safe_load(file.read_text()) == before
    assert main([*arguments, "--app", "fleet"]) == 0
    after = yaml.safe_load(file.read_text())
    (ingress,) = after["applications"][0].pop("deployments")
    assert after == before and ingress["user_config"]["desired"]["reason"] == "as tested"
    assert main([*arguments, "--app", "fleet"]) == 0
    assert len(yaml.safe_load(file.read_text())["applications"][0]["deployments"]) == 1, "twice is once"


def test_a_pool_that_can_not_hold_it_is_refused_before_a_file_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planner_with(monkeypatch)
    file = tmp_path / "serve.yaml"
    assert main(["rollout", DEMO_FLEET, "pools.l40s.kv_memory=1MiB", "--serve-config", str(file)]) == 1
    assert not file.exists()


@pytest.mark.parametrize("words", [["--no-such", "1"], ["--no-such=1"], ["--canary", "1", "twice"]])
def test_what_is_neither_option_nor_override_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    planner = planner_with(monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main(["rollout", DEMO_FLEET, *words])
    assert stopped.value.code == 2 and words[-1] in capsys.readouterr().err and planner.asked == []
