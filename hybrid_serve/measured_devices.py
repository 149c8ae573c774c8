"""The devices that the running replicas of an app have, for planning another configuration for them."""

from hybrid_serve.cluster_connection import PlannerConnection
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.sizes import format_size

Devices = dict[str, DeviceFacts]
"""By pool."""


def measured_devices(planner: PlannerConnection, app: str) -> tuple[Devices, list[str]]:
    """Of each pool the device to plan for, and a sentence for each pool that has several: there the smallest counts."""
    devices: Devices = {}
    notes = []
    for pool, found in planner.ask("measured", app).items():
        if not found:
            continue
        devices[pool] = min(found, key=lambda device: device.memory_bytes)
        if len(found) > 1:
            sizes = ", ".join(format_size(device.memory_bytes) for device in found)
            notes.append(f"replicas of pool {pool} have devices of {sizes}: it is planned for the smallest")
    return devices, notes


def devices_line(devices: Devices, pools: list[str]) -> str:
    """Whose devices were measured, and whose were not."""
    described = [pool for pool in pools if pool not in devices]
    measured = [pool for pool in pools if pool in devices]
    if not measured:
        return f"devices of {', '.join(described)}: as described, since none of their replicas is known to the planner"
    line = f"devices of {', '.join(measured)}: as their replicas measured them"
    return f"{line}; of {', '.join(described)}: as described" if described else line
