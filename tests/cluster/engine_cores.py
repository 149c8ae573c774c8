"""vLLM's engine cores, which are found by their titles."""

from contextlib import suppress

import psutil


def engine_cores(replica: int) -> list[psutil.Process]:
    """Those that run below a replica's process. One may have other children, which come and go."""
    cores = []
    for child in psutil.Process(replica).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            cores += [child] if "EngineCore" in " ".join(child.cmdline()) else []
    return cores
