"""An engine without a model: it answers a small part of the OpenAI API, for tests and for dry runs of a cluster."""

import asyncio
import json
import os
import time
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from hybrid_serve.engine import fake_answers as answers
from hybrid_serve.engine.base import ASGIApp, EngineConfig, EngineStartError, EngineStats, Receive, Scope, Send
from hybrid_serve.engine.fake_options import FakeOptions
from hybrid_serve.engine.fake_room import FakeRoom
from hybrid_serve.engine.fake_totals import FakeTotals
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan


def report_as_planned(plan: KVPlan, prefix_match_unit: int | None = None) -> EngineReport:
    """The report of an engine that runs its plan exactly, and hashes prefixes by the unit that it was told."""
    return EngineReport(
        num_blocks=plan.num_blocks,
        groups=tuple((g.kind, g.layers, g.block_size, g.page_size_bytes) for g in plan.groups),
        kv_tokens=plan.kv_tokens,
        concurrency=plan.concurrency,
        workers=1,
        prefix_match_unit=prefix_match_unit,
    )


PREFIX_TOKENS = 64
"""The granularity of the fake's prefix cache."""


@dataclass(frozen=True, kw_only=True)
class _Request:
    """One request: its parsed body, its prompt as bytes, its lengths in tokens, the KV blocks that it holds, when it
    came."""

    body: dict[str, Any]
    prompt: bytes
    prompt_tokens: int
    output_tokens: int
    blocks: int
    arrived: float


class FakeEngine:
    """Implements `Engine`. Replies with the words `token0 token1 ...`, `max_tokens` of them (default 16).

    A request holds the blocks that the plan says for its prompt and its whole output; one that finds too few free, or
    max_num_seqs others running, waits in order. A client that goes away is noticed through `http.disconnect`, as vLLM
    does. After a POST to `/fake/sick` the engine is dead as vLLM's is when its core died: streams end with an error
    event, everything else is answered 500.
    """

    def __init__(self) -> None:
        self._options = FakeOptions()
        self._config: EngineConfig | None = None
        self._room = FakeRoom(0, 0)
        self._stopped = False
        self._sick = ""
        self._died = asyncio.Event()
        self._prefixes: set[int] = set()
        self._totals = FakeTotals()
        self._owed_errors = 0.0
        self._dying: asyncio.TimerHandle | None = None

    async def start(self, config: EngineConfig) -> EngineReport:
        self._options = FakeOptions.from_args(config.engine_args)
        await asyncio.sleep(self._options.start_s)
        if self._options.fail:
            raise EngineStartError(self._options.fail)
        if self._options.fail_while and os.path.exists(self._options.fail_while):
            raise EngineStartError(f"{self._options.fail_while} exists")
        if self._stopped:
            raise EngineStartError("the fake engine was stopped while it started")
        if config.plan is None:
            raise EngineStartError("the fake engine has no plan of its own: give it one")
        self._config = config
        self._room = FakeRoom(config.plan.num_blocks, config.settings.max_num_seqs)
        self._totals = FakeTotals(self._options.acceptance, config.settings.num_speculative_tokens)
        if self._options.die_after_s is not None:
            after_s = self._options.die_after_s
            self._dying = asyncio.get_running_loop().call_later(after_s, self.die, f"it died after {after_s:g} s")
        report = report_as_planned(config.plan, config.settings.prefix_match_unit)
        if self._options.num_blocks is not None:
            report = replace(report, num_blocks=self._options.num_blocks)
        return report

    @property
    def app(self) -> ASGIApp:
        return self._serve

    @property
    def reuses_prefixes(self) -> bool:
        return self._options.prefix_caching

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=self._room.running,
            waiting=self._room.waiting,
            kv_usage=self._room.usage,
            **self._totals.to_stats(),
        )

    async def check_health(self) -> None:
        if self._stopped or self._sick:
            raise EngineStartError(self._sick or "the fake engine was stopped")

    def die(self, reason: str) -> None:
        """As vLLM's engine does when its core process ends."""
        self._sick = reason
        self._died.set()

    async def stop(self) -> None:
        self._stopped = True
        if self._dying is not None:
            self._dying.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("GET", "/health"):
            await answers.respond(send, 200, b"")
        elif route == ("GET", "/v1/models"):
            await answers.respond_json(send, 200, {"object": "list", "data": [self._card()]})
        elif route == ("POST", "/v1/chat/completions"):
            await self._chat(receive, send)
        elif route == ("POST", "/fake/sick"):
            self.die("the fake engine was made sick")
            await answers.respond(send, 200, b"")
        else:
            await answers.respond_json(send, 404, {"detail": "Not Found"})

    def _card(self) -> dict[str, Any]:
        assert self._config is not None
        return {
            "id": self._config.model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "hybrid_serve",
            "max_model_len": self._config.settings.max_model_len,
        }

    async def _chat(self, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        try:
            request = self._read(body)
        except ValueError as error:
            await answers.respond_json(send, 400, answers.error(str(error), 400))
            return
        if self._sick:
            await answers.respond_json(send, 500, answers.error(self._sick, 500))
            return
        self._owed_errors += self._options.error_rate
        if self._owed_errors >= 1:
            self._owed_errors -= 1
            await answers.respond_json(send, 500, answers.error("an error, as it was asked for", 500))
            return
        write = self._stream if request.body.get("stream") else self._whole
        work = asyncio.ensure_future(write(send, request))
        gone = asyncio.ensure_future(answers.disconnect(receive))
        dead = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({work, gone, dead}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            broken_off = dead.done() and not work.done()
            for task in (work, gone, dead):
                task.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if broken_off:
            await self._break_off(send, request)

    def _read(self, body: bytes) -> _Request:
        """Raises ValueError if the body is no JSON object, or longer than the model takes."""
        assert self._config is not None
        request = json.loads(body)
        if not isinstance(request, dict):
            raise ValueError("the body is no JSON object")
        prompt = json.dumps(request.get("messages", [])).encode()
        prompt_tokens = ceil(len(prompt) / self._options.bytes_per_token)
        longest = self._config.settings.max_model_len
        if prompt_tokens >= longest:
            raise ValueError(
                f"This model's maximum context length is {longest} tokens, the prompt has {prompt_tokens}."
            )
        asked = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        output_tokens = min(asked, longest - prompt_tokens)
        return _Request(
            body=request,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            blocks=sum(need.blocks(prompt_tokens + output_tokens) for need in self._config.needs),
            arrived=time.monotonic(),
        )

    async def _break_off(self, send: Send, request: _Request) -> None:
        if request.body.get("stream"):
            await send(answers.body(answers.event(answers.error(self._sick, 500)) + b"data: [DONE]\n\n", more=False))
        else:
            await answers.respond_json(send, 500, answers.error(self._sick, 500))

    async def _stream(self, send: Send, request: _Request) -> None:
        await send(answers.start(200, b"text/event-stream; charset=utf-8"))
        async with self._room.hold(request.blocks):
            await self._prefill(request)
            first_at = 0.0
            for index in range(request.output_tokens):
                await asyncio.sleep(self._options.token_s)
                if index == self._options.die_after_tokens:
                    os._exit(1)
                self._totals.generated(1)
                first_at = first_at or self._first_token(request)
                delta = {"index": 0, "delta": {"role": "assistant", "content": f"token{index} "}, "finish_reason": None}
                if index == request.output_tokens - 1:
                    delta["finish_reason"] = "length"
                    self._finish(request, first_at)
                chunk = self._envelope("chat.completion.chunk", request.body, [delta])
                await send(answers.body(answers.event(chunk), more=True))
        await send(answers.body(b"data: [DONE]\n\n", more=True))
        await send(answers.body(b"", more=False))

    async def _whole(self, send: Send, request: _Request) -> None:
        count = request.output_tokens
        async with self._room.hold(request.blocks):
            await self._prefill(request)
            await asyncio.sleep(self._options.token_s)
            first_at = self._first_token(request)
            await asyncio.sleep(self._options.token_s * (count - 1))
            self._totals.generated(count)
            self._finish(request, first_at)
        content = " ".join(f"token{index}" for index in range(count))
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "length"}
        prompt = request.prompt_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        answer = self._envelope("chat.completion", request.body, [choice]) | {"usage": usage}
        await answers.respond_json(send, 200, answer)

    async def _prefill(self, request: _Request) -> None:
        await asyncio.sleep(self._options.prefill_s)
        self._totals.prefilled(request.prompt_tokens)
        if not self._options.prefix_caching:
            return
        step = int(PREFIX_TOKENS * self._options.bytes_per_token)
        beginnings = [hash(request.prompt[:end]) for end in range(step, len(request.prompt) + 1, step)]
        found = sum(1 for beginning in beginnings if beginning in self._prefixes)
        self._prefixes.update(beginnings)
        self._totals.looked_up(request.prompt_tokens, found * PREFIX_TOKENS)

    def _first_token(self, request: _Request) -> float:
        """Counted; answers when it came."""
        now = time.monotonic()
        self._totals.first_token(now - request.arrived)
        return now

    def _finish(self, request: _Request, first_at: float) -> None:
        self._totals.finished(request.prompt_tokens, request.output_tokens, time.monotonic() - first_at)

    def _envelope(self, kind: str, request: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": "chatcmpl-fake",
            "object": kind,
            "created": int(time.time()),
            "model": request.get("model"),
            "choices": choices,
        }
