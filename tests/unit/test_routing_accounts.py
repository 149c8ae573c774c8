"""A replica's accounts of reservations and of what requests needed, and its answers when its engine dies."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.routing.accounts import REMEMBERED_REQUESTS, Accounts
from deployments.routing.ticket import ReplicaUnavailable, Ticket
from deployments.serving import serve_request
from hybrid_serve.engine.base import ASGIApp, EngineStats, Message, Receive, Scope, Send
from hybrid_serve.engine.fake import FakeEngine
from tests.unit.test_fake_engine import CHAT, request, started

IDLE = EngineStats(
    running=0, waiting=0, kv_usage=0.0, drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=()
)


def ticket(ingress: str = "i1", blocks: int = 5, sequences: int = 1, prompt_bytes: int = 100) -> Ticket:
    return Ticket("replica", ingress, blocks, sequences, prompt_bytes)


def test_reservations_are_held_by_ingress_and_given_back_however_a_request_ends() -> None:
    accounts = Accounts()
    with accounts.holding(ticket("i1")), accounts.holding(ticket("i2", blocks=7)), accounts.holding(ticket("i1")):
        assert accounts.reserved == {"i1": (10, 2), "i2": (7, 1)}
        with pytest.raises(LookupError), accounts.holding(ticket("i3")):
            raise LookupError
        assert "i3" not in accounts.reserved
    assert accounts.reserved == {}


def test_a_request_without_a_ticket_or_without_kv_reserves_nothing() -> None:
    accounts = Accounts()
    with accounts.holding(None), accounts.holding(ticket(sequences=0, blocks=0)):
        assert accounts.reserved == {}


def test_reports_are_numbered_and_carry_what_was_measured() -> None:
    accounts = Accounts()
    first = accounts.report(IDLE, healthy=True)
    assert (first.sequence, first.bytes_per_token, first.mean_output_tokens) == (1, None, None)
    for _ in range(4):
        accounts.answered(ticket(prompt_bytes=300))
    stats = replace(IDLE, finished_requests=4, finished_prompt_tokens=400, finished_generation_tokens=80)
    second = accounts.report(stats, healthy=False)
    assert (second.sequence, second.healthy, second.measured_requests) == (2, False, 4)
    assert (second.bytes_per_token, second.mean_output_tokens) == (3.0, 20.0)


def test_prompts_that_are_no_text_do_not_spoil_the_bytes_per_token() -> None:
    accounts = Accounts()
    accounts.answered(ticket(prompt_bytes=0))
    accounts.report(replace(IDLE, finished_requests=1, finished_prompt_tokens=9000), healthy=True)
    accounts.answered(ticket(prompt_bytes=400))
    report = accounts.report(replace(IDLE, finished_requests=2, finished_prompt_tokens=9100), healthy=True)
    assert report.bytes_per_token == 4.0


def test_a_prompt_that_was_let_through_without_kv_counts_with_its_bytes() -> None:
    """It seemed too long and was not: without its bytes the next prompt would seem longer still."""
    accounts = Accounts()
    accounts.answered(ticket(prompt_bytes=400))
    accounts.answered(ticket(blocks=0, sequences=0, prompt_bytes=84_000))
    accounts.answered(ticket(blocks=0, sequences=0, prompt_bytes=0))  # /tokenize
    report = accounts.report(replace(IDLE, finished_requests=2, finished_prompt_tokens=20_100), healthy=True)
    assert report.bytes_per_token == pytest.approx(4.2, abs=0.01)


def test_measured_means_follow_the_traffic() -> None:
    accounts = Accounts()
    requests = output = 0
    for mean in (10, 200):
        for _ in range(20):
            requests += REMEMBERED_REQUESTS
            output += REMEMBERED_REQUESTS * mean
            stats = replace(IDLE, finished_requests=requests, finished_generation_tokens=output)
            report = accounts.report(stats, healthy=True)
        assert report.mean_output_tokens == pytest.approx(mean, rel=0.01)


async def messages_of(engine: Any, body: bytes, accounts: Accounts | None = None) -> list[Message]:
    served = serve_request(engine, accounts or Accounts(), CHAT, body, ticket())
    return [message async for message in served]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_the_engines(pair_folder: Path, stream: bool) -> None:
    engine = await started(pair_folder, token_s=0.001)
    accounts = Accounts()
    messages = await messages_of(engine, request(max_tokens=3, stream=stream), accounts)
    assert messages[0]["status"] == 200 and b"token2" in b"".join(m.get("body", b"") for m in messages)
    assert not messages[-1]["more_body"] and accounts.reserved == {}
    assert b"token0" in messages[0]["body"], "the head carries the first piece"
    assert accounts.report(await engine.stats(), healthy=True).mean_output_tokens == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_dead_engine_is_said_before_anything_is_answered(pair_folder: Path, stream: bool) -> None:
    engine = await started(pair_folder)
    engine._sick = "its core was killed"
    with pytest.raises(ReplicaUnavailable, match="core was killed"):
        await messages_of(engine, request(stream=stream))


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_dies_before_the_first_token_leaves_the_request_to_others(
    pair_folder: Path, stream: bool
) -> None:
    engine = await started(pair_folder, prefill_s=5.0)
    accounts = Accounts()
    task = asyncio.ensure_future(messages_of(engine, request(stream=stream), accounts))
    await asyncio.sleep(0.02)
    assert accounts.reserved == {"i1": (5, 1)}
    engine.die("its core was killed")
    with pytest.raises(ReplicaUnavailable, match="core was killed"):
        await task
    assert accounts.reserved == {}


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.002)
    told = []
    async with aclosing(
        serve_request(engine, Accounts(), CHAT, request(max_tokens=500, stream=True), None)
    ) as messages:
        async for message in messages:
            told.append(message)
            if len(told) == 4:
                engine.die("its core was killed")
    *_, event, done = told[-1]["body"].decode().strip().split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == 500 and done == "data: [DONE]"


async def test_a_refused_request_is_passed_on(pair_folder: Path) -> None:
    engine = await started(pair_folder)
    messages = await messages_of(engine, b"[]")
    (message,) = messages
    assert message["status"] == 400 and not message["more_body"]


class Broken(FakeEngine):
    """Its app fails at every request, and the engine lives."""

    @property
    def app(self) -> ASGIApp:
        async def fail(scope: Scope, receive: Receive, send: Send) -> None:
            raise LookupError("inside")

        return fail


async def test_an_app_that_breaks_without_its_engine_dying_raises_its_own_error() -> None:
    with pytest.raises(LookupError, match="inside"):
        await messages_of(Broken(), request())
