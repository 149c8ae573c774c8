"""What is known of the running replicas of an app, for planning another configuration for them."""

import argparse
import os
from typing import TYPE_CHECKING, NamedTuple

from hybrid_serve.cluster_connection import NoFleetError, SilentPlannerError, connected
from hybrid_serve.facts.device import DeviceFacts

if TYPE_CHECKING:
    from deployments.config import ReplicaConfig


class KnownFleet(NamedTuple):
    """By pool: the device that its replicas measured, and what they are bound with. `note`: why there is nothing."""

    devices: dict[str, DeviceFacts]
    running: "dict[str, ReplicaConfig]"
    note: str = ""


def known_fleet(arguments: argparse.Namespace) -> KnownFleet:
    """Of the cluster that the command line means; without one, nothing.

    Raises:
        NoFleetError: an address was given and nobody answers there, or a planner runs and does not answer.
    """
    from deployments.rollout_requests import measured_devices, running_pools

    try:
        with connected(arguments.address) as planner:
            return KnownFleet(
                planner.through(lambda handle: measured_devices(handle, arguments.app)),
                planner.through(lambda handle: running_pools(handle, arguments.app)),
            )
    except SilentPlannerError:
        raise
    except NoFleetError as error:
        if arguments.address != "auto" or os.environ.get("RAY_ADDRESS"):
            raise
        return KnownFleet({}, {}, f"devices: as the configuration describes them, since there is {error}")
