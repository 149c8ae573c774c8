"""Open-loop load that goes on in the background while something is done to the fleet."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from benchmarks.load import Load, Request


@contextmanager
def steady(load: Load, requests: Iterable[Request], per_second: float, seed: int) -> Iterator[None]:
    """Sends `requests` (endless ones) while the block runs; at its end all that were sent have ended."""
    stop = threading.Event()

    def until_stopped() -> Iterator[Request]:
        for request in requests:
            if stop.is_set():
                return
            yield request

    thread = threading.Thread(
        target=lambda: asyncio.run(load.open_loop(until_stopped(), per_second, seed)), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
