"""The KV plan: the value that the planner gives, the engine executes and the report is compared with."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Owner = Literal["target", "drafter"]
GroupKind = Literal["full", "sliding", "mamba"]
Pages = Literal["uniform", "packed"]
Policy = Literal["stock", "best"]


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One KV cache group: layers that share a block table.

    Attributes:
        kind: how blocks are allocated. A sliding layer that is given full allocation has kind `full`
            and keeps its `window`.
        layers: how many layers.
        bucket: index of the layer bucket in the plan's inputs (target's buckets, then drafter's).
        block_size: tokens that one block id stands for. For mamba in cache mode `none` it is max_model_len.
        page_size_bytes: of one layer in one block, padding included.
        content_bytes: of one layer in one block that hold something.
        window: of sliding layers; None otherwise.
        blocks_per_request: blocks that one request of max_model_len holds.
        uneven_bytes: bytes of a block beyond layers * page_size_bytes, where stock vLLM packs layers of unlike
            pages into one group and reports the first layer's.
    """

    owner: Owner
    kind: GroupKind
    layers: int
    bucket: int
    block_size: int
    page_size_bytes: int
    content_bytes: int
    blocks_per_request: int
    window: int | None = None
    uneven_bytes: int = 0

    @property
    def bytes_in_block(self) -> int:
        """Bytes of all layers' pages in one block."""
        return self.layers * self.page_size_bytes + self.uneven_bytes

    def padding_bytes(self, block_bytes: int) -> int:
        """Bytes of one block of this group that hold nothing."""
        return block_bytes - self.layers * self.content_bytes - self.uneven_bytes


@dataclass(frozen=True, kw_only=True)
class KVPlan:
    """How one engine lays out its KV cache.

    Attributes:
        policy: `stock` (what vLLM does unaided) or `best`.
        vllm: version the plan is for.
        pages: `uniform` (every layer has the same page) or `packed` (block-outermost, mixed pages).
        kv_cache_layout: VLLM_KV_CACHE_LAYOUT the plan needs; None leaves vLLM's choice.
        block_bytes: bytes of one block id over all layers of its group, padding included.
        num_blocks: kv_memory_bytes // block_bytes.
        groups: in the order in which the engine lists them.
    """

    policy: Policy
    vllm: str
    pages: Pages
    kv_cache_layout: str | None
    block_bytes: int
    groups: tuple[GroupPlan, ...]
    num_blocks: int
    kv_memory_bytes: int
    max_model_len: int

    @property
    def blocks_per_request(self) -> int:
        """Blocks that one request of max_model_len holds, over all groups."""
        return sum(group.blocks_per_request for group in self.groups)

    @property
    def request_bytes(self) -> int:
        """Bytes that one request of max_model_len holds."""
        return self.blocks_per_request * self.block_bytes

    @property
    def concurrency(self) -> float:
        """vLLM's "Maximum concurrency" figure."""
        return self.num_blocks / self.blocks_per_request

    @property
    def kv_tokens(self) -> int:
        """vLLM's "GPU KV cache size" figure, in tokens."""
        return int(self.concurrency * self.max_model_len)

    @property
    def plan_id(self) -> str:
        """12 hex digits over everything that decides the layout (not over the memory)."""
        layout = self.to_json() | {"num_blocks": 0, "kv_memory_bytes": 0}
        return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()[:12]

    def with_memory(self, kv_memory_bytes: int) -> "KVPlan":
        """The same layout over another amount of memory, in bytes."""
        return replace(self, kv_memory_bytes=kv_memory_bytes, num_blocks=kv_memory_bytes // self.block_bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings: what travels in `additional_config` and in reports."""
        return asdict(self) | {"groups": [asdict(group) for group in self.groups]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "KVPlan":
        """Inverse of `to_json`.

        Raises:
            ValueError: a field is missing or unknown; the message names it.
        """
        try:
            groups = tuple(GroupPlan(**group) for group in value["groups"])
            return cls(**{**value, "groups": groups})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a KV plan: {error}; expected the fields of KVPlan.to_json()") from error


@dataclass(frozen=True)
class EngineReport:
    """What an engine really got, in the same terms as the plan: the comparison's other side.

    Attributes:
        groups: one (kind, layers, block_size, page_size_bytes) a group, in the engine's order.
        workers: worker processes that confirmed the plan.
        prefix_match_unit: tokens between two prefix hashes; None with prefix caching off.
    """

    num_blocks: int
    groups: tuple[tuple[str, int, int, int], ...]
    kv_tokens: int
    concurrency: float
    workers: int
    prefix_match_unit: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"groups": [list(group) for group in self.groups]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "EngineReport":
        return cls(**{**value, "groups": tuple(tuple(group) for group in value["groups"])})


def differences(plan: KVPlan, report: EngineReport) -> tuple[str, ...]:
    """Every difference between what was planned and what the engine got; empty if they are equal."""
    planned: list[tuple[str, Any, Any]] = [
        ("num_blocks", plan.num_blocks, report.num_blocks),
        ("kv_tokens", plan.kv_tokens, report.kv_tokens),
        ("group count", len(plan.groups), len(report.groups)),
    ]
    for index, (group, actual) in enumerate(zip(plan.groups, report.groups, strict=False)):
        expected = (group.kind, group.layers, group.block_size, group.page_size_bytes)
        planned.append((f"group {index} (kind, layers, block_size, page_size_bytes)", expected, tuple(actual)))
    return tuple(f"{what}: planned {want}, got {got}" for what, want, got in planned if want != got)
