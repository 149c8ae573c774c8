"""What a watcher is told of a rollout: each change once, in words."""

from typing import Any

import pytest

from hybrid_serve.rollout_lines import Changes, app_line, end_words
from tests.planner_double import gate, rollout, rollouts, step


def told(*looks: dict[str, Any]) -> list[list[str]]:
    """What is told of each look, one after another."""
    changes = Changes()
    return [changes.of(look) for look in looks]


def test_an_app_that_was_deleted_is_told_so() -> None:
    (of_default,) = rollouts(last=rollout("app deleted"), deployed=False).values()
    assert app_line("default", of_default) == "app default: not deployed any more, was at generation 1"
    assert end_words(rollout("app deleted", failure="Ray Serve has no app default any more")) == (
        "app deleted: Ray Serve has no app default any more"
    )


def test_the_first_look_tells_everything() -> None:
    steps = [step("r1", "draining"), step("r2", "serving", "l40s", 2)]
    (lines,) = told(rollout("canary", steps=steps, reason="fewer tokens a draft"))
    assert lines == [
        "rollout-2, generation 1 -> 2, by ann@head: fewer tokens a draft",
        "canary",
        "  h20 r1: draining, generation 1",
        "  l40s r2: serving, generation 2",
    ]


def test_a_rollback_is_called_so() -> None:
    (lines,) = told(rollout("rolling", kind="rollback"))
    assert lines[0] == "rollout-2, generation 1 -> 2 (rollback), by ann@head"


def test_only_what_changed_is_told() -> None:
    before = rollout("canary", steps=[step("r1", "draining"), step("r2", "ordered")])
    after = rollout("canary", steps=[step("r1", "switching") | {"canary": True}, step("r2", "ordered")])
    assert told(before, after, after)[1:] == [["  h20 r1: canary, switching, generation 1"], []]


def test_a_replica_that_could_not_switch_is_told_with_its_reason() -> None:
    failed = step("r1", "failed") | {"reason": "the weights are corrupt"}
    assert told(rollout("canary"), rollout("canary", steps=[failed]))[1] == [
        "  h20 r1: failed, generation 1: the weights are corrupt"
    ]


def test_replicas_that_a_restarted_planner_has_not_heard_of_are_not_told_again() -> None:
    known, empty = rollout("rolling", steps=[step("r1", "serving", generation=2)]), rollout("rolling")
    assert told(known, empty, known)[1:] == [[], []]


def test_a_wave_and_a_pause_are_told() -> None:
    first, second = rollout("rolling", wave=1), rollout("rolling", wave=2)
    assert told(first, second, second, second | {"paused": True}, second)[1:] == [
        ["rolling, wave 2"],
        [],
        ["rolling, wave 2, paused"],
        ["rolling, wave 2"],
    ]


def test_gates_that_wait_for_canaries_are_not_told_again_and_again() -> None:
    look = rollout("canary", gates=[gate("waiting", new=None, old=None)])
    assert told(look, look, look)[1:] == [[], []]


def test_figures_are_told_when_they_are_judged_and_when_it_was_decided_on_them() -> None:
    looks = told(
        rollout("baking", gates=[gate("waiting", new=0.05, old=None)]),
        rollout("baking", gates=[gate("waiting", new=0.04, old=None)]),
        rollout("baking", gates=[gate("passed")]),
        rollout("baking", gates=[gate("passed", new=0.032)]),
        rollout("rolling", gates=[gate("passed", new=0.033)]),
        rollout("rolling", gates=[gate("not judged", new=None)]),
    )
    assert looks[1:] == [
        [],
        ["  pool h20: TTFT 31 ms (old 26 ms)"],
        [],
        ["rolling, wave 1", "  pool h20: TTFT 33 ms (old 26 ms)"],
        [],
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gate": "error rate", "new": 0.05, "old": 0.0}, "error rate 5.00% (old 0.00%)"),
        ({"gate": "acceptance", "new": 2.5, "old": 5.0}, "acceptance 2.50 (old 5.00)"),
        ({"gate": "time per output token", "new": 0.0123, "old": 0.01}, "time per output token 12.3 ms (old 10 ms)"),
        ({"gate": "acceptance", "new": None, "old": None, "state": "not judged"}, "acceptance not judged"),
    ],
)
def test_each_gate_has_its_own_unit(values: dict[str, Any], words: str) -> None:
    looks = told(rollout("baking"), rollout("baking", gates=[gate(**values)]))
    assert looks[1] == [f"  pool h20: {words}"]


def test_a_failed_gate_is_told_with_its_own_sentence_once() -> None:
    text = (
        "pool h20: TTFT: 0.9 s on the new generation, 0.1 s on the old one (9.00 times); the limit is at most 2 times"
    )
    failed = rollout("rolling back", gates=[gate("failed", text=text, new=0.9, old=0.1)], failure=text)
    looks = told(rollout("baking"), failed, failed | {"phase": "reverting"}, failed | {"phase": "rolled back"})
    assert looks[1:] == [
        ["rolling back", "  pool h20: TTFT 900 ms (old 100 ms) failed", f"failed: {text}"],
        ["reverting"],
        [f"rolled back: generation 1 serves. {text}"],
    ]


def test_gates_without_figures_are_not_told_while_they_pass() -> None:
    start = gate("passed", gate="replica start", old=None, new=None, limit=None)
    assert told(rollout("canary"), rollout("baking", gates=[start]))[1] == ["baking"]


def test_the_end_says_which_generation_serves_and_why() -> None:
    assert end_words(rollout("done")) == "done: generation 2 serves"
    assert end_words(rollout("rolled back", failure="pool h20: TTFT: ...")) == (
        "rolled back: generation 1 serves. pool h20: TTFT: ..."
    )
    assert end_words(rollout("superseded", failure="Ray Serve deployed generation 3")) == (
        "superseded: Ray Serve deployed generation 3"
    )


def test_an_app_has_one_line_in_the_status() -> None:
    (idle,) = rollouts().values()
    (busy,) = rollouts(rollout("rolling", wave=3, paused=True)).values()
    assert app_line("default", idle) == "app default: generation 1"
    assert app_line("default", busy) == "app default: generation 1, rollout-2 to generation 2: rolling, wave 3, paused"
