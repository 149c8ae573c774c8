"""A configuration planned for the running fleet: the generation to offer to the planner."""

from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_serve.cluster_connection import PlannerConnection
from hybrid_serve.measured_devices import measured_devices
from hybrid_serve.rollout.wire import GenerationOffer

if TYPE_CHECKING:
    from deployments.config import AppConfig


class NotPossibleError(Exception):
    """Pools can't hold it. The message and `problems` (plain values) are all that is wrong, with what to change."""

    def __init__(self, text: str, problems: list[dict[str, Any]]) -> None:
        super().__init__(text)
        self.problems = problems


class NewGeneration(NamedTuple):
    """What to offer, and what is to be said about the devices that it was planned for."""

    offer: GenerationOffer
    notes: list[str]


def new_generation(config: "AppConfig", planner: PlannerConnection, app: str) -> NewGeneration:
    """The configuration, planned for the devices that the running replicas measured.

    Raises:
        NotPossibleError: a pool can't hold it.
    """
    from deployments.generation import Problems, offer_of

    devices, notes = measured_devices(planner, app)
    offer = offer_of(config, app, devices)
    if isinstance(offer, Problems):
        raise NotPossibleError(str(offer), offer.to_json())
    return NewGeneration(offer, notes)
