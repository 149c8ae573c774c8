"""The device that a pool's replicas will have, as far as it is known where the app is built."""

from typing import NamedTuple

from deployments.pool_config import PoolConfig
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.probe import measure_device

GUESS = "H200"
"""What a pool of any GPU is planned for on a machine that has none."""


class PoolDevice(NamedTuple):
    """Measured here, the catalogue's, or (not `known`) a guess: then only the replica can refuse for want of memory."""

    facts: DeviceFacts
    known: bool


def pool_device(pool: PoolConfig, measured: DeviceFacts | None = None) -> PoolDevice:
    """What to plan a pool for.

    `measured`: by a running replica of the pool. It counts over what is known here, unless the pool is to have another
    kind of device from now on.

    Raises:
        FactsError: a GPU kind that is not in the catalogue.
    """
    if measured is not None and _is_of(pool, measured):
        return PoolDevice(measured, True)
    if pool.accelerator_type is not None:
        return PoolDevice(gpu(pool.accelerator_type), True)
    if pool.device != "cuda":
        return PoolDevice(measure_device(pool.device), True)
    try:
        return PoolDevice(measure_device("cuda"), True)
    except FactsError:
        return PoolDevice(gpu(GUESS), False)


def _is_of(pool: PoolConfig, measured: DeviceFacts) -> bool:
    if pool.device not in ("auto", measured.kind):
        return False
    return pool.accelerator_type is None or gpu(pool.accelerator_type).name == measured.name
