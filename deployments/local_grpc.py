"""Keeps the gRPC server of a Ray Serve replica to this machine where all of Ray is.

Ray Serve 2.60 binds it to `[::]`, whatever address the node has, and it takes pickled requests. To be removed when
Ray Serve binds it to the node's own address.
"""

from collections.abc import Callable
from typing import Any

import ray

LOOPBACK = "127.0.0.1"
_ANY = "[::]:"


def keep_grpc_local() -> bool:
    """Call it in a replica's constructor, before Ray Serve starts the server. Idempotent.

    Answers whether the server stays local: False on a node with an outer address, and where Ray Serve has no such
    function any more.
    """
    from ray.serve._private import replica

    add_port: Callable[..., int] | None = getattr(replica, "add_port_to_grpc_server", None)
    if ray.util.get_node_ip_address() != LOOPBACK or add_port is None:
        return False
    if not getattr(add_port, "local", False):
        replica.add_port_to_grpc_server = _localised(add_port)
    return True


def _localised(add_port: Callable[..., int]) -> Callable[..., int]:
    def add_local_port(server: Any, address: str) -> int:
        return add_port(server, address.replace(_ANY, f"{LOOPBACK}:"))

    add_local_port.local = True  # type: ignore[attr-defined]
    return add_local_port
