"""The fake engine keeps the Engine contract, so that tests on it mean something."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deployments.config import AppConfig
from deployments.engines import make_engine
from hybrid_serve.engine.base import Engine, EngineConfig, EngineStartError
from hybrid_serve.engine.fake import FakeEngine
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.group_need import group_needs
from hybrid_serve.plan.kv_plan import differences
from tests.asgi_client import exchange, http_scope
from tests.demo_app import app_values, demo_offer, demo_pair

CHAT = http_scope("POST", "/v1/chat/completions", {"content-type": "application/json"})


def engine_config(folder: Path, **args: Any) -> EngineConfig:
    pair = demo_pair(AppConfig.model_validate(app_values(folder)))
    inputs = demo_offer(folder).inputs
    plan = decide(inputs).plan
    assert plan is not None
    return EngineConfig(
        model_name="demo",
        target_path=str(folder / "target"),
        drafter_path=str(folder / "draft"),
        target=pair.target,
        drafter=pair.drafter,
        settings=inputs.settings,
        plan=plan,
        engine_args=args,
        needs=group_needs(plan, inputs),
    )


async def started(folder: Path, **args: Any) -> FakeEngine:
    engine = FakeEngine()
    await engine.start(engine_config(folder, **args))
    return engine


def request(**values: Any) -> bytes:
    return json.dumps({"model": "demo", "messages": [], **values}).encode()


async def test_it_reports_its_plan(pair_folder: Path) -> None:
    engine: Engine = FakeEngine()
    config = engine_config(pair_folder)
    assert config.plan is not None
    assert differences(config.plan, await engine.start(config)) == ()


async def test_it_can_report_something_else(pair_folder: Path) -> None:
    config = engine_config(pair_folder, num_blocks=5)
    assert config.plan is not None
    (difference,) = differences(config.plan, await FakeEngine().start(config))
    assert difference == f"num_blocks: planned {config.plan.num_blocks}, got 5"


async def test_it_can_fail_to_start(pair_folder: Path) -> None:
    with pytest.raises(EngineStartError, match="no luck"):
        await FakeEngine().start(engine_config(pair_folder, fail="no luck"))
    with pytest.raises(EngineStartError, match="does not know colour"):
        await FakeEngine().start(engine_config(pair_folder, colour="red"))


async def test_it_answers_models_and_chat(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0)
    models = json.loads((await exchange(engine.app, http_scope("GET", "/v1/models"))).body)
    assert [card["id"] for card in models["data"]] == ["demo"]
    chat = json.loads((await exchange(engine.app, CHAT, request(max_tokens=2))).body)
    assert chat["choices"][0]["message"]["content"] == "token0 token1"


async def test_it_streams_one_message_a_token(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0)
    told = await exchange(engine.app, CHAT, request(max_tokens=3, stream=True))
    assert told.headers["content-type"].startswith("text/event-stream")
    assert len(told.messages) == 1 + 3 + 2 and told.complete
    assert told.body.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_ends_its_request(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.005)
    body = request(max_tokens=10_000, stream=True)
    told = await exchange(engine.app, CHAT, body, leave_when=lambda told: len(told.messages) == 4)
    assert not told.complete
    assert (await engine.stats()).running == 0


async def test_running_requests_are_counted(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.005)
    task = asyncio.ensure_future(exchange(engine.app, CHAT, request(max_tokens=20)))
    await asyncio.sleep(0.02)
    assert (await engine.stats()).running == 1
    await task
    assert (await engine.stats()).running == 0


async def test_running_requests_hold_the_blocks_of_their_plan(pair_folder: Path) -> None:
    config = engine_config(pair_folder, token_s=0.005)
    engine = await started(pair_folder, token_s=0.005)
    tasks = [asyncio.ensure_future(exchange(engine.app, CHAT, request(max_tokens=64))) for _ in range(3)]
    await asyncio.sleep(0.02)
    stats = await engine.stats()
    assert config.plan is not None
    each = sum(need.blocks(66) for need in config.needs)
    assert stats.running == 3 and stats.kv_usage == pytest.approx(3 * each / config.plan.num_blocks)
    await asyncio.gather(*tasks)
    stats = await engine.stats()
    assert (stats.running, stats.kv_usage, stats.finished_requests) == (0, 0.0, 3)
    assert stats.finished_generation_tokens == stats.generation_tokens == 3 * 64


async def test_requests_beyond_its_sequences_wait_in_order(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.003)
    most = engine_config(pair_folder).settings.max_num_seqs
    tasks = [asyncio.ensure_future(exchange(engine.app, CHAT, request(max_tokens=5))) for _ in range(most + 3)]
    await asyncio.sleep(0.005)
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (most, 3)
    tasks[most].cancel()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(each, BaseException) for each in told) == 1
    stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.finished_requests) == (0, 0, most + 2)


async def test_it_counts_prompts_whose_beginning_it_has_seen(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0, prefix_caching=True)
    assert engine.reuses_prefixes and not (await started(pair_folder)).reuses_prefixes
    hits = []
    for question in ("one", "two"):
        message = {"role": "user", "content": "x" * 2000 + question}
        await exchange(engine.app, CHAT, request(max_tokens=1, messages=[message]))
        hits.append((await engine.stats()).prefix_hits)
    assert hits[0] == 0 and 400 <= hits[1] <= 520


async def test_a_prompt_longer_than_the_model_takes_is_refused(pair_folder: Path) -> None:
    engine = await started(pair_folder)
    told = await exchange(engine.app, CHAT, request(messages=[{"role": "user", "content": "x" * 9000}]))
    assert told.status == 400 and b"maximum context length is 2048 tokens" in told.body


@pytest.mark.parametrize("stream", [True, False])
async def test_when_it_dies_its_requests_end_with_an_error(pair_folder: Path, stream: bool) -> None:
    engine = await started(pair_folder, token_s=0.003)
    task = asyncio.ensure_future(exchange(engine.app, CHAT, request(max_tokens=2000, stream=stream)))
    await asyncio.sleep(0.03)
    engine.die("its core was killed")
    told = await task
    assert told.status == (200 if stream else 500) and b"its core was killed" in told.body and told.complete
    assert told.body.endswith(b"data: [DONE]\n\n") is stream
    assert (await exchange(engine.app, CHAT, request(stream=stream))).status == 500
    assert (await engine.stats()).running == 0


async def test_it_is_unhealthy_once_stopped(pair_folder: Path) -> None:
    engine = await started(pair_folder)
    await engine.check_health()
    await engine.stop()
    with pytest.raises(EngineStartError):
        await engine.check_health()


async def test_it_can_be_made_sick(pair_folder: Path) -> None:
    engine = await started(pair_folder)
    assert (await exchange(engine.app, http_scope("POST", "/fake/sick"))).status == 200
    with pytest.raises(EngineStartError, match="made sick"):
        await engine.check_health()


def test_engines_are_made_by_name() -> None:
    assert isinstance(make_engine("fake"), FakeEngine)
    with pytest.raises(ValueError, match="vllm, fake"):
        make_engine("other")


async def test_it_accepts_drafts_as_it_is_told(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0, acceptance=[0.8, 0.5, 0.2])
    for _ in range(4):
        await exchange(engine.app, CHAT, request(max_tokens=100))
    stats = await engine.stats()
    assert stats.drafts == 160 and stats.accepted_per_position == (128, 80, 32, 0, 0, 0, 0), "400 tokens, 2.5 a draft"
    assert stats.mean_acceptance_length == 2.5
    assert (await (await started(pair_folder)).stats()).drafts == 0


async def test_it_measures_its_latencies(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.01, prefill_s=0.1)
    for values in ({"max_tokens": 5, "stream": True}, {"max_tokens": 5}, {"max_tokens": 1}):
        await exchange(engine.app, CHAT, request(**values))
    stats = await engine.stats()
    assert (stats.ttft_count, stats.tpot_count) == (3, 2)
    assert 0.11 <= stats.ttft_sum_s / 3 < 0.2 and 0.01 <= stats.tpot_sum_s / 2 < 0.03


async def test_it_answers_some_requests_with_an_error(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0, error_rate=0.25)
    told = [(await exchange(engine.app, CHAT, request(max_tokens=1))).status for _ in range(8)]
    assert told == [200, 200, 200, 500] * 2
    await engine.check_health()


async def test_it_can_die_after_a_while(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.003, die_after_s=0.05)
    await engine.check_health()
    told = await exchange(engine.app, CHAT, request(max_tokens=2000, stream=True))
    assert b"it died after 0.05 s" in told.body
    with pytest.raises(EngineStartError, match="it died"):
        await engine.check_health()


async def test_it_can_fail_to_start_for_as_long_as_a_file_exists(pair_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken"
    file.touch()
    with pytest.raises(EngineStartError, match="broken exists"):
        await started(pair_folder, fail_while=str(file))
    file.unlink()
    await started(pair_folder, fail_while=str(file))
