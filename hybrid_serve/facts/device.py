"""The device a replica runs on, as measured (a label can cover cards of unlike memory)."""

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One accelerator, or the CPU of one node.

    Attributes:
        kind: `cuda` or `cpu`.
        name: as the driver gives it, e.g. `NVIDIA H200`; `cpu` for a CPU.
        memory_bytes: total memory of one device, measured where it can be; for `cpu` the memory of
            the node or of the container, whichever is smaller.
        sm: compute capability times ten (90 for Hopper); None on a CPU.
        measured: False if the figures are from the catalogue and not from the device itself.
    """

    kind: DeviceKind
    name: str
    memory_bytes: int
    sm: int | None = None
    measured: bool = True
