"""HTTP load on an OpenAI-compatible server, and what became of every request.

Open loop: requests are sent when they are due, whether or not earlier ones have ended, as users do.
"""

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from hybrid_serve.demo.corpus import held_out_prompts

End = Literal["done", "refused", "error", "error event", "broken", "hung"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One request.

    Attributes:
        request: what was sent.
        sent_s: when it was sent, in seconds after the load began.
        status: HTTP status; None if the connection failed before there was one.
        end: `done` (complete), `refused` (503 with Retry-After), `error` (any other status than 200),
            `error event` (a stream that ended with one), `broken` (cut off), `hung` (still open at its deadline).
        first_s: seconds until the first content; None if there was none.
        total_s: seconds until it ended.
        text: what was answered.
    """

    request: "Request"
    sent_s: float
    status: int | None
    end: End
    first_s: float | None
    total_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One chat request: its body, and whether it is streamed.

    Attributes:
        ignore_eos: exactly `max_tokens` are answered, however early the model would end.
    """

    messages: list[dict[str, str]]
    max_tokens: int
    stream: bool = True
    ignore_eos: bool = True

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "stream": self.stream,
            "temperature": 0,
            "ignore_eos": self.ignore_eos,
        }


def mixed_requests(count: int, *, seed: int, prompt_bytes: tuple[int, int], tokens: tuple[int, int]) -> list[Request]:
    """`count` chats of mixed length, streamed and plain; lengths are log-uniform, as users' are more often short."""
    rng = random.Random(seed)
    texts = [prompt.text for prompt in held_out_prompts(200, seed)]
    requests = []
    for _ in range(count):
        wanted = int(prompt_bytes[0] * (prompt_bytes[1] / prompt_bytes[0]) ** rng.random())
        content = rng.choice(texts)
        while len(content) < wanted:
            content += "\n\n" + rng.choice(texts)
        messages = [{"role": "user", "content": content[-wanted:]}]
        requests.append(Request(messages=messages, max_tokens=rng.randint(*tokens), stream=rng.random() < 0.7))
    return requests


def families_of_requests(families: int, each: int, *, seed: int, prefix_bytes: int) -> list[Request]:
    """Chats in families that begin alike (a long system prompt) and end unlike, in random order."""
    rng = random.Random(seed)
    texts = [prompt.text for prompt in held_out_prompts(200, seed)]
    requests = []
    for _ in range(families):
        beginning = ""
        while len(beginning) < prefix_bytes:
            beginning += rng.choice(texts) + "\n\n"
        for _ in range(each):
            messages = [
                {"role": "system", "content": beginning[:prefix_bytes]},
                {"role": "user", "content": rng.choice(texts)},
            ]
            requests.append(Request(messages=messages, max_tokens=8, stream=True))
    rng.shuffle(requests)
    return requests


class Load:
    """Sends requests to one server and keeps every outcome."""

    def __init__(self, url: str, model: str, deadline_s: float = 120.0) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._deadline_s = deadline_s
        self.began = time.monotonic()
        self.outcomes: list[Outcome] = []

    async def open_loop(self, requests: Iterable[Request], per_second: float, seed: int) -> None:
        """Poisson arrivals at a rate; returns when all have ended."""
        rng = random.Random(seed)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            due = time.monotonic()
            for request in requests:
                due += rng.expovariate(per_second)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.create_task(self._send(session, request))

    async def closed_loop(self, requests: Sequence[Request], concurrency: int) -> None:
        """`concurrency` at a time, in order; returns when all have ended."""
        waiting = iter(requests)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:

            async def worker() -> None:
                for request in waiting:
                    await self._send(session, request)

            for _ in range(concurrency):
                tasks.create_task(worker())

    async def _send(self, session: aiohttp.ClientSession, request: Request) -> None:
        reading = _Reading(request.stream)
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                async with session.post(self._url, json=request.body(self._model)) as response:
                    await reading.read(response)
        except TimeoutError:
            reading.end = "hung"
        except (aiohttp.ClientError, ConnectionError):
            reading.end = "broken"
        ended = time.monotonic()
        self.outcomes.append(
            Outcome(
                request=request,
                sent_s=started - self.began,
                status=reading.status,
                end=reading.end,
                first_s=None if reading.first is None else reading.first - started,
                total_s=ended - started,
                text=reading.text,
            )
        )


class _Reading:
    """An answer as it comes in."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self.status: int | None = None
        self.end: End = "broken"
        self.first: float | None = None
        self.text = ""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        if response.status != 200:
            await response.read()
            refused = response.status == 503 and "retry-after" in response.headers
            self.end = "refused" if refused else "error"
        elif self._stream:
            async for line in response.content:
                if line.startswith(b"data: "):
                    self._event(line[6:].strip())
        else:
            answer = await response.json()
            self._content(answer["choices"][0]["message"]["content"])
            self.end = "done"

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            if self.end != "error event":
                self.end = "done"
            return
        event = json.loads(data)
        if "error" in event:
            self.end = "error event"
        for choice in event.get("choices", ()):
            self._content(choice["delta"].get("content") or "")

    def _content(self, text: str) -> None:
        if text and self.first is None:
            self.first = time.monotonic()
        self.text += text


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts by end, statuses, and seconds to the first content of the finished streams."""
    firsts = sorted(o.first_s for o in outcomes if o.end == "done" and o.first_s is not None)
    return {
        "requests": len(outcomes),
        "ends": dict(Counter(o.end for o in outcomes)),
        "statuses": {str(status): n for status, n in Counter(o.status for o in outcomes).items()},
        "first_content_p50_s": round(statistics.median(firsts), 3) if firsts else None,
        "first_content_p99_s": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 3) if firsts else None,
        "slowest_s": round(max((o.total_s for o in outcomes), default=0.0), 3),
    }
