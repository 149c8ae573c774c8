"""The policies as Ray Serve makes and calls them: pickled by value, figures shared, nothing raised."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from deployments.autoscaling import shared
from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.figures import ReplicaFigures, ingress_stats
from deployments.autoscaling.options import ingress_autoscaling, pool_autoscaling
from hybrid_serve.plan.group_need import GroupNeed


def facts(name: str, cost: float, kv_tokens: float, model: str = "m") -> PoolFacts:
    """16 tokens a block, one KV token a token, no mamba states."""
    return PoolFacts(
        name=name,
        model=model,
        cost=cost,
        kv_tokens=kv_tokens,
        num_blocks=kv_tokens / 16,
        max_requests=100,
        typical_tokens=1_600,
        groups=(GroupNeed(kind="full", block_size=16, window=None, fixed_blocks=0, kept_tokens=None),),
    )


CHEAP, DEAR = facts("cheap", 1.0, 16_000), facts("dear", 9.0, 64_000)
FLEET = (CHEAP, DEAR)
UPSCALE_DELAY_S = 10.0


@dataclass(frozen=True)
class Waiting:
    model: str
    tokens: int
    sequences: int = 1


class App:
    """The policies of one app, as the controller holds them, and a way to call them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._configs = {
            pool.name: pool_autoscaling(
                pool.name,
                FLEET,
                utilisation=0.8,
                margin=0.1,
                start_patience_s=600.0,
                min_replicas=0,
                max_replicas=4,
                upscale_delay_s=UPSCALE_DELAY_S,
            )
            for pool in FLEET
        }
        self._configs["ingress"] = ingress_autoscaling(1)
        self._stamp = 0.0
        self.configure()

    def configure(self) -> None:
        """As Ray Serve does whenever the deployments are deployed again: each policy is made anew."""
        self._policies = {name: self._policy(config) for name, config in self._configs.items()}

    @staticmethod
    def _policy(config: AutoscalingConfig) -> Any:
        """A copy that knows nothing of this process's module, as in the controller."""
        options = {"policy_function": config.policy.policy_function, "policy_kwargs": config.policy.policy_kwargs}
        pickled = config.policy.get_serialized_policy_def()
        assert pickled is not None
        return _resolve_policy_callable(AutoscalingPolicy.from_serialized_policy_def(options, pickled))

    def ask(
        self, name: str, *, target: int = 0, stats: list[dict[str, float] | None] | None = None, queued: float = 0.0
    ) -> int:
        """The policy's answer; one running replica for each of `stats`, None has not reported."""
        self._stamp += 1
        deployment = DeploymentID(name=name, app_name=self.name)
        replicas = [ReplicaID(f"{name}{index}", deployment) for index in range(len(stats or []))]
        raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
        for replica, told in zip(replicas, stats or [], strict=True):
            for metric, value in (told or {}).items():
                raw.setdefault(metric, {})[replica] = [TimeStampedValue(self._stamp, value)]
        context = AutoscalingContext(
            deployment_id=deployment,
            deployment_name=name,
            app_name=self.name,
            current_num_replicas=len(replicas),
            target_num_replicas=target,
            running_replicas=replicas,
            total_num_requests=0.0,
            total_queued_requests=queued,
            aggregated_metrics={},
            raw_metrics=raw,
            capacity_adjusted_min_replicas=0,
            capacity_adjusted_max_replicas=4,
            policy_state={},
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=0.0,
            config=self._configs[name],
        )
        answer, state = self._policies[name](context)
        assert state == {}
        assert type(answer) is int
        return answer

    def queue(self, *tokens: int, model: str = "m") -> None:
        assert self.ask("ingress", target=1, stats=[ingress_stats(Waiting(model, count) for count in tokens)]) == 1


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    name = request.node.name
    yield App(name)
    shared._apps.pop(name, None)


def holding(tokens: float, requests: int = 1, kv_tokens: float = 16_000, largest: float = 0.0) -> dict[str, float]:
    return ReplicaFigures(
        kv_tokens=kv_tokens, held_kv_tokens=tokens, largest_kv_tokens=largest, requests=requests
    ).to_stats()


def idle(app: App) -> None:
    app.queue()
    app.ask("dear", target=0)


def test_the_queue_at_the_ingress_brings_up_the_cheapest_pool_from_zero(app: App) -> None:
    app.queue(1_600, 1_600)
    assert [app.ask(name) for name in ("dear", "cheap", "dear")] == [0, 1, 0]


def test_a_request_that_only_the_dear_pool_holds_brings_up_the_dear_pool(app: App) -> None:
    app.ask("cheap"), app.ask("dear")
    app.queue(20_000)
    assert (app.ask("cheap"), app.ask("dear")) == (0, 1)


def test_what_replicas_hold_counts_and_the_rest_goes_to_the_next_pool(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [holding(16_000, requests=10) for _ in range(4)]
    app.queue(*[1_600] * 10)
    app.ask("dear")
    assert app.ask("cheap", target=4, stats=full) == 4
    assert app.ask("dear") == 0, "another pool serves: it waits for its delay"
    later(monkeypatch, UPSCALE_DELAY_S)
    assert app.ask("dear") == 1


def test_another_models_queue_is_nothing_to_this_pool(app: App) -> None:
    app.queue(*[1_600] * 50, model="n")
    app.ask("dear")
    assert (app.ask("cheap"), app.ask("dear")) == (0, 0)


def test_two_apps_do_not_see_each_other(app: App) -> None:
    other = App("another app")
    other.queue(*[1_600] * 50)
    other.ask("dear")
    idle(app)
    assert app.ask("cheap") == 0 and other.ask("cheap") == 4


def test_requests_that_wait_at_handles_count_as_typical_ones(app: App) -> None:
    idle(app)
    assert app.ask("cheap", queued=17.0) == 3


def test_reported_memory_counts_over_the_planned(app: App) -> None:
    app.ask("dear")
    app.queue(*[1_600] * 8)
    assert app.ask("cheap", target=1, stats=[holding(0, 0)]) == 1
    assert app.ask("cheap", target=1, stats=[holding(0, 0, kv_tokens=8_000)]) == 2


def test_idle_replicas_go(app: App) -> None:
    idle(app)
    assert app.ask("cheap", target=2, stats=[holding(0, 0), holding(0, 0)]) == 0


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock goes on."""
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds)


def test_nothing_shrinks_while_the_ingress_is_not_heard(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.ask("dear", target=0)
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert app.ask("cheap", target=1, stats=[holding(0, 0)]) == 1
    assert "cheap stays at 1 replicas: no figures from the ingress" in caplog.text


def test_nothing_shrinks_while_a_running_replica_has_not_reported(app: App, caplog: pytest.LogCaptureFixture) -> None:
    idle(app)
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert app.ask("cheap", target=2, stats=[holding(0, 0), None]) == 2
    assert "no figures from replicas: 1 of cheap" in caplog.text


def test_a_controller_that_has_just_begun_moves_nothing_before_it_saw_every_pool(app: App) -> None:
    app.queue(*[1_600] * 50)
    assert app.ask("dear", target=0) == 0
    assert app.ask("cheap", target=4, stats=[holding(0, 0)] * 4) == 4


def test_a_pool_that_is_never_seen_keeps_others_from_shrinking_but_not_from_growing(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch, shared.FRESH_S + 1)
    app.queue()
    assert app.ask("cheap", target=1, stats=[holding(16_000, requests=10)]) == 2
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert app.ask("cheap", target=1, stats=[holding(0, 0)]) == 1
    assert "nothing is known of dear" in caplog.text


def test_demand_grows_a_pool_even_if_others_are_silent(app: App) -> None:
    app.ask("dear", target=1, stats=[None])
    assert app.ask("cheap", target=1, stats=[holding(16_000, requests=10), None]) == 2


def test_the_log_says_why_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.ask("dear")
    app.queue(1_600)
    with caplog.at_level(logging.INFO, "ray.serve"):
        for _ in range(3):
            app.ask("cheap")
    assert [record.message[:47] for record in caplog.records] == [
        "cheap: 0 -> 1 replicas (of 0 to 4): 1 requests w"[:47]
    ]


def test_a_policy_that_fails_leaves_the_target_and_says_so(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "newest", lambda *_: 1 / 0)
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert app.ask("cheap", target=3) == 3
        assert app.ask("ingress", target=1) == 1
    assert "autoscaling of cheap failed, it stays at 3 replicas: ZeroDivisionError" in caplog.text
    assert "the ingress's queue was not read: ZeroDivisionError" in caplog.text
