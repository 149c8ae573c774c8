"""Where the planner keeps the little that no replica can tell it again."""

from typing import Protocol

NAMESPACE = b"hybrid_serve"


class Store(Protocol):
    """Named values that outlive the planner's process. Writing is atomic: a reader sees the old value or the new."""

    def read(self, key: str) -> bytes | None:
        """The value; None if there is none. Raises whatever the store raises if it can't be reached."""
        ...

    def write(self, key: str, value: bytes) -> None:
        """Put or replace the value. Raises whatever the store raises if it can't be reached."""
        ...

    def delete(self, key: str) -> None:
        """Remove the value; safe if there is none. Raises whatever the store raises if it can't be reached."""
        ...


class MemoryStore:
    """Outlives nothing but the planner object: for tests, and where no Ray runs."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def read(self, key: str) -> bytes | None:
        return self._values.get(key)

    def write(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def delete(self, key: str) -> None:
        self._values.pop(key, None)


class RayStore:
    """Ray's internal key-value store, where Ray Serve's controller keeps its own checkpoint.

    Outlives every process but the head node's control store (GCS), and that too where GCS fault tolerance is set up
    (an external Redis). Needs a process that is connected to Ray; blocks for a round trip on loopback or the network.
    """

    def read(self, key: str) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        value: bytes | None = _internal_kv_get(key, namespace=NAMESPACE)
        return value

    def write(self, key: str, value: bytes) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(key, value, overwrite=True, namespace=NAMESPACE)

    def delete(self, key: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(key, namespace=NAMESPACE)
