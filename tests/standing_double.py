"""Stands for the process of an engine in `benchmarks.standing`: python -m tests.standing_double MODE"""

import subprocess
import sys
import time
from dataclasses import asdict

from benchmarks.side_by_side import answer
from hybrid_serve.engine.base import EngineStats

STATS = EngineStats(
    running=1, waiting=2, kv_usage=0.5, drafts=3, draft_tokens=21, accepted_tokens=9, accepted_per_position=(5, 4)
)

CHILD = [sys.executable, "-c", "import time; time.sleep(60)"]


def main(mode: str) -> int:
    """MODE: serves; fails; leaves_a_child (which holds the output, as an engine core does), at once or at_the_end."""
    if mode == "fails":
        answer({"error": "out of memory"})
        return 1
    print("Loading: 100%|####|", end="")
    answer({"url": "http://127.0.0.1:9", "vocabulary": 100, "report": {}, "differences": []})
    if mode == "leaves_a_child":
        subprocess.Popen(CHILD)
        time.sleep(0.2)
        return 1
    while sys.stdin.readline():
        answer(asdict(STATS))
    if mode == "leaves_a_child_at_the_end":
        subprocess.Popen(CHILD)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
