"""An engine without a model: it answers a small part of the OpenAI API, for tests and for dry runs of a cluster."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hybrid_serve.engine.base import ASGIApp, EngineConfig, EngineStartError, EngineStats, Message, Receive, Scope, Send
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan


@dataclass(frozen=True, kw_only=True)
class FakeOptions:
    """What `engine.vllm_args` may hold for a fake engine.

    Attributes:
        start_s: seconds that starting takes.
        token_s: seconds between tokens.
        fail: the start fails with this message.
        num_blocks: reported instead of the plan's, to look at what a mismatch does.
        die_after_tokens: the process ends at this token of a stream, as if killed.
    """

    start_s: float = 0.0
    token_s: float = 0.01
    fail: str = ""
    num_blocks: int | None = None
    die_after_tokens: int | None = None

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> "FakeOptions":
        """Raises EngineStartError if an argument is unknown."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(args) - known):
            raise EngineStartError(f"the fake engine does not know {', '.join(unknown)}: it knows {sorted(known)}")
        return cls(**args)


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


class FakeEngine:
    """Implements `Engine`. Replies with the words `token0 token1 ...`, `max_tokens` of them (default 16).

    A client that goes away is noticed between tokens through `http.disconnect`, as vLLM does. After a POST to
    `/fake/sick` the engine is unhealthy.
    """

    def __init__(self) -> None:
        self._options = FakeOptions()
        self._config: EngineConfig | None = None
        self._running = 0
        self._stopped = False
        self._sick = ""

    async def start(self, config: EngineConfig) -> EngineReport:
        self._options = FakeOptions.from_args(config.engine_args)
        await asyncio.sleep(self._options.start_s)
        if self._options.fail:
            raise EngineStartError(self._options.fail)
        if config.plan is None:
            raise EngineStartError("the fake engine has no plan of its own: give it one")
        self._config = config
        report = report_as_planned(config.plan, config.settings.prefix_match_unit)
        if self._options.num_blocks is not None:
            report = replace(report, num_blocks=self._options.num_blocks)
        return report

    @property
    def app(self) -> ASGIApp:
        return self._serve

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=self._running,
            waiting=0,
            kv_usage=0.0,
            drafts=0,
            draft_tokens=0,
            accepted_tokens=0,
            accepted_per_position=(),
        )

    async def check_health(self) -> None:
        if self._stopped or self._sick:
            raise EngineStartError(self._sick or "the fake engine was stopped")

    async def stop(self) -> None:
        self._stopped = True

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("GET", "/health"):
            await _respond(send, 200, b"")
        elif route == ("GET", "/v1/models"):
            await _respond_json(send, 200, {"object": "list", "data": [self._card()]})
        elif route == ("POST", "/v1/chat/completions"):
            await self._chat(receive, send)
        elif route == ("POST", "/fake/sick"):
            self._sick = "the fake engine was made sick"
            await _respond(send, 200, b"")
        else:
            await _respond_json(send, 404, {"detail": "Not Found"})

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
            request = json.loads(body)
            if not isinstance(request, dict):
                raise ValueError("the body is no JSON object")
        except ValueError as error:
            await _respond_json(send, 400, {"error": {"message": str(error), "type": "Bad Request", "code": 400}})
            return
        count = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        writer = self._stream(send, request, count) if request.get("stream") else self._whole(send, request, count)
        work = asyncio.ensure_future(writer)
        gone = asyncio.ensure_future(_disconnect(receive))
        self._running += 1
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._running -= 1
            work.cancel()
            gone.cancel()

    async def _stream(self, send: Send, request: dict[str, Any], count: int) -> None:
        await send(_start(200, b"text/event-stream; charset=utf-8"))
        for index in range(count):
            await asyncio.sleep(self._options.token_s)
            if index == self._options.die_after_tokens:
                os._exit(1)
            delta = {"index": 0, "delta": {"role": "assistant", "content": f"token{index} "}, "finish_reason": None}
            if index == count - 1:
                delta["finish_reason"] = "length"
            await send(_body(_event(self._envelope("chat.completion.chunk", request, [delta])), more=True))
        await send(_body(b"data: [DONE]\n\n", more=True))
        await send(_body(b"", more=False))

    async def _whole(self, send: Send, request: dict[str, Any], count: int) -> None:
        await asyncio.sleep(self._options.token_s * count)
        content = " ".join(f"token{index}" for index in range(count))
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        answer = self._envelope("chat.completion", request, [choice]) | {"usage": usage}
        await _respond_json(send, 200, answer)

    def _envelope(self, kind: str, request: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": "chatcmpl-fake",
            "object": kind,
            "created": int(time.time()),
            "model": request.get("model"),
            "choices": choices,
        }


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(status: int, content_type: bytes) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]}


def _body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def _respond(send: Send, status: int, body: bytes, content_type: bytes = b"text/plain") -> None:
    await send(_start(status, content_type))
    await send(_body(body, more=False))


async def _respond_json(send: Send, status: int, value: Any) -> None:
    await _respond(send, status, json.dumps(value).encode(), b"application/json")
