"""What was rolled out over a deployed file is what the same file builds again: each app its own."""

import logging
from collections.abc import Iterator
from typing import Any, Never

import pytest
import ray
from ray.serve._private import application_state
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from deployments import binding, built_app
from deployments.binding import forget, recall, remember
from deployments.built_app import app_being_built
from hybrid_serve.rollout.wire import GenerationOffer
from tests.rollout_fleet import offer, pool_offer

POOLS = {"a": pool_offer()}
BUILT: list[GenerationOffer | None] = []


def builder(args: dict[str, Any]) -> Never:
    """An app's builder, as Ray Serve calls it; what it recalls is left in `BUILT`."""
    BUILT.append(recall(str(args["origin"])))
    raise RayServeException("there is nothing to build")


def built(app: str, origin: str) -> GenerationOffer | None:
    """What the builder recalls in Ray Serve's own task for this app."""
    BUILT.clear()
    path = f"{__name__}:builder"
    *_, problem = application_state.build_serve_application._function(
        path, "version", app, {"origin": origin}, LoggingConfig(), None, {}, {}, {}
    )
    assert len(BUILT) == 1, problem
    return BUILT[0]


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(application_state, "configure_component_logger", lambda **_: None)
    monkeypatch.setattr(binding, "_internal_kv_get", lambda key, namespace: kept.get(key))
    monkeypatch.setattr(binding, "_internal_kv_del", lambda key, namespace: kept.pop(key, None))
    monkeypatch.setattr(binding, "_internal_kv_put", lambda key, value, overwrite, namespace: kept.update({key: value}))
    yield kept


def test_two_apps_with_the_same_arguments_have_each_their_own_generation() -> None:
    one = offer("one", POOLS, 1.0, app="first")
    remember(one, "same")
    assert built("first", "same") == one
    assert built("second", "same") is None, "nothing was rolled out there"
    other = offer("other", POOLS, 2.0, app="second")
    remember(other, "same")
    assert (built("first", "same"), built("second", "same")) == (one, other)


def test_other_arguments_count_again() -> None:
    remember(offer("one", POOLS, 1.0, app="first"), "before")
    assert built("first", "after") is None


def test_what_is_deployed_past_a_rollout_makes_it_history() -> None:
    remember(offer("one", POOLS, 1.0, app="first"), "same")
    forget(offer("older", POOLS, 0.5, app="first"))
    forget(offer("newer", POOLS, 2.0, app="second"))
    assert built("first", "same") is not None
    forget(offer("newer", POOLS, 2.0, app="first"))
    assert built("first", "same") is None


def test_what_can_not_be_read_is_said_and_not_built(store: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    store["rolled_out:first"] = b"of another release"
    assert built("first", "same") is None
    assert "rolled_out:first can't be read" in caplog.text


def test_outside_of_ray_serves_task_what_is_written_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remember(offer("one", POOLS, 1.0, app="first"), "same")
    assert recall("same") is None and app_being_built() is None and caplog.text == ""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray._private.worker.global_worker, "mode", ray.WORKER_MODE, raising=False)
    with caplog.at_level(logging.ERROR):
        assert app_being_built() is None
    assert "does not tell which app it builds" in caplog.text, "a Ray that builds otherwise is noticed"


def test_a_ray_that_names_the_app_otherwise_is_noticed_and_fails_no_build(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remember(offer("one", POOLS, 1.0, app="first"), "same")
    monkeypatch.setattr(built_app, "ARGUMENT", "app_name")
    assert built("first", "same") is None
    assert "does not tell which app it builds" in caplog.text
