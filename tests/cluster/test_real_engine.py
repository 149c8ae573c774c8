"""The demo as a user gets it: vLLM on the shipped pair behind Ray Serve. One engine for the whole file."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from benchmarks.local_fleet import engine_cores_of
from deployments.config import AppConfig
from deployments.loading import load_config
from hybrid_serve.demo.corpus import held_out_prompts
from tests.cluster.conftest import App, chat, leave_after_first_event, pids_of, until
from tests.cluster.leaving import leave_while_it_runs
from tests.prometheus import of_pool

pytestmark = pytest.mark.cluster

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def app(deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    overrides = {
        "pool.max_replicas": 1,
        "pool.health_check_period_s": 1.0,
        "limits.max_body": "1MiB",
        "limits.max_queue_s": 2.0,
    }
    with deployed(load_config(None, overrides)) as app:
        yield app


PROMPT = held_out_prompts(1, seed=3)[0].text


def test_predicted_is_actual_and_more_than_stock(app: App) -> None:
    (entry,) = until(lambda: [entry for entry in app.planned() if entry["report"]])
    assert entry["state"] == "running" and entry["differences"] == []
    assert entry["report"]["num_blocks"] == entry["predicted_num_blocks"] > 0
    assert entry["report"]["kv_tokens"] == entry["predicted_kv_tokens"] > entry["stock_kv_tokens"] > 0
    tokens, stock = entry["report"]["kv_tokens"], entry["stock_kv_tokens"]
    assert f"KV plan: {tokens:,} tokens in 1.0 GiB (stock vLLM 0.29.0: {stock:,}, +" in app.cluster.replica_log("cpu")


def test_models_chat_and_completions(app: App) -> None:
    (model,) = app.openai.models.list().data
    assert model.id == "demo" and model.max_model_len == 2048
    answer = app.openai.chat.completions.create(**chat(max_tokens=16, temperature=0))
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 16
    text = app.openai.completions.create(model="demo", prompt=PROMPT, max_tokens=16, temperature=0).choices[0].text
    assert text


def test_a_stream_says_the_same_as_a_whole_answer(app: App) -> None:
    request = chat(max_tokens=48, temperature=0) | {"messages": [{"role": "user", "content": "Count from 1 to 9."}]}
    whole = app.openai.chat.completions.create(**request).choices[0].message.content
    chunks = list(app.openai.chat.completions.create(**request, stream=True))
    assert len(chunks) > 2
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_the_drafters_guesses_are_accepted(app: App) -> None:
    app.openai.completions.create(model="demo", prompt=PROMPT, max_tokens=64, temperature=0)
    stats = app.stats()["engine"]
    assert stats["accepted_tokens"] > 0 and len(stats["accepted_per_position"]) == 7


def test_how_much_is_accepted_shows_at_the_metrics_endpoint(app: App) -> None:
    app.openai.completions.create(model="demo", prompt=PROMPT, max_tokens=64, temperature=0)
    stats = app.stats()["engine"]
    mean = 1 + stats["accepted_tokens"] / stats["drafts"]
    until(lambda: [each.value for each in of_pool("cpu", "mean_acceptance_length")] == [pytest.approx(mean)])
    assert mean > 1 and [each.value for each in of_pool("cpu", "accepted_tokens")] == [stats["accepted_tokens"]]


def test_what_vllm_adds_to_the_api_is_there(app: App) -> None:
    tokens = httpx.post(f"{app.url}/tokenize", json={"model": "demo", "prompt": "to be"}).json()["tokens"]
    text = httpx.post(f"{app.url}/detokenize", json={"model": "demo", "tokens": tokens}).json()["prompt"]
    assert text == "to be"
    assert httpx.get(f"{app.url}/version").json() == {"version": "0.29.0"}
    assert httpx.get(f"{app.url}/health").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(app: App, stream: bool) -> None:
    # Hot sampling, so that hardly a guess is accepted: no machine is through with it before the client has left.
    body = chat(max_tokens=1900, ignore_eos=True, temperature=2.0, stream=stream)
    finished = app.stats()["engine"]["finished_requests"]
    if stream:
        leave_after_first_event(f"{app.url}/v1/chat/completions", body)
    else:
        leave_while_it_runs(app, body)
    until(lambda: app.running() == 0, seconds=15)
    assert app.stats()["engine"]["finished_requests"] == finished, "it did not run to its end"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", JSON, 400),
        (b"{not json", JSON, 400),
        (b"[]", JSON, 400),
        (b'{"model": "other", "messages": []}', JSON, 404),
        (b'{"model": "demo"}', JSON, 400),
        (b'{"model": "demo", "messages": [], "max_tokens": "many"}', JSON, 400),
        (json.dumps(chat(max_tokens=5000)).encode(), JSON, 400),
        (json.dumps(chat(max_tokens=-1)).encode(), JSON, 400),
        (b"x" * (2**20 + 1), JSON, 413),
    ],
    ids=["empty", "malformed", "list", "model", "no messages", "type", "too long", "negative", "body"],
)
def test_a_bad_request_is_an_openai_error(app: App, content: bytes, headers: dict[str, str], status: int) -> None:
    answer = httpx.post(f"{app.url}/v1/chat/completions", content=content, headers=headers, timeout=20)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status and error["message"] and error["type"]


def test_an_unknown_model_is_refused_in_the_engines_own_words(app: App) -> None:
    """The ingress answers it; asked for the card of the same model, vLLM says the same."""
    with pytest.raises(openai.NotFoundError) as ours:
        app.openai.chat.completions.create(**(chat() | {"model": "other"}))
    error = ours.value.body
    assert isinstance(error, dict)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert error["message"] == "The model `other` does not exist."


def test_replicas_measure_what_requests_need(app: App) -> None:
    engine = app.stats()["engine"]
    assert engine["finished_requests"] > 0 and engine["generation_tokens"] >= engine["finished_generation_tokens"] > 0
    assert engine["prompt_tokens"] >= engine["finished_prompt_tokens"] > 0
    assert app.stats()["reserved"] == {}


@pytest.mark.timeout(600)
def test_a_killed_engine_core_ends_its_stream_and_costs_nothing_but_503_until_a_replica_is_back(app: App) -> None:
    """The last test of this file: its engine is gone after it."""
    (replica,) = pids_of("cpu")
    (core,) = engine_cores_of(psutil.Process(replica))
    body = chat(max_tokens=1900, ignore_eos=True, stream=True)
    with httpx.stream("POST", f"{app.url}/v1/chat/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        core.kill()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and json.loads(rest[-2].removeprefix("data: "))["error"]["code"] >= 500
    killed = time.monotonic()
    told = []
    while not told or told[-1] != 200:
        assert time.monotonic() - killed < 240, f"no replica is back: {told}"
        answer = httpx.post(f"{app.url}/v1/chat/completions", json=chat(max_tokens=4), timeout=20)
        told.append(answer.status_code)
        assert answer.status_code == 200 or int(answer.headers["retry-after"]) >= 1
    assert set(told) <= {200, 503}
    print(f"a killed engine core: served again after {time.monotonic() - killed:.1f} s")
