"""Chats with known answers: what counts as right, and what a client would call failed."""

from itertools import islice
from typing import Any

import pytest

from benchmarks.known_requests import Answers, endless, figures, longest_gap, questions
from benchmarks.load import Outcome, Request


def outcome(request: Request, text: str, **values: Any) -> Outcome:
    """A stream that ended well, but for `values`."""
    usual = {"sent_s": 1.0, "status": 200, "end": "done", "first_s": 0.1, "total_s": 1.0}
    return Outcome(request=request, text=text, **(usual | values))


ASKED = questions(20, seed=1)
ANSWERS = Answers(outcome(request, f"answer {index}.") for index, request in enumerate(ASKED))


def test_a_chat_that_ends_by_itself_must_be_answered_as_before() -> None:
    assert ANSWERS.right(outcome(ASKED[3], "answer 3."))
    assert not ANSWERS.right(outcome(ASKED[3], "answer 4."))
    assert not ANSWERS.right(outcome(ASKED[3], "answer 3. And more"))
    assert not ANSWERS.right(outcome(ASKED[3], "answer"))


def test_a_chat_that_goes_on_past_its_end_must_begin_as_before() -> None:
    long = Request(messages=ASKED[3].messages, max_tokens=300)
    assert ANSWERS.right(outcome(long, "answer 3. And more"))
    assert not ANSWERS.right(outcome(long, "answer 4. And more"))
    assert not ANSWERS.right(outcome(long, "ans"))


def test_what_was_not_answered_completely_is_no_right_answer() -> None:
    with pytest.raises(ValueError, match="broken"):
        Answers([outcome(ASKED[0], "answ", end="broken")])


def test_the_endless_chats_are_the_same_ones_for_a_seed_and_mixed() -> None:
    sent = list(islice(endless(ASKED, seed=7), 400))
    assert sent == list(islice(endless(ASKED, seed=7), 400))
    for share in (sum(r.stream for r in sent) / 400, 1 - sum(r.ignore_eos for r in sent) / 400):
        assert share == pytest.approx(0.7, abs=0.08)
    assert all(request.messages in [asked.messages for asked in ASKED] for request in sent)


def test_figures_are_of_what_was_sent_in_the_window() -> None:
    plain = Request(messages=ASKED[1].messages, max_tokens=250, stream=False, ignore_eos=False)
    outcomes = [
        outcome(ASKED[0], "answer 0.", sent_s=0.5, first_s=9.0),
        outcome(ASKED[0], "answer 0.", sent_s=1.0, first_s=0.2),
        outcome(plain, "answer 1.", sent_s=2.0, first_s=5.0),
        outcome(ASKED[2], "answer 7.", sent_s=3.0, first_s=0.4),
        outcome(ASKED[2], "", sent_s=4.0, first_s=None, end="refused", status=503),
        outcome(ASKED[2], "answ", sent_s=5.0, end="broken", first_s=0.3),
        outcome(ASKED[2], "answer 2.", sent_s=9.0, first_s=8.0),
    ]
    found = figures(outcomes, ANSWERS, since=1.0, until=9.0)
    assert (found["requests"], found["streams"], found["failed"], found["wrong_answers"]) == (5, 4, 2, 1)
    assert found["ends"] == {"done": 3, "refused": 1, "broken": 1}
    assert (found["ttft_p50_s"], found["ttft_p99_s"], found["ttft_worst_s"]) == (0.3, 0.4, 0.4)


def test_the_longest_gap_is_between_requests_that_were_answered_and_reaches_to_the_ends_of_the_window() -> None:
    done = [outcome(ASKED[0], "answer 0.", sent_s=at) for at in (0.0, 2.0, 3.0, 10.0)]
    failed = [outcome(ASKED[0], "", sent_s=6.0, end="refused")]
    assert longest_gap(done + failed, 0.0, 12.0) == 7.0
    assert longest_gap(done + failed, 0.0, 30.0) == 20.0
    assert longest_gap(failed, 0.0, 12.0) == 12.0
