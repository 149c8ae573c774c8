"""Public figures of GPUs, to plan for a card that is not here. A replica measures its own (`probe`)."""

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import fail

MIB = 1024**2

# Total memory in MiB as the driver reports it (the right-hand figure of nvidia-smi's Memory-Usage), with ECC as
# shipped; compute capability from NVIDIA's table of CUDA GPUs.
GPUS: dict[str, tuple[str, int, int]] = {
    # name: (the driver's name, MiB, sm)
    "H20": ("NVIDIA H20", 97871, 90),  # public nvidia-smi logs of the 500 W board; datasheet 96 GB
    "H20-3e": ("NVIDIA H20-3e", 143771, 90),  # datasheet 141 GB HBM3e, the H200's stacks: the H200's figure is taken
    "H100": ("NVIDIA H100 80GB HBM3", 81559, 90),  # nvidia-smi, SXM5: modal-labs/modal-client#2797
    "H200": ("NVIDIA H200", 143771, 90),  # nvidia-smi and NVML on such a card, SXM5
    "B200": ("NVIDIA B200", 183359, 100),  # public nvidia-smi logs
    "L40S": ("NVIDIA L40S", 46068, 89),  # public nvidia-smi logs, ECC on
    "RTX PRO 6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 120),  # public nvidia-smi logs
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, 80),  # nvidia-smi, SXM4: modal-labs/modal-client#2797
    "A6000": ("NVIDIA RTX A6000", 49140, 86),  # datasheet 48 GB, less 12 MiB; not checked on a card
}

# Further names: Ray's accelerator-type labels, and what people write.
ALIASES: dict[str, str] = {
    "H20 96GB": "H20",
    "H20 141GB": "H20-3e",
    "H100 80GB": "H100",
    "H100 SXM": "H100",
    "H200 141GB": "H200",
    "RTX PRO 6000 Blackwell": "RTX PRO 6000",
    "RTX PRO 6000 96GB": "RTX PRO 6000",
    "RTX-PRO-6000": "RTX PRO 6000",
    "A100 80GB": "A100",
    "A100-80G": "A100",
    "RTX A6000 48GB": "A6000",
    "A6000 48GB": "A6000",
    "RTX A6000": "A6000",
    "RTX-A6000": "A6000",
    "L40S 48GB": "L40S",
}


def gpu(name: str) -> DeviceFacts:
    """The catalogue's figures for one GPU; upper or lower case, with or without `NVIDIA`.

    Raises:
        FactsError: the name is not known; the text lists those that are.
    """
    key = _NAMES.get(_plain(name))
    if key is None:
        raise fail(
            f"GPU {name!r} is not in the catalogue: known are {', '.join(GPUS)}", "Give one of these, or measure it"
        )
    driver_name, mib, sm = GPUS[key]
    return DeviceFacts(kind="cuda", name=driver_name, memory_bytes=mib * MIB, sm=sm, measured=False)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").split()).removeprefix("nvidia ")


_NAMES: dict[str, str] = {
    **{_plain(key): key for key in GPUS},
    **{_plain(driver_name): key for key, (driver_name, _, _) in GPUS.items()},
    **{_plain(alias): key for alias, key in ALIASES.items()},
}
