"""How much of a device is left for the KV cache: an estimate, until an engine has measured it."""

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import fail

GIB = 1024**3
ACTIVATION_BYTES = 2 * GIB
CUDA_GRAPH_BYTES = 1 * GIB
CONTEXT_BYTES = 1 * GIB
GPU_MEMORY_UTILIZATION = 0.92  # vLLM 0.29's default, config/cache.py


def kv_memory_bytes(
    device: DeviceFacts,
    weights_bytes: int,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    *,
    explicit_bytes: int | None = None,
    activation_bytes: int = ACTIVATION_BYTES,
    cuda_graph_bytes: int = CUDA_GRAPH_BYTES,
    context_bytes: int = CONTEXT_BYTES,
) -> int:
    """Bytes for the KV cache on one device.

    On CUDA: total * utilization - weights / tp - activations - CUDA graphs - CUDA context and libraries.

    Where it is biased: vLLM measures the last three in a profiling run; here they are round figures for 8192 batched
    tokens, so the estimate is too low for a small model (by up to 3 GiB), and too high with a vision tower profiled on
    large images or with more batched tokens. vLLM also starts from the total that the CUDA runtime sees, a little
    below the driver's (0.4 % on an H200). Weights are taken as evenly split; what every rank holds in full (norms, a
    drafter's `fc`, KV heads fewer than tp) makes it slightly too high. Give `explicit_bytes` (vLLM's
    `kv_cache_memory_bytes`) where plan and engine must agree to the byte.

    Args:
        weights_bytes: target and drafter together, whole model.
        explicit_bytes: taken as it is; needed on a CPU, where vLLM has no default worth planning on.

    Raises:
        FactsError: a CPU without `explicit_bytes`, or nothing is left; the text has the figures.
    """
    if explicit_bytes is not None:
        if not 0 < explicit_bytes < device.memory_bytes:
            raise fail(
                f"{explicit_bytes} bytes of KV cache on {device.name}, which has {device.memory_bytes}",
                "Ask for more than 0 and less than the device has",
            )
        return explicit_bytes
    if device.kind == "cpu":
        raise fail("The KV cache memory of a CPU must be given", "Set kv_cache_memory_bytes")
    if not 0 < gpu_memory_utilization <= 1 or tensor_parallel_size < 1:
        raise fail(
            f"gpu_memory_utilization is {gpu_memory_utilization}, tensor_parallel_size {tensor_parallel_size}",
            "Give a utilization above 0 up to 1 and at least one GPU",
        )
    usable = int(device.memory_bytes * gpu_memory_utilization)
    weights = -(-weights_bytes // tensor_parallel_size)
    reserve = activation_bytes + cuda_graph_bytes + context_bytes
    left = usable - weights - reserve
    if left <= 0:
        raise fail(
            f"Nothing is left for the KV cache on {device.name}: usable {usable} bytes "
            f"({device.memory_bytes} * {gpu_memory_utilization}), weights {weights} per GPU, reserve {reserve}",
            "Raise tensor_parallel_size, take a larger GPU or a quantised checkpoint",
        )
    return left
