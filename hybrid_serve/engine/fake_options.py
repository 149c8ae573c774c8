"""What a fake engine can be told to do."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hybrid_serve.engine.base import EngineStartError


@dataclass(frozen=True, kw_only=True)
class FakeOptions:
    """What `engine.vllm_args` may hold for a fake engine.

    Attributes:
        start_s: seconds that starting takes.
        token_s: seconds between tokens.
        fail: the start fails with this message.
        fail_while: the start fails while this file exists.
        num_blocks: reported instead of the plan's, to look at what a mismatch does.
        die_after_tokens: the process ends at this token of a stream, as if killed.
        die_after_s: seconds after its start at which the engine dies, as vLLM's does when its core died.
        prefill_s: seconds before the first token.
        bytes_per_token: of a prompt: the body's messages as JSON.
        prefix_caching: prompts' beginnings are looked up and counted, `PREFIX_TOKENS` at a time.
        acceptance: share of the drafts of which at least 1, 2, ... tokens are accepted; at most K count. Without it
            nothing is drafted.
        error_rate: share of the requests that are answered 500, 0 to 1, evenly spread.
    """

    start_s: float = 0.0
    token_s: float = 0.01
    fail: str = ""
    fail_while: str = ""
    num_blocks: int | None = None
    die_after_tokens: int | None = None
    die_after_s: float | None = None
    prefill_s: float = 0.0
    bytes_per_token: float = 4.0
    prefix_caching: bool = False
    acceptance: tuple[float, ...] = ()
    error_rate: float = 0.0

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> "FakeOptions":
        """Raises EngineStartError if an argument is unknown."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(args) - known):
            raise EngineStartError(f"the fake engine does not know {', '.join(unknown)}: it knows {sorted(known)}")
        return cls(**{**args, "acceptance": tuple(args.get("acceptance", ()))})
