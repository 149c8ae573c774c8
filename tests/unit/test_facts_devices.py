"""Devices: measured, from the catalogue, and what they leave for the KV cache."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hybrid_serve.facts.catalogue import ALIASES, GPUS, gpu
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.memory import kv_memory_bytes
from hybrid_serve.facts.probe import _cpu, measure_device

GIB, MIB = 1024**3, 1024**2
CPU = DeviceFacts(kind="cpu", name="cpu", memory_bytes=16 * GIB)


def fake_nvidia_smi(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """An `nvidia-smi` first on PATH that notes its arguments; NVML is hidden."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/arguments\ncat <<'END'\n{output}\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return folder / "arguments"


class FakeNVML(ModuleType):
    """The calls of nvidia-ml-py that are made, over a list of (uuid, name, bytes, (major, minor))."""

    class NVMLError(Exception):
        pass

    def __init__(self, devices: list[tuple[str, str, int, tuple[int, int]]], *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.devices, self.driver, self.initialised = devices, driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple:
        if index >= len(self.devices):
            raise self.NVMLError("Invalid Argument")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple:
        return next(device for device in self.devices if device[0] == uuid)

    def nvmlDeviceGetName(self, handle: tuple) -> bytes:
        return handle[1].encode()

    def nvmlDeviceGetMemoryInfo(self, handle: tuple) -> SimpleNamespace:
        return SimpleNamespace(total=handle[2])

    def nvmlDeviceGetCudaComputeCapability(self, handle: tuple) -> tuple[int, int]:
        return handle[3]


NODE = [
    ("GPU-a", "NVIDIA H200", 143771 * MIB, (9, 0)),
    ("GPU-b", "NVIDIA L40S", 46068 * MIB, (8, 9)),
]


@pytest.mark.parametrize(
    ("visible", "name"),
    [("0", "NVIDIA H200"), ("GPU-b", "NVIDIA L40S"), ("0,1", "NVIDIA L40S"), (None, "NVIDIA L40S")],
)
def test_nvml_is_asked_for_the_visible_gpu_with_the_least_memory(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str
) -> None:
    nvml = FakeNVML(NODE)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    facts = measure_device("cuda")
    assert (facts.name, facts.measured, nvml.initialised) == (name, True, 0)
    assert facts.sm == {"NVIDIA H200": 90, "NVIDIA L40S": 89}[name]


def test_a_gpu_that_nvml_does_not_show_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNVML(NODE))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(FactsError, match=r"\['7'\].*CUDA_VISIBLE_DEVICES"):
        measure_device()


def test_nvidia_smi_is_asked_without_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = fake_nvidia_smi(tmp_path, "NVIDIA RTX PRO 6000 Blackwell, Server, 97887, 12.0", monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    facts = measure_device()
    assert (facts.name, facts.memory_bytes, facts.sm) == (
        "NVIDIA RTX PRO 6000 Blackwell, Server",
        97887 * MIB,
        120,
    )
    assert "-i 3" in arguments.read_text()


def test_a_driver_that_is_not_loaded_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "NVIDIA-SMI has failed", monkeypatch, status=9)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNVML(NODE, driver=False))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert measure_device("auto").kind == "cpu"
    with pytest.raises(FactsError, match="No GPU is visible"):
        measure_device("cuda")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_replica_given_no_gpu_measures_the_cpu(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNVML(NODE))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert measure_device("auto").kind == "cpu"


def fake_node(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, value in limits.items():
        (root / "sys/fs/cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / path).write_text(value + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/\n", {}, 16 * GIB),
        ("0::/\n", {"memory.max": "max"}, 16 * GIB),
        ("0::/\n", {"memory.max": str(4 * GIB)}, 4 * GIB),
        ("0::/pod/box\n", {"pod/box/memory.max": "max", "pod/memory.max": str(2 * GIB)}, 2 * GIB),
        ("4:cpu,memory:/box\n0::/\n", {"memory/box/memory.limit_in_bytes": str(3 * GIB)}, 3 * GIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 16 * GIB),
    ],
    ids=["none", "v2-unlimited", "v2", "v2-parent", "v1", "v1-unlimited"],
)
def test_a_container_has_the_memory_of_its_cgroup(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    assert _cpu(fake_node(tmp_path, cgroup, limits)).memory_bytes == expected


def test_this_node_has_memory() -> None:
    facts = measure_device("cpu")
    assert (facts.kind, facts.sm, facts.measured) == ("cpu", None, True)
    assert facts.memory_bytes > 256 * MIB


@pytest.mark.parametrize("name", ["H200", "h200", "NVIDIA H200", " nvidia  h200 "])
def test_the_catalogue_takes_a_name_as_people_write_it(name: str) -> None:
    assert gpu(name) == DeviceFacts(kind="cuda", name="NVIDIA H200", memory_bytes=143771 * MIB, sm=90, measured=False)


@pytest.mark.parametrize(
    ("name", "sm", "gib"),
    [
        ("H20", 90, 95), ("H20-3e", 90, 140), ("H100", 90, 79), ("H200", 90, 140), ("B200", 100, 179),
        ("L40S", 89, 44), ("RTX PRO 6000 Blackwell", 120, 95), ("A100", 80, 80), ("A6000", 86, 47),
    ],
)  # fmt: skip
def test_the_catalogue_has_the_cards_of_the_fleet(name: str, sm: int, gib: int) -> None:
    facts = gpu(name)
    assert (facts.sm, facts.memory_bytes // GIB) == (sm, gib)


def test_every_alias_and_driver_name_leads_to_a_card() -> None:
    for name in [*GPUS, *ALIASES, *(driver_name for driver_name, _, _ in GPUS.values())]:
        assert gpu(name).kind == "cuda"


def test_an_unknown_gpu_is_refused_with_the_known_names() -> None:
    with pytest.raises(FactsError, match=r"'H999'.*H20-3e.*RTX PRO 6000"):
        gpu("H999")


def test_what_is_left_on_a_gpu_is_total_less_weights_less_reserve() -> None:
    total = gpu("H200").memory_bytes
    left = kv_memory_bytes(
        gpu("H200"), 70 * GIB, 2, 0.9, activation_bytes=3 * GIB, cuda_graph_bytes=2 * GIB, context_bytes=GIB
    )
    assert left == int(total * 0.9) - 35 * GIB - 6 * GIB


def test_more_gpus_leave_more_for_the_cache() -> None:
    figures = [kv_memory_bytes(gpu("H200"), 70 * GIB, tp) for tp in (1, 2, 4)]
    assert figures == sorted(set(figures))


def test_weights_that_do_not_fit_are_refused_with_all_figures() -> None:
    with pytest.raises(FactsError, match=rf"L40S.*{46068 * MIB} \* 0\.92.*{70 * GIB}"):
        kv_memory_bytes(gpu("L40S"), 70 * GIB)


def test_a_cpu_needs_an_explicit_amount() -> None:
    with pytest.raises(FactsError, match="kv_cache_memory_bytes"):
        kv_memory_bytes(CPU, GIB)
    assert kv_memory_bytes(CPU, GIB, explicit_bytes=2 * GIB) == 2 * GIB


@pytest.mark.parametrize("amount", [0, -1, 16 * GIB])
def test_an_explicit_amount_must_fit_the_device(amount: int) -> None:
    with pytest.raises(FactsError, match=str(16 * GIB)):
        kv_memory_bytes(CPU, 0, explicit_bytes=amount)


@pytest.mark.parametrize(("tp", "utilization"), [(0, 0.9), (1, 0.0), (1, 1.5)])
def test_impossible_settings_are_refused(tp: int, utilization: float) -> None:
    with pytest.raises(FactsError, match=rf"{utilization}, tensor_parallel_size {tp}"):
        kv_memory_bytes(gpu("H200"), GIB, tp, utilization)
