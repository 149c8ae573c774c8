"""From the configuration to facts, settings and a planning problem: the same steps in the builder and in replicas."""

from dataclasses import dataclass
from importlib import resources

from deployments.config import DEMO_DRAFT, DEMO_TARGET, MTP, ServedPool
from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.device import DeviceFacts, DeviceKind
from hybrid_serve.facts.errors import fail
from hybrid_serve.facts.memory import GPU_MEMORY_UTILIZATION, kv_memory_bytes
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.pairing import speculative_tokens
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs, Workload


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and its drafter, if it has one."""

    target: TargetFacts
    drafter: DrafterFacts | None

    @property
    def weights_bytes(self) -> int:
        """Of both; 0 for a folder without weights."""
        drafter = self.drafter.weights_bytes if self.drafter else None
        return (self.target.weights_bytes or 0) + (drafter or 0)


def source_of(name: str) -> str:
    """The folder of a shipped model on this machine; anything else as it is."""
    if name in (DEMO_TARGET, DEMO_DRAFT):
        return str(resources.files("hybrid_serve.demo") / name.partition(":")[2])
    return name


def read_pair(config: ServedPool, device: DeviceKind) -> Pair:
    """Facts of the pair from its `config.json` files and weight headers; no weights are read or downloaded.

    Raises:
        FactsError: what is missing in one of them; a drafter that is not served yet.
    """
    model = config.model
    assert model.target is not None, "a ModelConfig always has a target"
    if model.drafter == MTP:
        raise fail(
            f"model.drafter is mtp: the MTP modules of {model.target} can be planned for (hybrid-serve plan --drafter "
            "mtp), but are not served yet",
            "Give another drafter, or none",
        )
    ssm = config.engine.mamba_ssm_cache_dtype
    if ssm == "auto" and device == "cpu":
        ssm = "float32"
    target = read_target(source_of(model.target), model.target_revision, mamba_ssm_cache_dtype=ssm)
    drafter = None
    if model.drafter is not None:
        drafter = read_drafter(source_of(model.drafter), model.drafter_revision)
    return Pair(target=target, drafter=drafter)


def engine_settings(config: ServedPool, pair: Pair) -> EngineSettings:
    """What the engine is told and the planner plans with. Where the pools agree on max_model_len, it is the most that
    they may agree on: the model's own limit."""
    engine = config.engine
    asked = engine.max_model_len
    longest = asked if isinstance(asked, int) else pair.target.max_position_embeddings
    return EngineSettings(
        tensor_parallel_size=engine.tensor_parallel_size,
        kv_dtype=engine.kv_dtype,
        draft_kv_dtype=engine.draft_kv_dtype,
        num_speculative_tokens=speculative_tokens(engine.num_speculative_tokens, pair.drafter),
        max_model_len=longest,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        prefix_caching=engine.prefix_caching,
    )


def inputs_for(config: ServedPool, pair: Pair, device: DeviceFacts) -> PlanInputs:
    """The planning problem of one replica on a device.

    Raises:
        FactsError: everything that does not fit: the pair, K, max_model_len, memory.
    """
    engine = config.engine
    memory = kv_memory_bytes(
        device,
        pair.weights_bytes,
        engine.tensor_parallel_size,
        engine.gpu_memory_utilization or GPU_MEMORY_UTILIZATION,
        explicit_bytes=engine.kv_memory,
    )
    return plan_inputs(
        target=pair.target,
        drafter=pair.drafter,
        settings=engine_settings(config, pair),
        device=device,
        kv_memory_bytes=memory,
        vllm=config.pool.release,
        workload=Workload(
            contexts=tuple((c.tokens, c.weight) for c in config.workload.contexts), prefer=config.workload.prefer
        ),
    )
