"""The search behind `best()`: frames of block bytes, and in each frame the best split of every bucket.

A *frame* fixes the bytes of a block (and, for uniform pages, the page). Within a frame buckets do not influence each
other, so each takes its own best number of groups; frames are then compared by `score`. Frames come from the sizes at
which something fits exactly: k mamba states, or a whole number of kernel blocks of an attention bucket.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

from hybrid_serve.plan.buckets import AttentionBucket, Bucket, MambaBucket, buckets_of
from hybrid_serve.plan.build import attention_group, finish, mamba_group, packed_unit
from hybrid_serve.plan.capacity import (
    ceil_div,
    checkpoint_block,
    floor_bytes,
    group_blocks,
    kernel_block,
    paged_tile,
    request_bytes,
)
from hybrid_serve.plan.inputs import PlanInputs, Prefer
from hybrid_serve.plan.kv_plan import GroupPlan, KVPlan, Pages
from hybrid_serve.plan.memory_free import memory_free
from hybrid_serve.plan.refusals import one_group_drafter
from hybrid_serve.plan.specs import align

GROUP_COST: dict[Prefer, float] = {"capacity": 0.001, "speed": 0.01}
"""Cost of one more group, as a share of a step's time, and so of the bytes that a request may take instead.

`speed` is from a measurement: on one H200, stock's 46 groups and a plan's 5 differ by 0.14 ms of time per output token
a group with one request, of 6 ms, and by 0.19 and 0.34 ms in two later runs, in which stock varied much
(`docs/benchmarks.md`). That is 2 % and more of the steps of a model with 8 experts; with all 256 they are longer, so
less is taken. `capacity` is a choice: groups decide between plans that hold nearly as much.
"""

GATHER_COST: dict[Prefer, float] = {"capacity": 0.0, "speed": 0.02}
"""Cost of a bucket whose blocks FlashAttention 3 must gather token by token (`paged_tile`), on the same scale.

A guess: what gathering costs was not measured by itself. On one H200 a prompt of 7,664 tokens had its first token 18 %
later than stock's under blocks of 1,664 tokens (two prompts), and under blocks of 1,680, which are whole tiles as
stock's 2,240 are, 1 to 4 % later (16 prompts) or 17 % earlier (6 others; `docs/benchmarks.md`).
"""

FEW_GROUPS = 10
"""A packed plan with at most so many groups is taken before one with more. (Uniform pages have no such choice: there
few groups mean wide ones, and a bucket with few layers leaves most of a wide group empty.)"""

PAGE_ALIGNMENT = 64
"""Mamba pages are multiples of this many bytes, so that every state starts aligned."""

MAX_CACHE_INTERVAL = 8192
"""With prefix caching all block sizes divide an interval of at most this many tokens."""

MAX_FRAME_WASTE = 0.04
"""Frames whose block exceeds k states by more than this share are not looked at."""


class Frame(NamedTuple):
    """Bytes of a block; for uniform pages also the page and the layers a group may have.

    `interval`: tokens that every attention block size divides (prefix caching); 0 leaves block sizes free.
    """

    block: int
    interval: int
    page: int = 0
    width: int = 0


class Split(NamedTuple):
    """One bucket in one frame: `groups` groups of at most `layers` layers; `blocks` of a mean request.

    `gathered`: its blocks are no whole number of the kernel's tiles (GATHER_COST).
    """

    bucket: Bucket
    groups: int
    layers: int
    block_size: int
    page: int
    blocks: float
    gathered: bool = False


class Problem(NamedTuple):
    """What the search looks at again and again, computed once.

    Attributes:
        kernel: tokens that every attention block is a multiple of.
        tiles: of each attention bucket, by its index, the tokens of a block that its kernel need not gather: a multiple
            of `kernel`, too.
        anchor: tokens that every block is a multiple of and a mamba block has, with prefix caching on the V2 model
            runner: the scheduler takes the smallest block of all groups, and a worker vLLM's own aligned block, for the
            mamba block (v1/core/sched/scheduler.py; v1/worker/gpu/model_states/mamba_hybrid.py). 0: free.
        fills_pages: an attention page must be full, since this release or kernel reads no padded one.
    """

    inputs: PlanInputs
    buckets: tuple[Bucket, ...]
    contexts: tuple[tuple[int, float], ...]
    kernel: int
    tiles: dict[int, int]
    anchor: int
    fills_pages: bool
    floor: float
    drafter_in_one_group: bool


def contexts_of(inputs: PlanInputs) -> tuple[tuple[int, float], ...]:
    """The workload's contexts, at most max_model_len each, with weights that sum to 1."""
    contexts = inputs.workload.contexts or ((inputs.settings.max_model_len, 1.0),)
    total = sum(weight for _, weight in contexts)
    return tuple((min(tokens, inputs.settings.max_model_len), weight / total) for tokens, weight in contexts)


def score(plan: KVPlan, inputs: PlanInputs) -> float:
    """Mean request bytes over the workload, raised by GROUP_COST a group and GATHER_COST a gathered bucket.

    Lower is better.
    """
    buckets = buckets_of(inputs)
    gathered = {
        group.bucket
        for group in plan.groups
        if isinstance(bucket := buckets[group.bucket], AttentionBucket)
        and group.block_size % paged_tile(bucket, inputs)
    }
    return mean_request_bytes(plan, inputs) * (1 + _slower(inputs, len(plan.groups), len(gathered)))


def _slower(inputs: PlanInputs, groups: int, gathered: int) -> float:
    """The share of a step that groups and gathered buckets cost."""
    prefer = inputs.workload.prefer
    return GROUP_COST[prefer] * groups + GATHER_COST[prefer] * gathered


def mean_request_bytes(plan: KVPlan, inputs: PlanInputs) -> float:
    """Bytes of the workload's mean request under this plan."""
    return sum(weight * request_bytes(plan, inputs, tokens) for tokens, weight in contexts_of(inputs))


@memory_free
def uniform_plan(inputs: PlanInputs, layout: str | None) -> KVPlan | None:
    """The best plan with one page size for all layers; None if there is none."""
    problem = _problem(inputs)
    return _best_plan(problem, _uniform_frames(problem), pages="uniform", layout=layout)


@memory_free
def packed_plan(inputs: PlanInputs, layout: str | None) -> KVPlan | None:
    """The best plan with blocks outermost, each group filling a block its own way; None if there is none."""
    problem = _problem(inputs)
    return _best_plan(problem, _packed_frames(problem), pages="packed", layout=layout)


def _problem(inputs: PlanInputs) -> Problem:
    contexts = contexts_of(inputs)
    buckets = buckets_of(inputs)
    engine, settings = inputs.capabilities, inputs.settings
    caches_states = settings.prefix_caching and bool(inputs.target.mamba)
    in_one_group = one_group_drafter(inputs)
    pads = engine.cpu_pads_attention_pages if inputs.device == "cpu" else engine.pads_attention_pages
    kernel = lcm(kernel_block(inputs), checkpoint_block(inputs))
    return Problem(
        inputs=inputs,
        buckets=buckets,
        contexts=contexts,
        kernel=kernel,
        tiles={b.index: lcm(kernel, paged_tile(b, inputs)) for b in buckets if isinstance(b, AttentionBucket)},
        anchor=align(buckets, inputs).block_size if caches_states and not in_one_group else 0,
        fills_pages=not pads or kernel_block(inputs) == engine.fa4_kernel_block,
        floor=sum(weight * floor_bytes(inputs, tokens) for tokens, weight in contexts),
        drafter_in_one_group=in_one_group,
    )


def _best_plan(problem: Problem, frames: Iterable[Frame], *, pages: Pages, layout: str | None) -> KVPlan | None:
    best: tuple[tuple[bool, float], Sequence[Split]] | None = None
    drafting = sum(bucket.owner == "drafter" for bucket in problem.buckets)
    if problem.drafter_in_one_group and drafting > 1:
        return None
    for frame in frames:
        splits = [_best_split(problem, bucket, frame) for bucket in problem.buckets]
        found = [split for split in splits if split is not None]
        if len(found) < len(splits) or not _within_batch(problem, found):
            continue
        groups = sum(split.groups for split in found)
        slower = _slower(problem.inputs, groups, sum(split.gathered for split in found))
        cost = frame.block * sum(split.blocks for split in found) * (1 + slower)
        rank = (pages == "packed" and groups > FEW_GROUPS, cost)
        if best is None or rank < best[0]:
            best = (rank, found)
    if best is None:
        return None
    chosen = best[1]
    groups_of_plan = [group for split in chosen for group in _groups(problem, split, chosen)]
    unit = packed_unit(((s.bucket, s.block_size) for s in chosen), problem.inputs) if pages == "packed" else 1
    return finish(groups_of_plan, policy="best", pages=pages, layout=layout, inputs=problem.inputs, block_unit=unit)


def _within_batch(problem: Problem, splits: Sequence[Split]) -> bool:
    """The smallest block fits into a batch, where this release wants that (`block_within_batch`)."""
    settings = problem.inputs.settings
    if not problem.inputs.capabilities.block_within_batch or not settings.prefix_caching:
        return True
    return _smallest_block(problem, splits) <= settings.max_num_batched_tokens


def _smallest_block(problem: Problem, splits: Sequence[Split]) -> int:
    """The mamba block in tokens with prefix caching: all others are multiples of it, so it is the smallest."""
    return problem.anchor or gcd(*[split.block_size for split in splits if split.block_size])


def _uniform_frames(problem: Problem) -> Iterator[Frame]:
    states = [bucket.state_bytes for bucket in problem.buckets if isinstance(bucket, MambaBucket)]
    units = [problem.kernel * b.bytes_per_token for b in problem.buckets if isinstance(b, AttentionBucket)]
    tiles = [problem.tiles[b.index] * b.bytes_per_token for b in problem.buckets if isinstance(b, AttentionBucket)]
    least = max([*states, *units])
    pages = {_round_up(least, unit) + more * unit for unit in [*units, *tiles, lcm(*units)] for more in range(4)}
    if not problem.fills_pages and problem.inputs.device == "cuda":
        pages.add(_round_up(least, PAGE_ALIGNMENT))
    anchored = {problem.anchor // problem.kernel * unit * times for unit in units for times in (1, 2)}
    pages |= {page for page in anchored if page >= least}
    widths = {ceil_div(b.layers, n) for b in problem.buckets for n in range(1, b.layers + 1)}
    for page in sorted(pages):
        for width in sorted(widths):
            for interval in _intervals(problem, [page]):
                yield Frame(page * width, interval, page, width)


def _packed_frames(problem: Problem) -> Iterator[Frame]:
    attention = [bucket for bucket in problem.buckets if isinstance(bucket, AttentionBucket)]
    mamba = [bucket for bucket in problem.buckets if isinstance(bucket, MambaBucket)]
    units = {
        ceil_div(b.layers, n) * b.bytes_per_token * unit
        for b in attention
        for n in range(1, b.layers + 1)
        for unit in (problem.kernel, problem.tiles[b.index])
    }
    blocks: set[int] = set()
    for bucket in mamba:
        state = _round_up(bucket.state_bytes, PAGE_ALIGNMENT)
        for layers in {ceil_div(bucket.layers, n) for n in range(1, bucket.layers + 1)}:
            exact = layers * state
            rounded = {_round_up(exact, unit) for unit in units}
            blocks |= {exact} | {block for block in rounded if block <= exact * (1 + MAX_FRAME_WASTE)}
    if not mamba:
        blocks = {unit * blocks_of for unit in units for blocks_of in (1, 2, 4, 8, 16, 32, 64)}
    for block in sorted(blocks):
        pages = [block // ceil_div(b.layers, n) for b in attention for n in range(1, min(b.layers, 4) + 1)]
        for interval in _intervals(problem, pages):
            yield Frame(block, interval)


def _intervals(problem: Problem, pages: list[int]) -> list[int]:
    """Intervals worth a look with prefix caching: multiples of the block sizes that fill a page."""
    if not problem.inputs.settings.prefix_caching:
        return [0]
    if problem.anchor:
        return [problem.anchor * times for times in range(1, MAX_CACHE_INTERVAL // problem.anchor + 1)]
    natural = {
        page // bucket.bytes_per_token // problem.kernel * problem.kernel
        for bucket in problem.buckets
        if isinstance(bucket, AttentionBucket)
        for page in pages
    }
    multiples = {size * times for size in natural for times in (1, 2, 3, 4) if size}
    if problem.fills_pages and 0 not in natural:
        multiples.add(lcm(*natural))
    return sorted(size for size in multiples if size <= MAX_CACHE_INTERVAL) or [MAX_CACHE_INTERVAL]


def _best_split(problem: Problem, bucket: Bucket, frame: Frame) -> Split | None:
    if isinstance(bucket, MambaBucket):
        return _mamba_split(problem, bucket, frame)
    drafter_whole = problem.drafter_in_one_group and bucket.owner == "drafter"
    most = 1 if drafter_whole else bucket.layers
    group_price = GROUP_COST[problem.inputs.workload.prefer] * problem.floor / frame.block
    best: Split | None = None
    previous = 0
    for groups in range(1, most + 1):
        layers = ceil_div(bucket.layers, groups)
        if layers == previous or (frame.width and layers > frame.width):
            continue
        previous = layers
        split = _attention_split(problem, bucket, frame, groups, layers)
        if split is None:
            continue
        if best is None or _price(problem, split, frame) < _price(problem, best, frame):
            best = split
        if frame.width or split.groups * group_price > _price(problem, best, frame):
            break
    return best


def _price(problem: Problem, split: Split, frame: Frame) -> float:
    """A split's blocks, and its groups and gathering as blocks."""
    slower = _slower(problem.inputs, split.groups, split.gathered)
    return split.blocks + slower * problem.floor / frame.block


def _mamba_split(problem: Problem, bucket: MambaBucket, frame: Frame) -> Split | None:
    state = _round_up(bucket.state_bytes, PAGE_ALIGNMENT)
    most = frame.width if frame.page and frame.page >= bucket.state_bytes else frame.block // state
    if most == 0 or (frame.page and frame.page < bucket.state_bytes):
        return None
    groups = ceil_div(bucket.layers, most)
    per_group = group_blocks("mamba", block_size=1, window=None, context=1, inputs=problem.inputs)
    layers = ceil_div(bucket.layers, groups)
    return Split(bucket, groups, layers, 0, frame.page or state, float(groups * per_group))


def _attention_split(problem: Problem, bucket: AttentionBucket, frame: Frame, groups: int, layers: int) -> Split | None:
    largest = _split_of_unit(problem, bucket, frame, groups, layers, problem.kernel)
    if largest is None or not largest.gathered:
        return largest
    in_tiles = _split_of_unit(problem, bucket, frame, groups, layers, problem.tiles[bucket.index])
    if in_tiles is None or _price(problem, largest, frame) <= _price(problem, in_tiles, frame):
        return largest
    return in_tiles


def _split_of_unit(
    problem: Problem, bucket: AttentionBucket, frame: Frame, groups: int, layers: int, unit: int
) -> Split | None:
    """The split with the largest block of a multiple of `unit` tokens."""
    natural = _block_in(problem, bucket, frame, frame.page or frame.block // layers, unit)
    if natural == 0:
        return None
    blocks = sum(
        weight
        * group_blocks(bucket.kind, block_size=natural, window=bucket.window, context=tokens, inputs=problem.inputs)
        for tokens, weight in problem.contexts
    )
    gathered = natural % problem.tiles[bucket.index] > 0
    page = frame.page or natural * bucket.bytes_per_token
    return Split(bucket, groups, layers, natural, page, groups * blocks, gathered)


def _block_in(problem: Problem, bucket: AttentionBucket, frame: Frame, page: int, kernel: int) -> int:
    """The largest block of a bucket that fits a page and divides the frame's interval; 0 if there is none.

    It is a multiple of `kernel` tokens.
    """
    tokens, rest = divmod(page, bucket.bytes_per_token)
    unit = lcm(problem.anchor, kernel) if problem.anchor else kernel
    if frame.page and problem.fills_pages:
        fills = not rest and tokens % unit == 0 and (not frame.interval or frame.interval % tokens == 0)
        return tokens if fills else 0
    longest = max(_round_up(problem.inputs.settings.max_model_len, kernel), problem.anchor)
    natural = min(tokens // kernel * kernel, longest)
    return _divisor_within(frame.interval, natural, unit) if frame.interval else natural


def _groups(problem: Problem, split: Split, all_splits: Sequence[Split]) -> list[GroupPlan]:
    """The split as groups; layers are dealt out in turn, so sizes differ by at most one."""
    inputs = problem.inputs
    sizes = [len(range(start, split.bucket.layers, split.groups)) for start in range(split.groups)]
    if isinstance(split.bucket, AttentionBucket):
        return [
            attention_group(
                split.bucket, layers=size, block_size=split.block_size, page_size_bytes=split.page, inputs=inputs
            )
            for size in sizes
        ]
    span = inputs.settings.max_model_len
    if inputs.settings.prefix_caching:
        span = _smallest_block(problem, all_splits)
    return [
        mamba_group(split.bucket, layers=size, block_size=span, page_size_bytes=split.page, inputs=inputs)
        for size in sizes
    ]


def _round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


@lru_cache(maxsize=4096)
def _divisor_within(interval: int, limit: int, unit: int) -> int:
    """The largest divisor of `interval` that is at most `limit` and a multiple of `unit`; 0 if there is none."""
    for parts in range(max(1, ceil_div(interval, limit) if limit else interval), interval // unit + 1):
        if interval % parts == 0 and interval // parts % unit == 0:
            return interval // parts
    return 0
