"""A Ray of our own, reachable from this machine only."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services


def stay_on_loopback() -> None:
    """A Ray that this process starts from now on listens on 127.0.0.1 only. Idempotent; a running Ray is left alone.

    Ray has no option for it on Linux (`ray.init(_node_ip_address="127.0.0.1")` is turned into the outer address);
    on desktops it does so by default, by this constant. To be removed when Ray has an option.
    """
    if not ray.is_initialized() and services.get_ray_address_from_environment(None, None) is None:
        ray_constants.ENABLE_RAY_CLUSTER = False


@contextmanager
def private_ray(**options: Any) -> Iterator[None]:
    """Ray with a temporary folder of its own on free ports; stopped, and the folder removed, at the end.

    `options` go to `ray.init`. An already running Ray, also one named in RAY_ADDRESS, is not used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray_constants.ENABLE_RAY_CLUSTER = False
    # Short: a socket's path in it may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hs-ray-"))
    try:
        ray.init("local", **{"namespace": "serve", "include_dashboard": False, "_temp_dir": str(folder), **options})
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
