"""A pool without running replicas: at once if the model has none at all, else after its upscale delay.

Ray Serve 2.60 has no delay from zero running replicas, whatever other pools of the model have.
"""

from collections.abc import Iterator

import pytest

from deployments.autoscaling import shared
from deployments.autoscaling.options import ingress_autoscaling
from tests.unit.test_autoscaling_policy import CHEAP, DEAR, UPSCALE_DELAY_S, App, holding
from tests.unit.test_autoscaling_ray import Clock, Controller, load, pool

BUSY = {"cheap": 4_800.0}
NEEDS_BOTH = 50
"""Requests that wait: more than the cheap pool holds at its most."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    yield Clock(monkeypatch)
    shared._apps.clear()


@pytest.fixture
def controller(clock: Clock) -> Controller:
    """With one cheap replica at work."""
    controller = Controller(clock, cheap=pool(CHEAP), dear=pool(DEAR), ingress=ingress_autoscaling(1))
    for _ in range(3):
        load(controller, 3, {})
        controller.tick()
    assert controller.targets == {"cheap": 1, "dear": 0, "ingress": 1}
    return controller


def history(controller: Controller, seconds: int, waiting: int) -> list[tuple[int, int]]:
    """Targets of the cheap and of the dear pool, second by second."""
    steps = []
    for _ in range(seconds):
        load(controller, waiting, BUSY)
        targets = controller.tick()
        steps.append((targets["cheap"], targets["dear"]))
    return steps


def test_a_rise_shorter_than_the_delay_starts_no_dear_replica(controller: Controller) -> None:
    assert set(history(controller, 4, NEEDS_BOTH) + history(controller, 30, 0)) == {(1, 0)}


def test_a_rise_that_lasts_starts_both_pools_after_their_delay(controller: Controller) -> None:
    # The ingress is asked after the pools: what it tells is seen a second later.
    assert history(controller, 12, NEEDS_BOTH) == [(1, 0)] * 6 + [(4, 1)] * 6


def test_rises_with_a_lull_between_them_do_not_add_up(controller: Controller) -> None:
    for _ in range(5):
        assert set(history(controller, 4, NEEDS_BOTH) + history(controller, 2, 0)) == {(1, 0)}


def test_each_pool_waits_for_its_own_delay(clock: Clock) -> None:
    cheap, dear = pool(CHEAP, upscale_delay_s=2.0), pool(DEAR, upscale_delay_s=8.0)
    controller = Controller(clock, cheap=cheap, dear=dear, ingress=ingress_autoscaling(1))
    load(controller, 3, {})
    controller.tick(), controller.tick()
    assert history(controller, 12, NEEDS_BOTH) == [(1, 0)] * 3 + [(4, 0)] * 6 + [(4, 1)] * 3


def test_from_nothing_at_all_both_pools_start_at_once(clock: Clock) -> None:
    controller = Controller(clock, cheap=pool(CHEAP), dear=pool(DEAR), ingress=ingress_autoscaling(1))
    load(controller, NEEDS_BOTH, {})
    controller.tick()
    assert controller.tick() == {"cheap": 4, "dear": 1, "ingress": 1}


@pytest.fixture
def app(clock: Clock) -> App:
    """Its policies have seen every pool: one cheap replica runs, and there is no load."""
    app = App("app of one cheap replica")
    idle = {"cheap": (1, [holding(0, 0)]), "dear": (0, [])}
    app.queue()
    assert [app.ask(name, target=target, stats=[*stats]) for name, (target, stats) in idle.items()] == [1, 0]
    return app


def rising(app: App, *, cheap: int = 1, cheap_running: int = 1, dear: int = 0, requests: int = NEEDS_BOTH) -> int:
    """What the dear pool, none of which runs, should have while so many requests wait."""
    app.queue(*[1_600] * requests)
    app.ask("cheap", target=cheap, stats=[holding(0, 0)] * cheap_running)
    return app.ask("dear", target=dear)


def test_replicas_that_start_do_not_end_the_delay_for_more_of_them(app: App, clock: Clock) -> None:
    assert rising(app) == 0
    clock.now += UPSCALE_DELAY_S
    assert rising(app) == 1
    assert rising(app, dear=1, requests=2 * NEEDS_BOTH) == 1, "each step waits, as Ray Serve's do"
    clock.now += UPSCALE_DELAY_S
    assert rising(app, dear=1, requests=2 * NEEDS_BOTH) == 3


def test_policies_that_are_made_anew_go_on_with_the_wait(app: App, clock: Clock) -> None:
    assert rising(app) == 0
    clock.now += UPSCALE_DELAY_S
    app.configure()
    assert rising(app) == 1


def test_a_controller_that_is_restarted_waits_anew_even_before_it_has_found_the_cheap_replicas(
    app: App, clock: Clock
) -> None:
    assert rising(app) == 0
    clock.now += UPSCALE_DELAY_S - 1
    shared._apps.clear()
    app.configure()
    for _ in range(2):
        assert rising(app, cheap_running=0) == 0
        clock.now += 1
    assert rising(app) == 0
    clock.now += UPSCALE_DELAY_S
    assert rising(app) == 1


def test_an_app_that_is_deployed_again_waits_anew(app: App, clock: Clock) -> None:
    assert rising(app) == 0
    clock.now += shared.FRESH_S + 1
    assert rising(app) == 0


def test_a_cheaper_pool_does_not_wait_for_a_dear_one_that_only_starts(app: App) -> None:
    app.queue(*[1_600] * 3)
    app.ask("dear", target=1)
    assert app.ask("cheap", target=0) == 1


def test_a_pool_waits_no_longer_once_the_others_have_no_replica_left(app: App, clock: Clock) -> None:
    assert rising(app) == 0
    clock.now += 1
    assert rising(app, cheap=0, cheap_running=0) == 1


def test_a_lull_in_which_a_replica_tells_nothing_ends_a_wish_too(app: App, clock: Clock) -> None:
    assert rising(app, dear=1, requests=2 * NEEDS_BOTH) == 1
    clock.now += 2
    app.queue()
    app.ask("cheap", target=1, stats=[None])
    assert app.ask("dear", target=1) == 1, "it stays while not everything is known"
    clock.now += UPSCALE_DELAY_S - 1
    assert rising(app, dear=1, requests=2 * NEEDS_BOTH) == 1
