"""What the way through Ray Serve costs, against vLLM's own app on the same engine.

    python -m benchmarks.ingress_cost --output benchmarks/results/ingress-cost.json

The replica serves its engine's app twice: through the ingress, and on a port of its own by uvicorn. Both are warmed up,
then measured in turn, the first one changing from round to round: time to the first token of one request at a time,
and requests per second of 16 at a time, on streamed held-out chats. Ratios are of the medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
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


class OpenReplica(Replica):
    """A replica whose engine's app also listens on a port of its own."""

    async def __init__(self, config: Any) -> None:
        await super().__init__(config)
        server = uvicorn.Config(self._engine.app, host="127.0.0.1", port=DIRECT_PORT, log_level="error", lifespan="off")
        self._direct = asyncio.ensure_future(uvicorn.Server(server).serve())


class Round(NamedTuple):
    """One measurement: seconds to the first token (median of one at a time), requests per second of 16 at a time."""

    first_token_s: float
    requests_per_s: float


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


async def measure(port: int, options: argparse.Namespace) -> Round:
    """One round through one port."""
    prompts = [prompt.messages for prompt in held_out_prompts(options.requests, 2026, max_long=0)]
    limit = asyncio.Semaphore(options.concurrency)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def limited(messages: list[dict[str, str]]) -> None:
            async with limit:
                await stream(session, port, messages, 160)

        alone = [await stream(session, port, prompts[index % len(prompts)], 8) for index in range(options.alone)]
        started = time.perf_counter()
        await asyncio.gather(*(limited(messages) for messages in prompts))
        seconds = time.perf_counter() - started
    return Round(statistics.median(alone), len(prompts) / seconds)


def rounds(options: argparse.Namespace) -> dict[int, list[Round]]:
    """All rounds of both ports, the first one taking turns."""
    found: dict[int, list[Round]] = {DIRECT_PORT: [], INGRESS_PORT: []}
    for port in found:
        asyncio.run(measure(port, options))
    for index in range(options.rounds):
        order = (DIRECT_PORT, INGRESS_PORT) if index % 2 == 0 else (INGRESS_PORT, DIRECT_PORT)
        for port in order:
            found[port].append(asyncio.run(measure(port, options)))
    return found


def summary(found: dict[int, list[Round]]) -> dict[str, float]:
    """Medians over the rounds, and what the ingress adds."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    direct, ingress = found[DIRECT_PORT], found[INGRESS_PORT]
    first = [median([r.first_token_s for r in side]) * 1000 for side in (direct, ingress)]
    rate = [median([r.requests_per_s for r in side]) for side in (direct, ingress)]
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
    parser.add_argument("--alone", type=int, default=40, help="requests one at a time, a round")
    parser.add_argument("--requests", type=int, default=64, help="requests at --concurrency, a round")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    builder.Replica = OpenReplica  # type: ignore[misc]
    with private_ray(object_store_memory=256 * 2**20, log_to_driver=False):
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=INGRESS_PORT))
        serve.run(builder.build(load_config(None, {"pool.max_replicas": 1})))
        found = rounds(options)
        serve.shutdown()
    result = summary(found)
    print(json.dumps(result, indent=1))
    if options.output:
        record = {
            "command": "python -m benchmarks.ingress_cost",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"python": platform.python_version(), "ray": ray.__version__},
            "cores": os.cpu_count(),
            "summary": result,
            "rounds": {"direct": found[DIRECT_PORT], "ingress": found[INGRESS_PORT]},
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    from benchmarks.ingress_cost import main as run  # the replica unpickles OpenReplica by this module's name

    run()
