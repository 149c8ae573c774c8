"""A second release really runs: vLLM 0.32.0 on the demo pair, in an environment of its own."""

from functools import cache

import pytest

from hybrid_serve.facts.capabilities import capabilities
from tests.contract.engine_process import ROOT, Run, started
from tests.contract.other_engine import python_of
from tests.contract.wheels import cache_of

pytestmark = [pytest.mark.contract, pytest.mark.engines, pytest.mark.timeout(900)]

RELEASE = "0.32.0"
PROMPTS = 12


@cache
def run(policy: str) -> Run:
    env = {"PYTHONPATH": str(ROOT), "VLLM_PLUGINS": "hybrid_serve", **cache_of(RELEASE)}
    return started(env=env, python=python_of(RELEASE), policy=policy, prompts=PROMPTS)


@pytest.mark.parametrize("policy", ["best", "stock"])
def test_the_engine_gets_what_was_predicted_to_the_block(policy: str) -> None:
    answer = run(policy).answer
    assert f"V1 LLM engine (v{RELEASE}" in run(policy).log
    assert answer["plan"]["vllm"] == RELEASE and answer["plan"]["policy"] == policy
    assert answer["differences"] == []
    assert answer["report"]["num_blocks"] == answer["plan"]["num_blocks"]
    assert run(policy).logged_kv_tokens == answer["report"]["kv_tokens"]
    assert capabilities(RELEASE).publishes_capacity


def test_the_plan_holds_more_than_stock_and_says_the_same() -> None:
    best, stock = run("best"), run("stock")
    assert best.logged_kv_tokens > 1.6 * stock.logged_kv_tokens
    assert best.answer["stock_kv_tokens"] == stock.logged_kv_tokens
    assert best.answer["outputs"] == stock.answer["outputs"]
    assert min(map(len, best.answer["outputs"])) > 0


def test_the_drafter_is_accepted_as_much_as_under_stock() -> None:
    ours, theirs = run("best").answer["mean_acceptance_length"], run("stock").answer["mean_acceptance_length"]
    assert ours >= 3.0
    assert ours == pytest.approx(theirs, rel=0.02)
