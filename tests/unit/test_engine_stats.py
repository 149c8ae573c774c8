"""What is kept of vLLM's own stats, fed with vLLM's own stats objects."""

import pytest

from hybrid_serve.engine.stats import StatsCollector

stats = pytest.importorskip("vllm.v1.metrics.stats", reason="vLLM is not installed")


def finished(prompt: int, output: int) -> object:
    return stats.FinishedRequestStats(finish_reason=None, num_prompt_tokens=prompt, num_generation_tokens=output)


def test_tokens_and_finished_requests_add_up_over_steps() -> None:
    collector = StatsCollector(0)
    for generated, ended in ((5, [finished(100, 20)]), (7, []), (1, [finished(50, 10), finished(30, 5)])):
        iteration = stats.IterationStats()
        iteration.num_generation_tokens = generated
        iteration.prompt_token_stats.total = 40
        iteration.finished_requests = ended
        collector.record(None, iteration)
    told = collector.snapshot(0)
    assert (told.prompt_tokens, told.generation_tokens) == (120, 13)
    assert (told.finished_requests, told.finished_prompt_tokens, told.finished_generation_tokens) == (3, 180, 35)


def test_prefix_lookups_add_up() -> None:
    collector = StatsCollector(0)
    for _ in range(2):
        step = stats.SchedulerStats(kv_cache_usage=0.5)
        step.prefix_cache_stats.record(num_tokens=100, num_hits=60, preempted=False)
        collector.record(step, None)
    told = collector.snapshot(1)
    assert (told.prefix_queries, told.prefix_hits, told.kv_usage) == (200, 120, 0.5)


def test_latencies_add_up_and_requests_of_one_token_have_no_time_per_token() -> None:
    collector = StatsCollector(0)
    for first_tokens, ended in (([0.5, 0.25], []), ([], [(3, 0.5), (1, 0.0)]), ([1.0], [(2, 0.25)])):
        iteration = stats.IterationStats()
        iteration.time_to_first_tokens_iter = first_tokens
        iteration.finished_requests = [
            stats.FinishedRequestStats(
                finish_reason=None, num_generation_tokens=tokens, mean_time_per_output_token=seconds
            )
            for tokens, seconds in ended
        ]
        collector.record(None, iteration)
    told = collector.snapshot(0)
    assert (told.ttft_count, told.ttft_sum_s, told.tpot_count, told.tpot_sum_s) == (3, 1.75, 2, 0.75)
