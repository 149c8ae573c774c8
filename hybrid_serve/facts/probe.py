"""Measures the device of this process, without importing torch."""

import importlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import fail

MIB = 1024**2
NVIDIA_SMI_TIMEOUT_S = 30.0


def measure_device(kind: Literal["auto", "cuda", "cpu"] = "auto") -> DeviceFacts:
    """The GPU that this process may use (CUDA_VISIBLE_DEVICES), or the CPU.

    Of several GPUs the one with the least memory: with tensor parallelism every rank gets the same plan.

    Args:
        kind: `auto` takes a GPU if there is one.

    Raises:
        FactsError: `cuda` was asked for and neither NVML nor nvidia-smi shows a GPU.
    """
    if kind == "cpu":
        return _cpu()
    gpus = _gpus()
    if gpus:
        return min(gpus, key=lambda gpu: gpu.memory_bytes)
    if kind == "auto":
        return _cpu()
    raise fail(
        f"No GPU is visible (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')})",
        "Check `nvidia-smi` and the GPUs given to this replica, or measure the CPU",
    )


def _gpus() -> list[DeviceFacts]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = None if visible is None else [part.strip() for part in visible.split(",") if part.strip()]
    if ids == [] or (ids and ids[0] == "-1"):
        return []
    nvml = _nvml()
    return _from_nvml(nvml, ids) if nvml is not None else _from_nvidia_smi(ids)


def _nvml() -> Any | None:
    """The NVML binding (nvidia-ml-py), initialised; None if it or the driver is absent."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _from_nvml(nvml: Any, ids: Sequence[str] | None) -> list[DeviceFacts]:
    """`ids` as in CUDA_VISIBLE_DEVICES: indices in PCI order, or UUIDs. None for all."""
    try:
        if ids is None:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        else:
            handles = [
                nvml.nvmlDeviceGetHandleByIndex(int(i)) if i.isdigit() else nvml.nvmlDeviceGetHandleByUUID(i)
                for i in ids
            ]
        return [_nvml_device(nvml, handle) for handle in handles]
    except nvml.NVMLError as error:
        raise fail(
            f"NVML does not show GPUs {ids}: {error}", "Check CUDA_VISIBLE_DEVICES and `nvidia-smi -L`"
        ) from None
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, handle: Any) -> DeviceFacts:
    name = nvml.nvmlDeviceGetName(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return DeviceFacts(
        kind="cuda",
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        sm=major * 10 + minor,
    )


def _from_nvidia_smi(ids: Sequence[str] | None) -> list[DeviceFacts]:
    """As `_from_nvml`, to whole MiB. nvidia-smi may take some seconds where persistence mode is off."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    if ids is not None:
        command += ["-i", ",".join(ids)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    return [_smi_device(line) for line in answer.stdout.splitlines() if line.strip()]


def _smi_device(line: str) -> DeviceFacts:
    try:
        name, mib, capability = (part.strip() for part in line.rsplit(",", 2))
        return DeviceFacts(kind="cuda", name=name, memory_bytes=int(mib) * MIB, sm=int(capability.replace(".", "")))
    except ValueError:
        raise fail(f"nvidia-smi answered {line!r}", "Give the device's memory and sm from the catalogue") from None


def _cpu(root: Path = Path("/")) -> DeviceFacts:
    """The node's memory, or the container's if that is smaller. `root` is for a test's own /proc and /sys."""
    return DeviceFacts(kind="cpu", name="cpu", memory_bytes=min([_node_memory(root), *_cgroup_limits(root)]))


def _node_memory(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(root: Path) -> list[int]:
    """Memory limits of this process's cgroup and of those above it, v2 and v1; none if unlimited."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = Path(path.lstrip("/"))
        limits += [limit for folder in (own, *own.parents) if (limit := _limit(mount / folder / file)) is not None]
    return limits


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
