"""A fleet of fake engines that configurations are rolled out to, under a load that goes on for as long as it lives."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import psutil
import ray
from ray import serve

from benchmarks.load import Load, Outcome, Request
from benchmarks.rollout_watch import AWAY, Watch
from benchmarks.steady_load import steady
from deployments.config import AppConfig
from deployments.generation import offer_of
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from hybrid_serve.rollout.state import Phase
from hybrid_serve.rollout.wire import GenerationOffer
from hybrid_serve.rollout_lines import ENDS
from tests.cluster.conftest import App, until
from tests.demo_app import app_values

POOLS = {"left": 2, "right": 1}
ROLLOUT = {
    "bake_s": 2.0,
    "min_requests": 5,
    "drain_timeout_s": 5.0,
    # From the order on: a heartbeat, the drain and the plan come before the start.
    "start_timeout_s": 60.0,
    # A machine of two cores that starts replicas beside the load answers unevenly: one request in five that waits for
    # seconds makes the mean a hundred times that of a fake engine. The gates have tests of their own.
    "gates": {"ttft_ratio": 1000.0, "tpot_ratio": 1000.0},
}
ACCEPTANCE = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
REQUESTS_PER_S = 12.0
PHASES = {*get_args(Phase), *ENDS}


def fleet_config(folder: Path, fake: dict[str, Any] | None = None, **engine: Any) -> AppConfig:
    """Two pools, three replicas. `fake`: options of the fake engines; `engine`: engine options."""
    options = {"token_s": 0.01, "acceptance": ACCEPTANCE, **(fake or {})}
    values = app_values(folder, vllm_args=options, **engine)
    del values["pool"], values["engine"]["kv_memory"]
    values["pools"] = [
        {
            "name": name,
            "device": "cpu",
            "num_cpus": 0.1,
            "kv_memory": "48MiB",
            "min_replicas": count,
            "max_replicas": count,
            "health_check_period_s": 1.0,
        }
        for name, count in POOLS.items()
    ]
    return AppConfig.model_validate({**values, "rollout": ROLLOUT})


class Rolling:
    """The deployed app, its planner, and the load on it."""

    def __init__(self, app: App, changed: Callable[..., AppConfig]) -> None:
        """`changed`: the app's configuration with changes."""
        self.app = app
        self.load = Load(app.url, "demo", deadline_s=300)
        self._changed = changed
        self._pools = {pool.name: pool.min_replicas for pool in app.config.pools}

    def ask(self, method: str, *arguments: Any) -> Any:
        """The planner, which may be on its way back.

        What begins a rollout waits first until a planner that was restarted knows the fleet (`SETTLE_S`). To be asked
        once more meanwhile would be another question: the rollout has begun already then.
        """

        def answer() -> tuple[Any] | None:
            try:
                planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
                return (ray.get(getattr(planner, method).remote(*arguments), timeout=90),)
            except ray.exceptions.RayError:
                return None

        return until(answer, seconds=200)[0]

    def known(self) -> dict[str, Any]:
        """What the planner tells of the app now. Raises as Ray does while the planner is away."""
        known: dict[str, Any] = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).rollouts.remote("default"), timeout=10)
        return known["default"]

    def offer(self, **changes: Any) -> tuple[AppConfig, GenerationOffer]:
        config = self._changed(**changes)
        offer = offer_of(config, "default")
        assert isinstance(offer, GenerationOffer), str(offer)
        return config, offer

    def begin(self, *, bake_s: float | None = None, **changes: Any) -> str:
        """A rollout of the fleet's configuration with these changes; its name. `bake_s`: other than configured."""
        config, offer = self.offer(**changes)
        answer = self.ask("begin", offer, config.rollout.options(bake=bake_s), "test")
        assert "started" in answer, answer
        return str(answer["started"])

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        watch = Watch(self.known)
        try:
            yield watch
        finally:
            watch.close()

    def settled(self) -> dict[str, Any]:
        """What is known once no rollout is active and all replicas that the pools have serve one generation."""

        def look() -> dict[str, Any] | None:
            try:
                known = self.known()
            except AWAY:
                return None
            replicas = known["replicas"]
            pools = [each["pool"] for each in replicas]
            whole = {pool: pools.count(pool) for pool in set(pools)} == self._pools and not known["rollout"]
            one = all(each["state"] == "serving" and each["generation"] == known["current"] for each in replicas)
            return known if whole and one else None

        settled: dict[str, Any] = until(look, seconds=200)
        assert settled["bound"] == settled["current"]
        assert self.ask("status")["integrity"] == ""
        return settled

    def passed(self, name: str) -> list[str]:
        """The phases of a rollout that were written into the planner's book, in order, those of a moment too."""
        return [
            event["event"]
            for event in self.ask("history", "default")
            if event["rollout"] == name and event["event"] in PHASES
        ]

    def sent_since(self, since: int) -> list[Outcome]:
        """Requests that ended after there were `since` of them."""
        return self.load.outcomes[since:]

    def failed(self, since: int) -> list[tuple[Any, ...]]:
        """Of those that ended since then, the ones that were not answered completely."""
        return [(o.end, o.status, o.sent_s, o.total_s) for o in self.sent_since(since) if not complete(o)]

    def pid_of(self, replica_id: str) -> int:
        details = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"]
        (pid,) = [r["pid"] for pool in self._pools for r in details[pool]["replicas"] if r["replica_id"] == replica_id]
        return int(pid)

    def controller(self) -> psutil.Process:
        controller = serve.context._get_global_client()._controller
        return psutil.Process(ray.get(controller.get_pid.remote(), timeout=90))  # it may be on its way back


def complete(outcome: Outcome) -> bool:
    """All tokens that were asked for, in order."""
    expected = [f"token{index}" for index in range(outcome.request.max_tokens)]
    return outcome.end == "done" and outcome.text.split() == expected


def chats() -> Iterator[Request]:
    """Streamed and plain, of 5 to 60 tokens, without end."""
    messages = [{"role": "user", "content": "Hello"}]
    for number in itertools.count():
        yield Request(messages=messages, max_tokens=5 + 11 * number % 56, stream=number % 3 != 0)


@contextmanager
def rolling(
    app: App, changed: Callable[..., AppConfig], requests: Iterable[Request], per_second: float
) -> Iterator[Rolling]:
    """Waits until the planner knows the deployed app, and sends requests without end."""
    fleet = Rolling(app, changed)
    until(lambda: fleet.ask("rollouts", "default").get("default"), seconds=200)
    fleet.settled()
    with steady(fleet.load, requests, per_second, seed=1):
        until(lambda: len(fleet.load.outcomes) > 5)
        yield fleet
