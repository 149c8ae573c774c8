"""The engine as the rest of the project sees it."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.plan.group_need import GroupNeed
from hybrid_serve.plan.inputs import EngineSettings
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class EngineStartError(RuntimeError):
    """The engine did not start on its plan; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine needs besides its plan.

    Attributes:
        model_name: name clients use (vLLM's served_model_name).
        target_path, drafter_path: local folders with config.json and weights (a hub id was resolved before).
        target, drafter: their facts.
        settings: options that the plan depends on.
        plan: the KV plan, or None for stock vLLM without any check (for comparisons only).
        engine_args: further vLLM engine arguments as given in the config; they may not contradict `settings`.
        needs: what a request needs of each of the plan's groups; a fake engine counts with it, vLLM has its own.
    """

    model_name: str
    target_path: str
    drafter_path: str | None
    target: TargetFacts
    drafter: DrafterFacts | None
    settings: EngineSettings
    plan: KVPlan | None
    engine_args: dict[str, Any]
    needs: tuple[GroupNeed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Live figures of a running engine.

    Attributes:
        kv_usage: share of the KV blocks in use, 0 to 1.
        drafts, draft_tokens, accepted_tokens: speculative decoding counts since start;
            mean acceptance length = 1 + accepted_tokens / drafts.
        accepted_per_position: accepted tokens at each draft position, length K.
        preemptions: requests put back into the queue for want of blocks, since start.
        prompt_tokens, generation_tokens: processed since start.
        finished_requests: since start; `finished_prompt_tokens` and `finished_generation_tokens` are theirs.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache and found there, since start.
        ttft_count, ttft_sum_s: first tokens since start, and the seconds from a request's arrival to each.
        tpot_count, tpot_sum_s: finished requests of two or more output tokens since start, and of each the mean seconds
            per token after the first.
    """

    running: int
    waiting: int
    kv_usage: float
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished_requests: int = 0
    finished_prompt_tokens: int = 0
    finished_generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    tpot_count: int = 0
    tpot_sum_s: float = 0.0

    @property
    def mean_acceptance_length(self) -> float | None:
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None


class Engine(Protocol):
    """One engine that runs one plan.

    Life: `start` once, then `app` serves, then `stop` once (stopping an engine that never started is safe). Another one
    may be started in the same process once `stop` has returned.
    """

    async def start(self, config: EngineConfig) -> EngineReport:
        """Load weights, apply the plan, verify it in every process, and answer what the engine got.

        The event loop is free meanwhile. If this is cancelled, nothing is left running.

        Raises:
            EngineStartError: the engine did not start, or the plan is not in force in every process.
        """
        ...

    @property
    def app(self) -> ASGIApp:
        """vLLM's OpenAI app as an ASGI app. Only after `start`."""
        ...

    @property
    def reuses_prefixes(self) -> bool:
        """True if equal prompt beginnings are computed once. Only after `start`."""
        ...

    async def stats(self) -> EngineStats:
        """Live figures; cheap enough for once a second."""
        ...

    async def check_health(self) -> None:
        """Raises EngineStartError if the engine died."""
        ...

    async def stop(self) -> None:
        """End the engine's processes, all of them and their memory: afterwards it can't be started again.

        Safe to repeat, and while `start` runs, which then fails.
        """
        ...
