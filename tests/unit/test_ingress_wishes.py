"""What an ingress does in the background: it tells what it was deployed with, and asks for what is desired."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from deployments.binding import BoundGeneration
from deployments.config import AppConfig
from deployments.desired import Desired
from deployments.forwarder import Forwarder
from deployments.ingress import Ingress
from deployments.limits import limits_of
from deployments.registration import Registration
from hybrid_serve.rollout.wire import GenerationOffer
from tests.service_of_pools import Pool, service_of

OFFER = GenerationOffer(app="", digest="d" * 16, config={}, pools={}, built_at=1.0)


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"it did not come about: {condition}")


class Planner:
    """Takes what it is told, after `failures` times of not doing so."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.told: list[GenerationOffer] = []
        self.reminded: list[GenerationOffer] = []
        self.forgotten: list[GenerationOffer] = []
        self.bound: BoundGeneration | None | Exception = None
        self.looks = 0

    async def tell(self, offer: GenerationOffer, known: bool) -> bool:
        if self.failures:
            self.failures -= 1
            return False
        (self.reminded if known else self.told).append(offer)
        return True

    def look(self, app: str) -> BoundGeneration | None:
        self.looks += 1
        if isinstance(self.bound, Exception):
            raise self.bound
        return self.bound

    def registers(self, bound: BoundGeneration) -> Registration:
        return Registration(
            "app",
            bound,
            tell=self.tell,
            look=self.look,
            history=self.forgotten.append,
            again_s=0.001,
            look_period_s=0.002,
        )


async def test_what_ray_serve_deployed_is_told_until_it_is_taken_and_then_as_known() -> None:
    planner = Planner(failures=3)
    registration = planner.registers(BoundGeneration(OFFER, by_rollout=False))
    await until(lambda: planner.looks > 8)
    registration.stop()
    assert planner.told == [replace(OFFER, app="app")] == planner.forgotten
    assert set(map(str, planner.reminded)) == {str(replace(OFFER, app="app"))}


async def test_what_a_rollout_deployed_is_told_as_known() -> None:
    planner = Planner()
    registration = planner.registers(BoundGeneration(OFFER, by_rollout=True))
    await until(lambda: planner.looks > 3)
    registration.stop()
    assert planner.told == [] == planner.forgotten
    assert planner.reminded[0] == replace(OFFER, app="app"), "the app may have been taken for deleted"


async def test_a_generation_that_is_bound_later_without_a_restart_is_told_too() -> None:
    planner = Planner()
    registration = planner.registers(BoundGeneration(OFFER, by_rollout=True))
    planner.bound = ConnectionError("Ray Serve's controller starts again")
    await until(lambda: planner.looks > 3)
    newer = replace(OFFER, digest="e" * 16, built_at=2.0)
    planner.bound = BoundGeneration(newer, by_rollout=False)
    await until(lambda: planner.told)
    registration.stop()
    assert planner.told == [replace(newer, app="app")]


class Requests:
    """Answers of `request_desired`, one after the other; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, app: str, desired: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(desired)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer
        return found


def desired(requests: Requests) -> Desired:
    return Desired("app", ask=requests, again_s=0.001, busy_s=0.001)


WISH = {"config": {"limits": {"retries": 1}}}


async def test_a_wish_is_asked_for_once_however_often_it_is_set() -> None:
    requests = Requests({"started": "r1", "generation": 2})
    wishes = desired(requests)
    for _ in range(3):
        wishes.set(WISH)
        await asyncio.sleep(0.01)
    assert requests.asked == [WISH]


async def test_a_wish_is_asked_for_until_it_is_answered() -> None:
    requests = Requests(ConnectionError("no planner"), {"busy": "rollout r1"}, {"attached": "r2"})
    desired(requests).set(WISH)
    await until(lambda: len(requests.asked) == 3)
    await asyncio.sleep(0.02)
    assert len(requests.asked) == 3


async def test_a_new_wish_ends_the_old_ones_waiting() -> None:
    requests = Requests({"busy": "rollout r1"})
    wishes = desired(requests)
    wishes.set(WISH)
    await until(lambda: len(requests.asked) > 2)
    other = {"config": {}}
    wishes.set(other)
    await asyncio.sleep(0.01)
    seen = len(requests.asked)
    await until(lambda: len(requests.asked) > seen + 2)
    assert all(asked == other for asked in requests.asked[seen:])
    wishes.set(None)
    await asyncio.sleep(0.01)
    seen = len(requests.asked)
    await asyncio.sleep(0.02)
    assert len(requests.asked) == seen


async def test_a_refused_wish_is_not_asked_for_again() -> None:
    requests = Requests({"refused": "pool a: too little memory", "problems": []})
    desired(requests).set(WISH)
    await asyncio.sleep(0.02)
    assert len(requests.asked) == 1


def bare_ingress(**pools: Pool) -> Ingress:
    """An ingress without Ray Serve around it."""
    ingress = Ingress.__new__(Ingress)
    service = service_of("demo", **pools)
    ingress._app, ingress._id, ingress._services, ingress._limits = "app", "i1", {"demo": service}, None
    ingress._forwarder = Forwarder(ingress._services)
    ingress._desired = desired(Requests({"started": "r1"}))
    return ingress


LIMITS = {name: getattr(limits_of(AppConfig()), name) for name in limits_of(AppConfig()).__dataclass_fields__}


async def test_limits_are_taken_in_place_and_stay_where_they_are_left_out() -> None:
    ingress = bare_ingress(a=Pool(None))
    await ingress.reconfigure({"limits": {**LIMITS, "max_body": 7, "max_queue_s": 3.0}})
    await ingress.reconfigure({"desired": None})
    await ingress.reconfigure(
        {
            "services": {
                "demo": ["a"],
            }
        }
    )
    assert ingress._forwarder.max_body == 7
    assert ingress._services["demo"].admission.max_queue_s == 3.0


@pytest.mark.parametrize(
    "wrong",
    [None, 3, "text", {"limits": {"max_body": 1}}, {"limits": 3}, {"services": 3}, {"services": {}},
     {"services": {"demo": 3}}, {"desired": 3}, {"desired": {}}, {"desired": {"config": 3}}],
    ids=str,
)  # fmt: skip
async def test_what_is_no_user_config_is_ignored_and_never_raises(wrong: Any) -> None:
    ingress = bare_ingress(a=Pool(None))
    await ingress.reconfigure({"limits": LIMITS})
    await ingress.reconfigure(wrong)
    assert ingress._forwarder.max_body == LIMITS["max_body"]
    assert list(ingress._services) == ["demo"] and ingress._services["demo"].pools == ("a",)


async def test_pools_and_models_come_and_go_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []

    def handle(pool: str, app_name: str) -> str:
        made.append((pool, app_name))
        return pool

    monkeypatch.setattr("deployments.ingress.DeploymentHandle", handle)
    monkeypatch.setattr("deployments.ingress._calls", lambda handle: handle)
    ingress = bare_ingress(a=Pool(None))
    await ingress.reconfigure({"limits": {**LIMITS, "max_queue_s": 3.0}})
    await ingress.reconfigure({"services": {"demo": ["b", "a"], "other": ["c"]}})
    assert made == [("b", "app"), ("c", "app")]
    assert ingress._services["demo"].pools == ("a", "b") and ingress._services["other"].pools == ("c",)
    assert (
        ingress._services["other"].admission.max_queue_s == 3.0 and ingress._services["other"].board.ingress_id == "i1"
    )
    await ingress.reconfigure({"services": {"demo": ["b"]}})
    assert list(ingress._services) == ["demo"] == list(ingress._forwarder._services)
    assert "a" in ingress._services["demo"].pools, "its replicas may still have answers to end"
    await ingress.reconfigure({"services": {"demo": ["a", "b"]}})
    assert len(made) == 2, "handles that are there are used again"
