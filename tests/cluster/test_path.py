"""The request path on a real Ray, with a fake engine: what is forwarded, what is refused, what is aborted."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from deployments.config import AppConfig
from tests.cluster.conftest import App, chat, leave_after_first_event, until
from tests.cluster.leaving import leave_while_it_runs
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster


def config_of(folder: Path, pool: dict[str, Any] | None = None, **fake: Any) -> AppConfig:
    values = app_values(folder, vllm_args=fake)
    values["pool"].update(pool or {})
    values["limits"] = {"max_body": "100KiB"}
    return AppConfig.model_validate(values)


@pytest.fixture(scope="module")
def app(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    with deployed(config_of(pair_folder, token_s=0.01)) as app:
        yield app


def test_models_and_chat_through_the_openai_client(app: App) -> None:
    assert [model.id for model in app.openai.models.list()] == ["demo"]
    answer = app.openai.chat.completions.create(**chat(max_tokens=3))
    assert answer.choices[0].message.content == "token0 token1 token2"


def test_a_stream_comes_token_by_token(app: App) -> None:
    stream = app.openai.chat.completions.create(**chat(max_tokens=5, stream=True))
    assert [chunk.choices[0].delta.content for chunk in stream] == [f"token{i} " for i in range(5)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(app: App, stream: bool) -> None:
    body = chat(max_tokens=2000, stream=stream)
    finished = app.stats()["engine"]["finished_requests"]
    if stream:
        leave_after_first_event(f"{app.url}/v1/chat/completions", body)
    else:
        leave_while_it_runs(app, body)
    until(lambda: app.running() == 0, seconds=15)
    assert app.stats()["engine"]["finished_requests"] == finished, "it did not run to its end"


def test_an_unknown_model_is_not_found(app: App) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist") as caught:
        app.openai.chat.completions.create(**(chat() | {"model": "other"}))
    assert caught.value.param == "model"


@pytest.mark.parametrize("body", [b"", b"{not json", b"[]"])
def test_a_malformed_body_is_answered_by_the_engines_app(app: App, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{app.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == 400


def test_a_body_over_the_limit_is_413(app: App) -> None:
    answer = httpx.post(f"{app.url}/v1/chat/completions", content=b"x" * 200_000)
    assert answer.status_code == 413 and answer.json()["error"]["type"] == "BadRequestError"


def test_an_unknown_path_is_answered_by_the_engines_app(app: App) -> None:
    answer = httpx.get(f"{app.url}/nowhere")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_the_replica_says_what_it_does_in_order(app: App) -> None:
    lines = app.cluster.replica_log("cpu").splitlines()  # of this replica last
    phases = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in PHASES]
    assert phases[-len(PHASES) :] == list(PHASES)
    plan = [line for line in lines if line.startswith("KV plan: ")][-1]
    assert plan.endswith("5 groups, predicted = actual") and " tokens in 1.0 GiB (stock vLLM 0.29.0: " in plan


PHASES = ("facts", "plan", "weights", "engine", "verify")


def test_autoscaling_is_told_what_the_plan_holds(app: App) -> None:
    details = serve.status().applications["default"].deployments["cpu"]
    assert details.status == "HEALTHY"
    handle = serve.get_deployment_handle("cpu", "default")
    assert handle is not None
    config = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"]["cpu"]
    options = config["deployment_config"]
    assert options["max_ongoing_requests"] == 28
    assert options["autoscaling_config"]["target_ongoing_requests"] == pytest.approx(12.8)


def test_a_replica_that_dies_in_a_stream_ends_it_with_an_error(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    with deployed(config_of(pair_folder, {"name": "dying"}, token_s=0.5, die_after_tokens=3)) as app:
        # The third token has half a second to get out before the process ends, without a flush.
        with httpx.stream("POST", f"{app.url}/v1/chat/completions", json=chat(stream=True), timeout=30) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert error["code"] == 502 and "failed" in error["message"]
        assert len(lines) == 3 + 2


def test_a_replica_whose_engine_is_sick_is_replaced(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> None:
    with deployed(config_of(pair_folder, {"name": "sick", "health_check_period_s": 0.5})) as app:
        before = app.stats()["replica_id"]
        assert httpx.post(f"{app.url}/fake/sick").status_code == 200
        until(lambda: [e["replica_id"] for e in app.planned() if e["state"] == "running"] not in ([before], []))
        assert app.openai.chat.completions.create(**chat(max_tokens=1))


def test_an_engine_unlike_its_plan_serves_and_is_told_as_a_mismatch(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    with deployed(config_of(pair_folder, {"name": "unlike"}, num_blocks=5)) as app:
        (entry,) = until(lambda: [entry for entry in app.planned() if entry["report"]])
        assert entry["state"] == "mismatch" and entry["differences"][0].endswith("got 5")
        assert "predicted != actual: num_blocks" in app.cluster.replica_log("unlike")
        assert app.openai.chat.completions.create(**chat(max_tokens=1))


def test_an_engine_that_does_not_start_fails_the_deployment_with_its_reason(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    config = config_of(pair_folder, {"name": "failing", "start_attempts": 1}, fail="no luck today")
    with pytest.raises(RuntimeError, match="failing"), deployed(config):
        pass
    assert "EngineStartError: no luck today" in serve.status().applications["default"].deployments["failing"].message
    serve.delete("default")
