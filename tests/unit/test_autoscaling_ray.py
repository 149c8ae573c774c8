"""The policies inside Ray Serve's own autoscaling state: its delays, its bounds, its way to hand metrics over."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.common import DeploymentID, ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig

from deployments.autoscaling import shared
from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.figures import ReplicaFigures, ingress_stats
from deployments.autoscaling.options import ingress_autoscaling, pool_autoscaling
from tests.unit.test_autoscaling_policy import CHEAP, DEAR, Waiting

APP = "app"


class Clock:
    """Both clocks that take part: the policies' and Ray Serve's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Controller:
    """Ray Serve's autoscaling, with deployments whose replicas start and stop at once."""

    def __init__(self, clock: Clock, **configs: AutoscalingConfig) -> None:
        self._clock = clock
        self._state = AutoscalingStateManager()
        self.targets: dict[str, int] = {}
        for name, config in configs.items():
            options = DeploymentConfig(autoscaling_config=config)
            info = DeploymentInfo(
                deployment_config=options,
                replica_config=None,  # type: ignore[arg-type]
                start_time_ms=0,
                deployer_job_id="",
            )
            initial = config.min_replicas
            self.targets[name] = self._state.register_deployment(DeploymentID(name, APP), info, initial)

    def tick(self, seconds: float = 1.0) -> dict[str, int]:
        self._clock.now += seconds
        for name, target in self.targets.items():
            deployment = DeploymentID(name, APP)
            self._state.update_running_replica_ids(deployment, self.replicas(name, target))
        decided = self._state.get_decision_num_replicas(
            APP, {DeploymentID(name, APP): target for name, target in self.targets.items()}
        )
        self.targets = {deployment.name: target for deployment, target in decided.items()}
        return self.targets

    def replicas(self, name: str, count: int) -> list[ReplicaID]:
        return [ReplicaID(f"{name}{index}", DeploymentID(name, APP)) for index in range(count)]

    def report(self, name: str, stats: dict[str, float]) -> None:
        """The same from every replica that runs."""
        for replica in self.replicas(name, self.targets[name]):
            series = {metric: [TimeStampedValue(self._clock.now, value)] for metric, value in stats.items()}
            self._state.record_request_metrics_for_replica(
                ReplicaMetricReport(replica_id=replica, timestamp=self._clock.now, metrics=series)
            )


def pool(facts: PoolFacts, **bounds: float) -> AutoscalingConfig:
    options = {"min_replicas": 0, "max_replicas": 4, "upscale_delay_s": 5.0, "downscale_delay_s": 20.0, **bounds}
    return pool_autoscaling(facts.name, [CHEAP, DEAR], utilisation=0.8, margin=0.1, start_patience_s=600.0, **options)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    yield Controller(Clock(monkeypatch), cheap=pool(CHEAP), dear=pool(DEAR), ingress=ingress_autoscaling(1))
    shared._apps.pop(APP, None)


def load(controller: Controller, requests: int, held: dict[str, float]) -> None:
    """`requests` of 1,600 tokens wait, and each replica of a pool holds so many KV tokens."""
    controller.report("ingress", ingress_stats([Waiting("m", 1_600)] * requests))
    for facts in (CHEAP, DEAR):
        tokens = held.get(facts.name, 0.0)
        figures = ReplicaFigures(
            kv_tokens=facts.kv_tokens, held_kv_tokens=tokens, largest_kv_tokens=0.0, requests=tokens / 1_600
        )
        controller.report(facts.name, figures.to_stats())


def test_a_queue_starts_the_cheapest_pool_from_zero_at_once(controller: Controller) -> None:
    load(controller, 3, {})
    controller.tick()
    assert controller.tick() == {"cheap": 1, "dear": 0, "ingress": 1}


def test_more_comes_after_the_upscale_delay_and_once(controller: Controller) -> None:
    load(controller, 3, {})
    controller.tick(), controller.tick()
    load(controller, 20, {})
    history = []
    for _ in range(12):
        load(controller, 20, {})
        history.append(controller.tick()["cheap"])
    # The ingress is asked after the pools: what it tells is seen a second later.
    assert history == [1] * 6 + [3] * 6


def test_less_comes_after_the_downscale_delay_the_dearest_first(controller: Controller) -> None:
    for _ in range(8):
        load(controller, 60, {})
        controller.tick()
    assert controller.targets == {"cheap": 4, "dear": 1, "ingress": 1}
    history = []
    for _ in range(90):
        load(controller, 0, {})
        targets = controller.tick()
        history.append((targets["cheap"], targets["dear"]))
    changes = [at for before, at in pairwise(history) if at != before]
    assert changes == [(4, 0), (1, 0), (0, 0)], "Ray Serve goes to zero from one only"
    assert history.index((4, 0)) >= 19 and history.index((1, 0)) >= history.index((4, 0)) + 20


def test_a_short_lull_takes_nothing_away(controller: Controller) -> None:
    for second in range(60):
        load(controller, 60 if second % 15 else 0, {})
        controller.tick()
    assert controller.targets["cheap"] == 4 and controller.targets["dear"] == 1


def test_silence_of_the_replicas_after_the_controllers_restart_takes_nothing_away(controller: Controller) -> None:
    controller.targets |= {"cheap": 2, "dear": 1}
    for _ in range(60):
        controller.report("ingress", ingress_stats([]))
        assert controller.tick() == {"cheap": 2, "dear": 1, "ingress": 1}
