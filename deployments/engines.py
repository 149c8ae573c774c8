"""Which engine a replica runs."""

from hybrid_serve.engine.base import Engine


def make_engine(implementation: str) -> Engine:
    """A new engine, not started.

    Raises:
        ValueError: the name is not known; the message lists those that are.
    """
    if implementation == "vllm":
        from hybrid_serve.engine.vllm_engine import VLLMEngine

        return VLLMEngine()
    if implementation == "fake":
        from hybrid_serve.engine.fake import FakeEngine

        return FakeEngine()
    raise ValueError(f"engine {implementation!r} is not known: vllm, fake")
