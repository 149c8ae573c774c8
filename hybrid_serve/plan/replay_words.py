"""What ReplaySSM would bring to a plan, and whether a release has it."""

from typing import NamedTuple

from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.layer_words import mamba_names
from hybrid_serve.plan.replay import ring_tokens, with_replayssm
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.plan.workload import mean_concurrency, mean_request_bytes, state_bytes_of_a_request

NEWEST_LOOKED_AT = "0.33"
RELEASED_WITH_A_DRAFT = {"mamba2": "0.32"}
"""First checked release that replays a draft, by mamba kind."""


class Replayed(NamedTuple):
    """The best plan's figures with ReplaySSM; `released`: this release has it for the target's mamba layers."""

    released: bool
    request_bytes: int
    concurrency_of_workload: float
    text: str


def replayed(decision: Decision, inputs: PlanInputs) -> Replayed | None:
    """None where ReplaySSM would change nothing, or no engine starts."""
    what_if = with_replayssm(inputs)
    if what_if is None or isinstance(decision.chosen, Impossible):
        return None
    verdict = decide(what_if).chosen
    if isinstance(verdict, Impossible):
        return None
    before, after = decision.chosen.plan, verdict.plan
    held, fitting = mean_request_bytes(after, what_if), mean_concurrency(after, what_if)
    text = (
        f"{_where(inputs)}: one state and the inputs of {ring_tokens(what_if)} tokens in each layer, "
        f"{state_bytes_of_a_request(what_if):,} bytes a request instead of {state_bytes_of_a_request(inputs):,}. A "
        f"request would hold {held:,} bytes in all instead of {mean_request_bytes(before, inputs):,}, and "
        f"{fitting:.2f} would fit instead of {mean_concurrency(before, inputs):.2f}."
    )
    released = what_if.capabilities.replayssm_kinds <= inputs.capabilities.replayssm_kinds
    return Replayed(released, held, fitting, text)


def _where(inputs: PlanInputs) -> str:
    kinds = {layers.kind for layers in inputs.target.mamba}
    version, names = inputs.capabilities.version, mamba_names(inputs)
    if kinds <= inputs.capabilities.replayssm_kinds:
        return f"vLLM {version} has ReplaySSM for {names} layers (use_replayssm, without prefix caching)"
    if kinds <= RELEASED_WITH_A_DRAFT.keys():
        first = max(RELEASED_WITH_A_DRAFT[kind] for kind in kinds)
        return f"Not in vLLM {version}, but in {first}: ReplaySSM for {names} layers with a drafter"
    return (
        f"Not in any vLLM release (looked at: up to {NEWEST_LOOKED_AT}), so an estimate: what ReplaySSM would bring to "
        f"{names} layers with a drafter"
    )
