"""What a request is estimated to need, and what stands for its beginning."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.routing.need import IMAGE_TOKENS, NO_KV, Estimates, generates, need_of
from deployments.routing.prefix import CHUNK_BYTES, MOST_CHUNKS, MOST_HOLDERS, PrefixIndex, chained_hashes
from hybrid_serve.plan.capacity import request_blocks
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.group_need import GroupNeed, group_needs
from tests.routing_fleet import facts
from tests.strategies import planning_problems

ESTIMATES = Estimates(bytes_per_token=4.0, output_tokens=100.0)


def chat(*contents: Any, **other: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": content} for content in contents], **other}


@settings(max_examples=60, deadline=None)
@given(planning_problems(), st.integers(1, 8192))
def test_a_routers_blocks_are_the_plans(inputs: Any, context: int) -> None:
    plan = decide(inputs).plan
    if plan is None:
        return
    context = min(context, inputs.settings.max_model_len)
    needs = group_needs(plan, inputs)
    assert sum(need.blocks(context) for need in needs) == request_blocks(plan, inputs, context)
    travelled = tuple(GroupNeed.from_json(json.loads(json.dumps(need.to_json()))) for need in needs)
    replica = facts(plan.num_blocks, groups=travelled, max_model_len=inputs.settings.max_model_len)
    assert replica.blocks(context) == request_blocks(plan, inputs, context)


def test_the_prompt_is_counted_by_its_text_and_the_output_by_what_is_asked() -> None:
    need = need_of(chat("x" * 4000, max_tokens=20), ESTIMATES)
    assert 1000 <= need.prompt_tokens <= 1005 and need.output_tokens == 20 and need.sequences == 1


def test_an_output_without_a_limit_or_with_a_high_one_is_the_measured_mean() -> None:
    assert need_of(chat("x"), ESTIMATES).output_tokens == 100
    assert need_of(chat("x", max_completion_tokens=5000), ESTIMATES).output_tokens == 100


def test_token_ids_are_counted_exactly() -> None:
    need = need_of({"model": "demo", "prompt": list(range(777))}, ESTIMATES)
    assert need.prompt_tokens == 777 and need.prompt_bytes == 0


def test_several_prompts_and_choices_are_sequences() -> None:
    need = need_of({"prompt": ["a" * 400, "b" * 800], "n": 3}, ESTIMATES)
    assert need.sequences == 6 and need.prompt_tokens == 200 and need.prompt_bytes == 3600


def test_an_image_counts_as_tokens_and_not_by_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    need = need_of(chat([{"type": "text", "text": "what is it?"}, image]), ESTIMATES)
    assert IMAGE_TOKENS < need.prompt_tokens < IMAGE_TOKENS + 10 and need.prompt_bytes == 0


@pytest.mark.parametrize("body", [{}, {"messages": 3}, {"messages": [3]}, {"prompt": None}, {"messages": [], "n": -1}])
def test_what_is_malformed_counts_as_little(body: dict[str, Any]) -> None:
    need = need_of(body, ESTIMATES)
    assert need.prompt_tokens == 1 and need.sequences == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("POST", "/v1/chat/completions", chat("x"), True),
        ("POST", "/v1/responses", {"input": "x"}, True),
        ("POST", "/v1/embeddings", {"input": ["x"]}, True),
        ("POST", "/tokenize", {"prompt": "x"}, False),
        ("POST", "/v1/chat/completions/render", chat("x"), False),
        ("POST", "/v1/chat/completions", None, False),
        ("GET", "/v1/models", None, False),
    ],
)
def test_only_what_makes_the_engine_hold_kv_needs_room(method: str, path: str, body: Any, answer: bool) -> None:
    assert generates(method, path, body) is answer
    assert not NO_KV.sequences


@given(st.binary(max_size=4 * CHUNK_BYTES), st.binary(max_size=2 * CHUNK_BYTES), st.binary(max_size=2 * CHUNK_BYTES))
def test_prompts_share_their_hashes_exactly_as_far_as_their_chunks(common: bytes, one: bytes, other: bytes) -> None:
    first, second = chained_hashes([common, one]), chained_hashes([common + other])
    a, b = common + one, common + other
    shared = 0
    while (shared + 1) * CHUNK_BYTES <= min(len(a), len(b)) and a[: (shared + 1) * CHUNK_BYTES] == b[
        : (shared + 1) * CHUNK_BYTES
    ]:
        shared += 1
    assert len(first) == len(a) // CHUNK_BYTES and first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second)


def test_only_the_beginning_of_a_long_prompt_is_hashed() -> None:
    assert len(chained_hashes(["x" * CHUNK_BYTES * (MOST_CHUNKS + 5)])) == MOST_CHUNKS


def test_other_models_and_salts_have_other_hashes() -> None:
    text = "x" * CHUNK_BYTES
    bodies = [chat(text), chat(text) | {"model": "adapter"}, chat(text, cache_salt="mine")]
    assert len({need_of(body, ESTIMATES).prefix for body in bodies}) == 3


def test_a_conversation_keeps_its_hashes_as_it_grows() -> None:
    first = need_of(chat("x" * 3000), ESTIMATES).prefix
    second = need_of(chat("x" * 3000, "answer", "y" * 3000), ESTIMATES).prefix
    assert first and second[: len(first)] == first


def test_the_longest_known_beginning_wins_among_those_who_are_there() -> None:
    index = PrefixIndex()
    index.record((1, 2), "a")
    index.record((1, 2, 3), "b")
    assert index.holders((1, 2, 3, 4), {"a", "b"}) == ("b",)
    assert index.holders((1, 2, 9), {"a", "b"}) == ("b", "a")
    assert index.holders((1, 2, 3, 4), {"a"}) == ("a",)
    assert index.holders((7,), {"a", "b"}) == ()


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcdefg")), max_size=200))
def test_the_index_stays_within_its_bound_and_remembers_the_newest(records: list[tuple[int, str]]) -> None:
    index = PrefixIndex(most=8)
    for chunk, replica in records:
        index.record((chunk,), replica)
        index.check_integrity()
        assert index.holders((chunk,), set("abcdefg"))[0] == replica
    assert len(index) <= 8 and MOST_HOLDERS < 7
