"""One patch module per shape of vLLM's KV cache planning API; the capabilities value names the one that serves."""

from importlib import import_module
from typing import Protocol

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities


class Patch(Protocol):
    """What a patch module offers."""

    def install(self) -> bool:
        """Patch this process. Idempotent; False if it was in place already."""
        ...

    def installed(self) -> bool:
        """Whether this process is patched."""
        ...


def patch_for(version: str) -> Patch:
    """The patch module for a vLLM version (`0.29.0`, or with a local part as in `0.29.0+cpu`).

    Raises:
        ValueError: no patch for that version; the message lists the supported ones.
    """
    release = version.split("+")[0]
    module = capabilities(release).patch
    if module is None:
        supported = ", ".join(sorted(v for v, c in CAPABILITIES.items() if c.patch))
        raise ValueError(f"no KV plan can be applied to vLLM {version}: supported are {supported}")
    patch: Patch = import_module(f"hybrid_serve.engine.patches.{module}")
    return patch
