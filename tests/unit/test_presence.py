"""What Ray Serve's controller tells of an app, and when that means that the app is gone."""

from typing import Any

import pytest
import ray
from ray.serve._private.application_state import ApplicationStatusInfo, StatusOverview
from ray.serve.schema import ApplicationStatus

from deployments import binding
from deployments.binding import BoundGeneration
from hybrid_serve.rollout.presence import bound_to, is_deployed
from tests.rollout_fleet import offer, pool_offer


class Controller:
    """Answers as Ray Serve's controller does, of an app with this status."""

    def __init__(self, status: ApplicationStatus) -> None:
        self._status = status
        self.get_serve_status = self

    async def remote(self, app: str) -> bytes:
        overview = StatusOverview(ApplicationStatusInfo(self._status), name=app)
        told: bytes = overview.to_proto().SerializeToString()
        return told


@pytest.mark.parametrize("status", list(ApplicationStatus))
async def test_an_app_is_gone_only_if_it_is_unknown_or_being_deleted(
    monkeypatch: pytest.MonkeyPatch, status: ApplicationStatus
) -> None:
    """Also while it is built, and after a failed build: it has no ingress deployment then."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: Controller(status))
    gone = (ApplicationStatus.NOT_STARTED, ApplicationStatus.DELETING)
    assert await is_deployed("app") is (status not in gone)


async def test_without_ray_serve_there_is_no_app_and_without_ray_it_can_not_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_actor(name: str, namespace: str) -> Any:
        raise ValueError(f"no actor {name}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="not connected"):
        await is_deployed("app")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", no_actor)
    assert await is_deployed("app") is False


async def test_what_an_app_is_bound_to_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = offer("one", {"a": pool_offer()}, app="")
    found: list[BoundGeneration | None] = [BoundGeneration(bound, by_rollout=True), None]
    monkeypatch.setattr(binding, "bound_generation", lambda app: found.pop(0))
    told = await bound_to("app")
    assert told is not None and (told.app, told.digest) == ("app", "one")
    assert await bound_to("app") is None
