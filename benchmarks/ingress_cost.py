"""What the way through Ray Serve costs, against vLLM's own app on the same engine.

    python -m benchmarks.ingress_cost --output benchmarks/results/ingress-cost.json

The replica serves its engine's app twice: through the ingress, and on a port of its own by uvicorn. Streamed held-out
chats are sent through both in turn: one request at a time, each chat both ways one after the other, the first way
changing from chat to chat, for the time to the first token; and bursts at a concurrency of 16 for requests per second,
the first way changing from round to round. So what else the machine does meets both ways alike, and its share of the
cores is recorded. The ingress does not see the other way's requests but in the replica's reports, one a second: it
would hold its own back for their sake, so each burst waits until the replica has reported that it is idle.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import ray
import uvicorn
from ray import serve
from ray.serve.config import HTTPOptions

from deployments import builder
from deployments.loading import load_config
from deployments.local_ray import private_ray
from deployments.replica import Replica
from hybrid_serve.demo.corpus import held_out_prompts

INGRESS_PORT, DIRECT_PORT = 18190, 18191
IDLE_S = 2.5
"""Two reports of the replica and their way to the ingress."""

Chats = list[list[dict[str, str]]]


class OpenReplica(Replica):
    """A replica whose engine's app also listens on a port of its own."""

    async def __init__(self, config: Any) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        await super().__init__(config)
        running = self._slot.running
        assert running is not None, "it has started"
        server = uvicorn.Config(
            running.engine.app, host="127.0.0.1", port=DIRECT_PORT, log_level="error", lifespan="off"
        )
        self._direct = asyncio.ensure_future(uvicorn.Server(server).serve())


class Seconds(NamedTuple):
    """What was measured one way: to the first token of each chat alone; for each burst."""

    first_token: list[float]
    burst: list[float]


async def stream(session: aiohttp.ClientSession, port: int, messages: list[dict[str, str]], tokens: int) -> float:
    """One streamed chat to its end; seconds to its first content."""
    body = {"model": "demo", "messages": messages, "stream": True, "temperature": 0, "max_tokens": tokens}
    started = time.perf_counter()
    first = None
    async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if first is None and line.startswith(b"data: {") and b'"content":""' not in line:
                first = time.perf_counter() - started
    assert first is not None, "a stream without content"
    return first


async def alone(found: dict[int, Seconds], chats: Chats) -> None:
    """Each chat both ways, one request at a time."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for index, messages in enumerate(chats):
            for port in _in_turn(index):
                found[port].first_token.append(await stream(session, port, messages, 8))


async def burst(found: dict[int, Seconds], port: int, chats: Chats, concurrency: int) -> None:
    """All chats one way, so many at a time."""
    limit = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def limited(messages: list[dict[str, str]]) -> None:
            async with limit:
                await stream(session, port, messages, 160)

        started = time.perf_counter()
        await asyncio.gather(*(limited(messages) for messages in chats))
        found[port].burst.append(time.perf_counter() - started)


def measure(options: argparse.Namespace, rounds: int) -> dict[int, Seconds]:
    """Both ways in turn."""
    found = {port: Seconds([], []) for port in (DIRECT_PORT, INGRESS_PORT)}
    chats = [prompt.messages for prompt in held_out_prompts(options.requests, 2026, max_long=0)]
    for index in range(rounds):
        asyncio.run(alone(found, [chats[each % len(chats)] for each in range(options.alone)]))
        for port in _in_turn(index):
            time.sleep(IDLE_S)
            asyncio.run(burst(found, port, chats, options.concurrency))
    return found


def _in_turn(index: int) -> tuple[int, int]:
    return (DIRECT_PORT, INGRESS_PORT) if index % 2 == 0 else (INGRESS_PORT, DIRECT_PORT)


class Machine:
    """CPU seconds since it was made: of this process and all below it, which are Ray's and the engine's; of all."""

    def __init__(self) -> None:
        self._before = self._now()
        self._started = time.monotonic()

    def others_share(self) -> float:
        """Share of all cores, 0 to 1, that processes not of this measurement had."""
        busy, own = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(0.0, (busy - own) / (time.monotonic() - self._started) / (os.cpu_count() or 1))

    def _now(self) -> tuple[float, float]:
        times, own = psutil.cpu_times(), 0.0
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                own += used.user + used.system
        return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice, own


def summary(found: dict[int, Seconds], requests: int) -> dict[str, float]:
    """Medians, and what the ingress adds."""
    direct, ingress = found[DIRECT_PORT], found[INGRESS_PORT]
    first = [statistics.median(side.first_token) * 1000 for side in (direct, ingress)]
    rate = [requests / statistics.median(side.burst) for side in (direct, ingress)]
    return {
        "direct_ttft_p50_ms": round(first[0], 2),
        "ingress_ttft_p50_ms": round(first[1], 2),
        "ttft_added_ms": round(first[1] - first[0], 2),
        "direct_requests_per_s": round(rate[0], 2),
        "ingress_requests_per_s": round(rate[1], 2),
        "throughput_ratio": round(rate[1] / rate[0], 3),
    }


def main() -> None:
    """Serve the demo, measure, print, and write the raw rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--alone", type=int, default=40, help="chats one at a time, a round")
    parser.add_argument("--requests", type=int, default=64, help="chats of a burst")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    builder.Replica = OpenReplica  # type: ignore[attr-defined]
    with private_ray(object_store_memory=256 * 2**20, log_to_driver=False):
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=INGRESS_PORT))
        serve.run(builder.build(load_config(None, {"pool.max_replicas": 1})))
        measure(options, rounds=1)
        machine = Machine()
        found = measure(options, options.rounds)
        others = machine.others_share()
        serve.shutdown()
    result = summary(found, options.requests) | {"others_share_of_cores": round(others, 3)}
    print(json.dumps(result, indent=1))
    if options.output:
        record = {
            "command": "python -m benchmarks.ingress_cost",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"python": platform.python_version(), "ray": ray.__version__},
            "cores": os.cpu_count(),
            "summary": result,
            "seconds": {"direct": found[DIRECT_PORT]._asdict(), "ingress": found[INGRESS_PORT]._asdict()},
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    from benchmarks.ingress_cost import main as run  # the replica unpickles OpenReplica by this module's name

    run()
