"""Load from vLLM's own `vllm bench serve`, level by level, in one process.

    python -m benchmarks.vllm_load < levels.txt

Each line of the input is the arguments of one `vllm bench serve`; each line of the output that begins with `RESULT ` is
its result, as JSON, without what it keeps of every single request. The process stays, so that only the first level
waits for its imports.
"""

import asyncio
import json
import shlex
import sys
from argparse import Namespace
from typing import Any

ANSWER = "RESULT "


def arguments(line: str) -> Namespace:
    """One level's arguments as `vllm bench serve` understands them."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    parsed: Namespace = parser.parse_args(shlex.split(line))
    return parsed


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """The result's totals and statistics: no lists but the acceptance at each position."""
    kept = "spec_decode_per_position_acceptance_rates"
    return {name: value for name, value in result.items() if name == kept or not isinstance(value, list | dict)}


def main() -> None:
    """Runs until the input ends; a level that fails answers its error."""
    from vllm.benchmarks.serve import main_async

    for line in sys.stdin:
        try:
            answer = figures(asyncio.run(main_async(arguments(line))))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
