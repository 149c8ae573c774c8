"""One vLLM release with our plugin in its process. A program: it runs beside that release, like `released_vllm.py`.

    python planned_vllm.py TREE ROOT    ROOT has our packages

Reads one JSON question a line, writes one JSON answer a line. The patch is the one that `patch_for` names for the
release, installed as the plugin installs it; a plan travels in `additional_config`, as it does to a real engine.
"""

import json
import os
import sys
from inspect import signature
from types import SimpleNamespace

import released_vllm as release  # first: it puts the release on sys.path

sys.path.insert(1, sys.argv[2])

import released_bytes
import vllm
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from hybrid_serve.engine import worker_extension
from hybrid_serve.engine.additional import KEY
from hybrid_serve.engine.patches import dflash_hidden_states, patch_for
from hybrid_serve.engine.patches.kv_cache_config_builder import BUILDER, DEFAULT_BUILDER, BuilderConflictError
from hybrid_serve.facts.capabilities import capabilities


def with_plan(case):
    """The engine's start from its layers to its scheduler; `plan` None starts it with the plugin and without a plan."""
    found = {}
    try:
        if reason := release.rejected(case):
            return {"outcome": "Rejected", "message": reason}
        release.simulate(case["device"], case["sm"])
        patch = patch_for(vllm.__version__)
        patch.install()
        assert patch.installed() and not patch.install()
        layout = case["plan"]["kv_cache_layout"] if case["plan"] else case["layout"]
        os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
        if layout is not None:
            os.environ["VLLM_KV_CACHE_LAYOUT"] = layout
            assert release.envs.VLLM_KV_CACHE_LAYOUT
        config = release.configuration(case)
        if case["plan"]:
            config.additional_config[KEY] = {"plan": case["plan"]}
        release.state_of(case, config)
        if not release.on_v1_runner(config):
            config._validate_v2_model_runner()
        release.build_drafter(config, case)
        platform = release.CpuPlatform if case["device"] == "cpu" else release.SimulatedGPU
        platform.update_block_size_for_backend(config)
        specs = release.layer_specs(config)
        release.resolve_layout(config, specs)
        if release.planning is not None:
            assert builder_of(config) == (BUILDER if case["plan"] else DEFAULT_BUILDER)
        found |= release.figures(config, specs, case)
        groups = found["kv_cache_groups"]
        found["marked"] = [group.is_eagle_group for group in groups]
        found["names"] = [name for group in groups for name in group.layer_names]
        start_scheduling(config, case, found)
        if case["plan"]:
            made = few_blocks(config, case, groups)
            with release.current_config(config):
                released_bytes.check(made, config)
            coordinate(made, config, case, found)
            found["profiled"] = profiled(config, specs)
        found["outcome"] = "ok"
    except Exception as error:
        cause = type(error.__cause__).__name__ if error.__cause__ else None
        found |= {"outcome": type(error).__name__, "message": str(error), "cause": cause}
    found.pop("kv_cache_groups", None)
    return found


def builder_of(config):
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder

    made = type(get_kv_cache_config_builder(config))
    return f"{made.__module__}.{made.__qualname__}"


def start_scheduling(config, case, found):
    """What the engine core, the workers, the V1 runner's drafter and the scheduler check once the groups are known."""
    groups = found["kv_cache_groups"]
    config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in groups)
    config.validate_block_size()
    drafting = [name for name in found["names"] if name.startswith("drafter")]
    made = SimpleNamespace(num_blocks=found["num_blocks"], kv_cache_groups=groups, kv_cache_tensors=[])
    if drafting and release.on_v1_runner(config):
        proposer = SimpleNamespace(_draft_attn_layer_names=drafting)
        release.SpecDecodeBaseProposer.validate_same_kv_cache_group(proposer, made)
    worker_extension.check_groups(config, made)
    if not capabilities(vllm.__version__).publishes_capacity:
        found["worker_capacity"] = worker_extension.capacity(config, made)
    config.cache_config.enable_prefix_caching = case["prefix_caching"]
    config.cache_config.hash_block_size = None
    found["block_sizes"] = list(kv_cache_utils.resolve_kv_cache_block_sizes(made, config))


def few_blocks(config, case, groups):
    """The planned layout over memory for a few blocks."""
    module = release.planning or kv_cache_utils
    made = module.get_kv_cache_config_from_groups(config, groups, case["plan"]["block_bytes"] * released_bytes.BLOCKS)
    assert made.num_blocks == released_bytes.BLOCKS, f"{made.num_blocks} blocks of {case['plan']['block_bytes']} bytes"
    return made


def profiled(config, specs):
    """Groups with which a worker captures CUDA graphs to measure them: it groups its layers itself."""
    kept = []
    runner = SimpleNamespace(
        vllm_config=config,
        cache_config=config.cache_config,
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=8),
        max_num_reqs=8,
        get_kv_cache_spec=lambda: specs,
        initialize_kv_cache=lambda made, is_profiling: kept.append(made),
    )
    GPUModelRunner._init_minimal_kv_cache_for_profiling(runner)
    (made,) = kept
    return [release.row_of(group) for group in made.kv_cache_groups]


def coordinate(made, config, case, found):
    """The scheduler's coordinator takes the groups; the drafter's are the ones that it drops a block of."""
    scheduler_block, hash_block = found["block_sizes"]
    batches = getattr(config, "max_in_flight_tokens", case["max_num_batched_tokens"])
    known = {
        "max_num_batched_tokens": batches,
        "max_in_flight_tokens": batches,
        "scheduler_block_size": scheduler_block,
    }
    takes = signature(get_kv_cache_coordinator).parameters
    coordinator = get_kv_cache_coordinator(
        kv_cache_config=kv_cache_utils.generate_scheduler_kv_cache_config([made]),
        max_model_len=case["max_model_len"],
        use_eagle=case["drafter"] is not None,
        enable_caching=case["prefix_caching"],
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        hash_block_size=hash_block,
        **{name: value for name, value in known.items() if name in takes},
    )
    found["dropping"] = sorted(coordinator.eagle_group_ids)


def aux_layers(case):
    """Target layers whose hidden states the release's V1 model runner collects for a DFlash drafter."""
    drafter = SimpleNamespace(dflash_config=case["dflash_config"], **case["more"])
    speculative = SimpleNamespace(method="dflash", draft_model_config=SimpleNamespace(hf_config=drafter))
    if case["corrected"]:
        dflash_hidden_states.correct(SimpleNamespace(speculative_config=speculative))
    runner = SimpleNamespace(speculative_config=speculative)
    return {"layers": list(GPUModelRunner._get_eagle3_aux_layers_from_config(runner))}


def vendors_builder(case):
    """Whose builder a platform that has one of its own gets: without a plan, and with one."""

    class VendorPlatform(release.SimulatedGPU):
        @classmethod
        def get_kv_cache_config_builder_cls(cls, vllm_config):
            return "vendor.Builder"

    release.simulate("cuda", 90)
    release.platforms.current_platform.__class__ = VendorPlatform
    assert patch_for(vllm.__version__).install()
    named = release.platforms.current_platform.get_kv_cache_config_builder_cls
    without = named(SimpleNamespace(additional_config={}))
    try:
        return {"without": without, "with": named(SimpleNamespace(additional_config={KEY: {"plan": case["plan"]}}))}
    except BuilderConflictError as error:
        return {"without": without, "refused": str(error)}


QUESTIONS = {"with_plan": with_plan, "aux_layers": aux_layers, "vendors_builder": vendors_builder}

if __name__ == "__main__":
    print(json.dumps({"ready": vllm.__file__}), file=release.REPLIES, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(QUESTIONS[question["question"]](question)), file=release.REPLIES, flush=True)
