"""Live engine figures, collected from vLLM's own stats as it hands them to its loggers."""

from typing import Any

from hybrid_serve.engine.base import EngineStats


class StatsCollector:
    """Keeps the newest gauges and running totals of one engine; fed by vLLM on every step, read at any time."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._waiting = 0
        self._kv_usage = 0.0
        self._preemptions = 0
        self._drafts = 0
        self._draft_tokens = 0
        self._accepted = 0
        self._per_position = [0] * num_speculative_tokens
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = 0
        self._finished_prompt_tokens = 0
        self._finished_generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._ttft_count, self._ttft_sum_s = 0, 0.0
        self._tpot_count, self._tpot_sum_s = 0, 0.0

    def record(self, scheduler: Any | None, iteration: Any | None) -> None:
        """One step's SchedulerStats and IterationStats; either may be None."""
        if iteration is not None:
            self._count(iteration)
        if scheduler is None:
            return
        self._waiting = scheduler.num_waiting_reqs
        self._kv_usage = scheduler.kv_cache_usage
        prefixes = scheduler.prefix_cache_stats
        if prefixes is not None:
            self._prefix_queries += prefixes.queries
            self._prefix_hits += prefixes.hits
        drafting = scheduler.spec_decoding_stats
        if drafting is None:
            return
        self._drafts += drafting.num_drafts
        self._draft_tokens += drafting.num_draft_tokens
        self._accepted += drafting.num_accepted_tokens
        for position, accepted in enumerate(drafting.num_accepted_tokens_per_pos):
            self._per_position[position] += accepted

    def _count(self, iteration: Any) -> None:
        self._preemptions += iteration.num_preempted_reqs
        self._prompt_tokens += iteration.num_prompt_tokens
        self._generation_tokens += iteration.num_generation_tokens
        self._ttft_count += len(iteration.time_to_first_tokens_iter)
        self._ttft_sum_s += sum(iteration.time_to_first_tokens_iter)
        for request in iteration.finished_requests:
            self._finished += 1
            if request.num_generation_tokens > 1:
                self._tpot_count += 1
                self._tpot_sum_s += request.mean_time_per_output_token
            self._finished_prompt_tokens += request.num_prompt_tokens
            self._finished_generation_tokens += request.num_generation_tokens

    def snapshot(self, unfinished: int) -> EngineStats:
        """The figures now; an idle engine takes no steps, so what it last reported of waiting and usage is void."""
        waiting = min(self._waiting, unfinished)
        return EngineStats(
            running=unfinished - waiting,
            waiting=waiting,
            kv_usage=self._kv_usage if unfinished else 0.0,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted,
            accepted_per_position=tuple(self._per_position),
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished_requests=self._finished,
            finished_prompt_tokens=self._finished_prompt_tokens,
            finished_generation_tokens=self._finished_generation_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            ttft_count=self._ttft_count,
            ttft_sum_s=self._ttft_sum_s,
            tpot_count=self._tpot_count,
            tpot_sum_s=self._tpot_sum_s,
        )

    def logger_factory(self) -> Any:
        """A vLLM StatLoggerFactory that feeds this collector."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        collector = self

        class Feed(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(
                self,
                scheduler_stats: Any | None,
                iteration_stats: Any | None,
                mm_cache_stats: Any | None = None,
                engine_idx: int = 0,
            ) -> None:
                collector.record(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                pass

        return Feed
