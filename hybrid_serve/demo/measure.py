"""Serve the pair with vLLM and measure it: python -m hybrid_serve.demo.measure [--compare | --no-drafter] [--json]

Decodes held-out prompts greedily. Reports the mean acceptance length (tokens per drafting step: 1 + accepted / drafts),
the acceptance at each drafted position, from the engine's own counters, and with --compare how far the token ids
agree with those of the same target without its drafter. The two engines run one after the other, each in a process
of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_serve.demo.corpus import held_out_prompts
from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR, DraftGeometry

GIB = 1 << 30


class Agreement(NamedTuple):
    """Token ids with and without the drafter, position by position, up to each request's longer answer."""

    tokens: int
    same: int
    identical_requests: int

    @property
    def share(self) -> float:
        return self.same / self.tokens if self.tokens else 1.0


def agreement(left: list[list[int]], right: list[list[int]]) -> Agreement:
    pairs = list(zip(left, right, strict=True))
    same = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    return Agreement(sum(max(len(a), len(b)) for a, b in pairs), same, sum(a == b for a, b in pairs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--no-drafter", action="store_true", help="serve the target alone")
    mode.add_argument("--compare", action="store_true", help="serve it with, then without the drafter, and compare")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the held-out prompts")
    parser.add_argument("--plain", action="store_true", help="text completions instead of chat")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--num-speculative-tokens", type=int, default=DraftGeometry().num_speculative_tokens)
    parser.add_argument("--kv-memory", type=int, default=GIB, help="bytes of KV cache")
    parser.add_argument("--additional-config", type=json.loads, default={}, help="JSON, handed to the engine as it is")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="JSON of further vLLM engine arguments")
    parser.add_argument("--target", type=Path, default=TARGET_DIR)
    parser.add_argument("--draft", type=Path, default=DRAFT_DIR)
    parser.add_argument("--json", action="store_true", help="print one JSON object, token ids included")
    return parser.parse_args()


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Prefix caching is off: vLLM 0.29's CPU backend lacks the kernel that copies GDN states for it."""
    engine: dict[str, Any] = {
        "model": str(args.target),
        "max_model_len": args.max_model_len,
        "max_num_seqs": args.max_num_seqs,
        "kv_cache_memory_bytes": args.kv_memory,
        "mamba_ssm_cache_dtype": "float32",
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "disable_log_stats": False,
    }
    if not args.no_drafter:
        k = args.num_speculative_tokens
        engine["speculative_config"] = {"method": "dflash", "model": str(args.draft), "num_speculative_tokens": k}
    if args.additional_config:
        engine["additional_config"] = args.additional_config
    return engine | args.engine_args


class DraftCounters(NamedTuple):
    """vLLM's speculative-decoding counters; all zero without a drafter."""

    drafts: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def read(cls, metrics: list[Any]) -> "DraftCounters":
        found = {m.name.removeprefix("vllm:spec_decode_num_"): m for m in metrics if "spec_decode_num" in m.name}
        if "drafts" not in found:
            return cls(0, 0, ())
        per_position = tuple(found["accepted_tokens_per_pos"].values)
        return cls(found["drafts"].value, found["accepted_tokens"].value, per_position)

    def since(self, earlier: "DraftCounters") -> dict[str, Any]:
        """Mean acceptance length and acceptance per position of what was drafted after `earlier`."""
        drafts = self.drafts - earlier.drafts
        if not drafts:
            return {}
        pairs = zip(self.accepted_per_position, earlier.accepted_per_position, strict=True)
        return {
            "drafts": drafts,
            "mean_acceptance_length": 1 + (self.accepted - earlier.accepted) / drafts,
            "acceptance_per_position": [(now - before) / drafts for now, before in pairs],
        }


def serve(args: argparse.Namespace) -> dict[str, Any]:
    """Run one engine over the prompts; heavy imports wait until here, so that --help stays quick."""
    # The CPU backend reads this variable, and newer ones the engine argument.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, -(-args.kv_memory // GIB))))
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for the result
    from vllm import LLM, SamplingParams

    prompts = held_out_prompts(args.prompts, args.seed)
    llm = LLM(**engine_arguments(args))
    sampling = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    llm.generate([prompts[0].text], SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)  # warm up
    before = DraftCounters.read(llm.get_metrics())
    start = time.monotonic()
    if args.plain:
        outputs = llm.generate([prompt.text for prompt in prompts], sampling, use_tqdm=False)
    else:
        outputs = llm.chat([prompt.messages for prompt in prompts], sampling, use_tqdm=False)
    seconds = time.monotonic() - start
    answers = [output.outputs[0] for output in outputs]
    tokens = sum(len(answer.token_ids) for answer in answers)
    wanted = [prompt.answer for prompt in prompts]
    return DraftCounters.read(llm.get_metrics()).since(before) | {
        "prompts": len(prompts),
        "output_tokens": tokens,
        "output_tokens_per_second": tokens / seconds,
        "correct_answers": sum(a.text.strip() == w.strip() for a, w in zip(answers, wanted, strict=True)),
        "wrong_kinds": [p.kind for p, a in zip(prompts, answers, strict=True) if a.text.strip() != p.answer.strip()],
        "token_ids": [list(answer.token_ids) for answer in answers],
    }


def serve_elsewhere(extra: list[str]) -> dict[str, Any]:
    """The same command in a fresh process, as vLLM does not give all its memory back."""
    kept = [argument for argument in sys.argv[1:] if argument not in ("--compare", "--json")]
    command = [sys.executable, "-m", "hybrid_serve.demo.measure", *kept, *extra, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    args = arguments()
    if args.compare:
        result, alone = serve_elsewhere([]), serve_elsewhere(["--no-drafter"])
        agreed = agreement(result["token_ids"], alone["token_ids"])
        result["agreement"] = {**agreed._asdict(), "share": agreed.share}
        result["output_tokens_per_second_without_drafter"] = alone["output_tokens_per_second"]
        result["correct_answers_without_drafter"] = alone["correct_answers"]
    else:
        result = serve(args)
    if args.json:
        print(json.dumps(result), flush=True)
        return
    for name, value in result.items():
        if name != "token_ids":
            print(f"{name}: {value}", flush=True)


if __name__ == "__main__":
    main()
