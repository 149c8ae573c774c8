"""Which bytes the blocks of each layer take in one release's KV cache. Imported by `planned_vllm.py`, in its process.

Up to 0.26 a worker's own code decides (`GPUModelRunner._reshape_kv_cache_tensors`, run here on tensors without memory);
later the tensors of the configuration say it. Nobody else reads or writes a layer's bytes if the layers of one group
never share one, whatever the block, and if one block of any group stays out of the other blocks of all groups.
"""

from itertools import combinations, pairwise
from types import MethodType, SimpleNamespace

from vllm.v1 import kv_cache_interface
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import AttentionGroup, prepare_kernel_block_sizes

BLOCKS = 3
RUNNER_METHODS = (
    "_allocate_kv_cache_tensors",
    "_reshape_kv_cache_tensors",
    "_kv_cache_spec_attn_group_iterator",
    "_has_mixed_attention_kv_layout",
    "_update_hybrid_attention_mamba_layout",
)


def layer_blocks(made, config):
    """{layer: [ranges of block 0, ranges of block 1, ...]}; a range is (tensor, first byte, end)."""
    if hasattr(made.kv_cache_tensors[0], "layer_stride"):
        return _from_strides(made, config.cache_config.get_resolved_kv_cache_layout())
    return _from_views(made, config)


def check(made, config):
    """Raises AssertionError if two blocks, or two layers in one block, share a byte."""
    found = layer_blocks(made, config)
    for group in made.kv_cache_groups:
        for block in range(BLOCKS):
            assert_apart([one for name in group.layer_names for one in merged(found[name][block])], "layers of a group")
    blocks = [[one for ranges in found.values() for one in ranges[block]] for block in range(BLOCKS)]
    for one, other in combinations(blocks, 2):
        assert_apart(merged(one) + merged(other), "two blocks")


def assert_apart(ranges, what):
    for (a_tensor, _, a_end), (b_tensor, b_start, _) in pairwise(sorted(ranges)):
        assert a_tensor != b_tensor or a_end <= b_start, f"{what} share bytes {b_start} to {a_end} of one tensor"


def merged(ranges):
    """Ranges that touch or overlap as one: what a block takes, whichever group has it."""
    found = []
    for tensor, start, end in sorted(ranges):
        if found and found[-1][0] == tensor and start <= found[-1][2]:
            found[-1] = (tensor, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((tensor, start, end))
    return found


def _from_strides(made, layout):
    specs = {name: group.kv_cache_spec for group in made.kv_cache_groups for name in group.layer_names}
    found = {}
    for tensor in made.kv_cache_tensors:
        for index, name in enumerate(tensor.layers):
            start = tensor.offset + index * tensor.layer_stride
            starts = [start + block * tensor.block_stride for block in range(BLOCKS)]
            parts = _page_parts(specs[name], tensor, layout)
            found[name] = [[(0, at + part, at + part + size) for part, size in parts] for at in starts]
            assert found[name][-1][-1][2] <= tensor.size
    return found


def _page_parts(spec, tensor, layout):
    """(offset, bytes) of the parts of one page: the whole of it, or its heads where they lie outside the blocks."""
    if layout.is_block_compact:
        return [(0, spec.page_size_bytes)]
    strides = kv_cache_interface.compute_layout_strides(
        spec, BLOCKS, len(tensor.layers), layout,
        fixed_strides=(tensor.layer_stride, tensor.block_stride, None, None, None),
    )  # fmt: skip
    heads = strides[2]
    return [(head * heads, spec.page_size_bytes // spec.num_heads) for head in range(spec.num_heads)]


def _from_views(made, config):
    """What the V1 model runner makes of the tensors."""
    layers = config.compilation_config.static_forward_context
    groups = [
        [AttentionGroup(layers[group.layer_names[0]].get_attn_backend(), group.layer_names, group.kv_cache_spec, index)]
        for index, group in enumerate(made.kv_cache_groups)
    ]
    runner = SimpleNamespace(
        attn_groups=groups,
        kv_cache_config=made,
        cache_config=config.cache_config,
        runner_only_attn_layers=set(),
        device="meta",
    )
    for name in RUNNER_METHODS:
        if hasattr(GPUModelRunner, name):
            setattr(runner, name, MethodType(getattr(GPUModelRunner, name), runner))
    kernel_blocks = prepare_kernel_block_sizes(made, groups)
    views = runner._reshape_kv_cache_tensors(runner._allocate_kv_cache_tensors(made), kernel_blocks)
    tensor_of = {name: index for index, tensor in enumerate(made.kv_cache_tensors) for name in tensor.shared_by}
    found = {}
    for (group,), kernel_block in zip(groups, kernel_blocks, strict=True):
        for name in group.layer_names:
            cut = [_parts(views[name], group, kernel_block, block, config) for block in range(BLOCKS)]
            found[name] = [[(tensor_of[name], first(part), last(part)) for part in parts] for parts in cut]
            assert all(last(part) <= made.kv_cache_tensors[tensor_of[name]].size for part in cut[-1])
    return found


def _parts(view, group, kernel_block, block, config):
    """One block of one layer: its states, or its K and its V in kernel blocks."""
    if isinstance(view, list):
        return [state.narrow(0, block, 1) for state in view]
    spec = group.kv_cache_spec
    axis = group.backend.get_kv_cache_block_dim(
        kernel_block, spec.num_kv_heads, spec.head_size, cache_dtype_str=config.cache_config.cache_dtype
    )
    per_block = spec.block_size // kernel_block
    mine = view.narrow(axis, block * per_block, per_block)
    k_and_v_lie_side_by_side = mine.dim() == 4
    return [mine] if k_and_v_lie_side_by_side else [mine.select(1 - axis, 0), mine.select(1 - axis, 1)]


def first(view):
    return view.storage_offset() * view.element_size()


def last(view):
    steps = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return (view.storage_offset() + steps + 1) * view.element_size()
