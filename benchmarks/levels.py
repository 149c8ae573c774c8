"""Levels of load for one engine behind a URL, and greedy answers of it."""

import asyncio
import json
import random
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.vllm_load import ANSWER

SPECIAL_TOKENS = 16
"""Token ids below this are not drawn for prompts."""

END_S = 20
"""What the process that sends the load may take to end by itself."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Seeded random prompts of `input_len` tokens, answered with `output_len`, `at_once` at a time.

    Attributes:
        output_spread: an answer has (1 - this) to (1 + this) times `output_len` tokens, so that not all end at once.
        shared_prefix_len: so many of a prompt's tokens are the same in all of the level's prompts.
    """

    at_once: int
    requests: int
    input_len: int
    output_len: int
    output_spread: float = 0.0
    shared_prefix_len: int = 0

    def arguments(self, url: str, tokenizer: str, seed: int) -> str:
        """Those of `vllm bench serve`."""
        spread = json.dumps({"input": 0.0, "output": self.output_spread})
        fixed = (
            f"--backend=vllm --base-url={url} --model=model --tokenizer={tokenizer} --dataset-name=random "
            f"--random-input-len={self.input_len - self.shared_prefix_len} "
            f"--random-prefix-len={self.shared_prefix_len} --random-output-len={self.output_len} "
            f"--num-prompts={self.requests} --max-concurrency={self.at_once} --seed={seed} --temperature=0 "
            "--ignore-eos --percentile-metrics=ttft,tpot,itl,e2el --metric-percentiles=50,99 --disable-tqdm "
            "--ready-check-timeout-sec=0"
        )
        return shlex.join([*fixed.split(), f"--random-range-ratio={spread}"])


@asynccontextmanager
async def load_process() -> AsyncIterator[Process]:
    """The process that sends the load: its own, so that it takes no time from a server's event loop."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.vllm_load", stdin=PIPE, stdout=PIPE, limit=1 << 24
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def loaded(load: Process, level: Level, url: str, tokenizer: str, seed: int) -> dict[str, Any]:
    """What `vllm bench serve` says of the level; `error` if it failed.

    Raises:
        RuntimeError: the process that sends the load has ended.
    """
    assert load.stdin is not None and load.stdout is not None
    load.stdin.write(level.arguments(url, tokenizer, seed).encode() + b"\n")
    await load.stdin.drain()
    while not (answer := (await load.stdout.readline()).decode()).startswith(ANSWER):
        if not answer:
            raise RuntimeError(f"the load of {level} ended without a result")
        print(answer, end="")
    result: dict[str, Any] = json.loads(answer.removeprefix(ANSWER))
    return result


async def greedy(
    url: str, *, prompts: int, prompt_len: int, output_len: int, vocabulary: int, seed: int, timeout: float
) -> list[list[int]]:
    """Token ids of greedy answers to seeded prompts of random token ids, one request at a time."""
    source = random.Random(seed)
    outputs = []
    async with httpx.AsyncClient(base_url=url, timeout=timeout) as client:
        for _ in range(prompts):
            prompt = [source.randrange(SPECIAL_TOKENS, vocabulary) for _ in range(prompt_len)]
            body = {"model": "model", "prompt": prompt, "max_tokens": output_len, "temperature": 0}
            answer = await client.post("/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True})
            answer.raise_for_status()
            outputs.append(answer.json()["choices"][0]["token_ids"])
    return outputs
