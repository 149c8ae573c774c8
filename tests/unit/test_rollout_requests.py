"""What is asked of the planner for a configuration, and what is refused before it is asked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deployments import rollout_requests
from deployments.config import AppConfig
from deployments.generation import offer_of
from deployments.rollout_requests import SERVE_DEPLOY, request, request_desired
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.rollout.state import Result
from hybrid_serve.rollout.wire import GenerationOffer, RolloutOptions
from tests.demo_app import app_values
from tests.unit.facts_checkpoints import safetensors

GIB = 2**30


class Planner:
    """Answers as the planner actor does. `runs`: the current generation; `state`: of the app in `rollouts`."""

    def __init__(self, runs: GenerationOffer | None = None, **state: Any) -> None:
        self.runs = runs
        self.state = state
        self.devices: dict[str, list[DeviceFacts]] = {}
        self.begun: list[tuple[GenerationOffer, RolloutOptions, str, str]] = []
        self.answer: dict[str, Any] = {"started": "r1", "generation": 2}

    def measured(self, app: str) -> dict[str, list[DeviceFacts]]:
        return self.devices

    def generation(self, app: str, number: int | None) -> dict[str, Any]:
        if self.runs is None:
            raise ValueError("no generation is known")
        return {"number": 1, "digest": self.runs.digest, "pools": dict.fromkeys(self.runs.pools)}

    def pool_config(self, app: str, digest: str, pool: str) -> Any:
        assert self.runs is not None and digest == self.runs.digest
        return self.runs.pools[pool].config

    def rollouts(self, app: str) -> dict[str, Any]:
        return {app: self.state} if self.state else {}

    def begin(self, offer: GenerationOffer, options: RolloutOptions, actor: str, reason: str) -> dict[str, Any]:
        self.begun.append((offer, options, actor, reason))
        return self.answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`asked(planner)` puts it in the place of the cluster's, and its store."""

    def put(planner: Planner) -> Planner:
        kept: dict[str, bytes] = {}
        monkeypatch.setattr(rollout_requests, "planner_handle", lambda: planner)
        monkeypatch.setattr(rollout_requests, "_ask", lambda _, method, *given: getattr(planner, method)(*given))
        monkeypatch.setattr(rollout_requests, "_internal_kv_get", lambda key, namespace: kept.get(key))
        monkeypatch.setattr(
            rollout_requests, "_internal_kv_put", lambda key, value, overwrite, namespace: kept.update({key: value})
        )
        return planner

    return put


def config_of(folder: Path, **engine: Any) -> AppConfig:
    return AppConfig.model_validate(app_values(folder, **engine))


def offered(config: AppConfig) -> GenerationOffer:
    offer = offer_of(config, "app")
    assert isinstance(offer, GenerationOffer)
    return offer


def test_a_configuration_is_planned_and_handed_to_the_planner(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner(offered(config_of(pair_folder))))
    config, options = config_of(pair_folder, num_speculative_tokens=5), RolloutOptions(canary="2")
    assert request(config, "app", options, "me", "faster") == {"started": "r1", "generation": 2}
    ((offer, told, actor, reason),) = planner.begun
    assert (offer.app, offer.digest, told, actor, reason) == ("app", offered(config).digest, options, "me", "faster")


def test_it_is_planned_for_the_smallest_device_that_a_pool_measured(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner())
    values = app_values(pair_folder)
    values["pool"] = {"name": "gpu", "device": "cuda", "accelerator_type": "H200"}
    del values["engine"]["kv_memory"]
    tokens = []
    for sizes in ((), (40,), (80, 20, 60)):
        planner.devices = {
            "gpu": [DeviceFacts(kind="cuda", name="NVIDIA H200", memory_bytes=size * GIB, sm=90) for size in sizes]
        }
        request(AppConfig.model_validate(values), "app", RolloutOptions(), "me")
        tokens.append(planner.begun[-1][0].pools["gpu"].kv_tokens)
    assert tokens[0] > tokens[1] > tokens[2]


def test_what_can_not_be_planned_is_refused_with_everything_that_is_wrong(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner())
    answer = request(config_of(pair_folder, kv_memory="1MiB"), "app", RolloutOptions(), "me")
    assert "pool cpu" in answer["refused"] and answer["problems"][0]["pools"] == ("cpu",)
    assert planner.begun == [] and json.dumps(answer)


def test_a_checkpoint_that_was_changed_in_place_is_refused(pair_folder: Path, tmp_path: Path, asked: Any) -> None:
    shutil.copytree(pair_folder, tmp_path / "pair")
    config = config_of(tmp_path / "pair")
    planner = asked(Planner(offered(config)))
    (tmp_path / "pair" / "draft" / "model.safetensors").write_bytes(safetensors({"w": b"new!"}))
    answer = request(config, "app", RolloutOptions(), "me")
    assert "was changed in place" in answer["refused"] and answer["problems"][0]["model"] == "demo"
    assert planner.begun == []


def rolled_back(config: AppConfig) -> dict[str, Any]:
    """State of an app whose last rollout, to this configuration, was rolled back."""
    generations = [{"number": 1, "digest": "1" * 16}, {"number": 2, "digest": offered(config).digest}]
    ended: Result = "rolled back"
    last = {"to": 2, "phase": ended, "failure": "gate ttft of pool cpu"}
    return {"current": 1, "generations": generations, "rollout": None, "last": last}


def test_a_file_does_not_get_what_was_rolled_back_but_a_hand_does(pair_folder: Path, asked: Any) -> None:
    config = config_of(pair_folder)
    planner = asked(Planner(**rolled_back(config)))
    answer = request(config, "app", RolloutOptions(), SERVE_DEPLOY)
    assert "generation 2 was rolled back: gate ttft of pool cpu" in answer["refused"] and planner.begun == []
    other = config_of(pair_folder, num_speculative_tokens=5)
    assert request(other, "app", RolloutOptions(), SERVE_DEPLOY)["started"]
    assert request(config, "app", RolloutOptions(), "me")["started"]


def wish(folder: Path, **engine: Any) -> dict[str, Any]:
    return {"config": {**app_values(folder, **engine), "rollout": {"canary": "3"}}, "reason": "because"}


def test_a_files_wish_is_asked_for_once_with_its_own_options(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner())
    assert request_desired("app", wish(pair_folder))["started"] == "r1"
    assert "unchanged" in request_desired("app", wish(pair_folder)), "an ingress that starts again"
    ((_, options, actor, reason),) = planner.begun
    assert (options.canary, actor, reason) == ("3", SERVE_DEPLOY, "because")
    request_desired("app", wish(pair_folder, num_speculative_tokens=5))
    request_desired("app", wish(pair_folder))
    assert len(planner.begun) == 3, "a file that goes back wants what it wanted before again"


def test_a_wish_that_is_refused_is_not_taken_for_answered(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner())
    planner.answer = {"refused": "the model would be without a replica"}
    for _ in range(2):
        assert request_desired("app", wish(pair_folder)) == planner.answer


def test_a_wish_waits_for_a_rollout_that_is_on_its_way(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner(rollout={"name": "r7"}))
    planner.answer = {"refused": "rollout r7 to generation 3 is in its canary phase"}
    assert request_desired("app", wish(pair_folder)) == {"busy": planner.answer["refused"]}
    planner.answer, planner.state = {"started": "r8"}, {}
    assert request_desired("app", wish(pair_folder)) == {"started": "r8"}


def test_a_wish_waits_for_the_planner_to_know_that_its_app_is_deployed(pair_folder: Path, asked: Any) -> None:
    """The ingress's word of it may have failed, and comes again after a while."""
    config = config_of(pair_folder, num_speculative_tokens=5)
    digest = offered(config).digest
    back = {"last": {"phase": "rolled back", "to": 2}, "generations": [{"number": 2, "digest": digest}]}
    planner = asked(Planner(deployed=False, **back))
    wish = {"config": config.model_dump(mode="json", exclude_unset=True)}
    planner.answer = {"refused": "app app is not deployed", "deployed": False}
    assert request_desired("app", wish) == {"busy": "app app is not deployed", "soon": True}
    planner.answer = {"started": "r1", "generation": 2}
    assert request_desired("app", wish) == planner.answer


def test_a_wish_that_is_no_configuration_is_refused_with_its_mistakes(pair_folder: Path, asked: Any) -> None:
    planner = asked(Planner())
    answer = request_desired("app", {"config": {"engin": {}, "limits": {"retries": -1}}})
    assert "engin: unknown key; did you mean engine" in answer["refused"] and "limits.retries" in answer["refused"]
    assert planner.begun == []
