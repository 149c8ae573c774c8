"""From an offer to its answer. Pure, and the same on the planner and on a replica that plans for itself."""

from dataclasses import replace

from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.negotiation.agreement import Agreement, Refusal, agree, inputs_under, refused_unit
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer, Source
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.verdict import Impossible


def refused_offer(offer: ReplicaOffer) -> Refusal | None:
    """Why a replica is none of the fleet that it says it is of; None if it is one."""
    fleet = offer.fleet
    if fleet.pool(offer.pool) is None:
        return Refusal(
            pool=offer.pool,
            reason=f"the fleet of {fleet.model_name} declares the pools {', '.join(pool.name for pool in fleet.pools)}",
            remedy="deploy all pools from one configuration",
        )
    if (offer.model_name, offer.policy) != (fleet.model_name, fleet.policy):
        return Refusal(
            pool=offer.pool,
            reason=f"it serves {offer.model_name} by policy {offer.policy}, the fleet {fleet.model_name} by policy "
            f"{fleet.policy}",
            remedy="deploy all pools from one configuration",
        )
    return _other_weights("target", offer.target_fingerprint, fleet.target_fingerprint, offer.pool) or _other_weights(
        "drafter", offer.drafter_fingerprint, fleet.drafter_fingerprint, offer.pool
    )


def agreement_with(offer: ReplicaOffer) -> Agreement | Refusal:
    """What the declared fleet agrees on, with what this replica measured in place of what its pool declared.

    A configured max_model_len does not depend on who asks first: a replica that can't hold it is refused, the others
    are not.
    """
    return agree(offer.fleet.measured(offer.pool, offer.inputs))


def answer_to(offer: ReplicaOffer, agreed: Agreement | Refusal, source: Source, note: str = "") -> PlanAnswer:
    """The replica's plan under what the fleet agreed on, or why it may not start."""
    refusal = refused_offer(offer) or (agreed if isinstance(agreed, Refusal) else None)
    agreement = None if isinstance(agreed, Refusal) else agreed
    if refusal is not None or agreement is None:
        assert refusal is not None, "without an agreement there is a refusal"
        impossible = Impossible(reason=refusal.reason, remedy=refusal.remedy)
        decision = Decision(policy=offer.policy, chosen=impossible, stock=impossible)
        return PlanAnswer(
            agreement=agreement, inputs=offer.inputs, decision=decision, source=source, refusal=str(refusal), note=note
        )
    inputs = inputs_under(agreement, offer.inputs)
    decision = decide(inputs, offer.policy)
    answer = PlanAnswer(agreement=agreement, inputs=inputs, decision=decision, source=source, note=note)
    if isinstance(decision.chosen, Impossible):
        refusal = Refusal(
            pool=offer.pool,
            reason=f"under the fleet's max_model_len of {agreement.max_model_len:,} tokens: {decision.chosen.reason}",
            remedy=decision.chosen.remedy,
        )
        return replace(answer, refusal=str(refusal))
    unit = agreement.prefix_match_unit if inputs.settings.prefix_caching else None
    refusal = refused_unit(decision.chosen.plan, unit, offer.pool)
    if refusal is None:
        return answer
    impossible = Impossible(reason=refusal.reason, remedy=refusal.remedy, computed=decision.plan)
    return replace(answer, decision=replace(decision, chosen=impossible), refusal=str(refusal))


def _other_weights(role: str, found: Fingerprint | None, declared: Fingerprint | None, pool: str) -> Refusal | None:
    if found == declared:
        return None
    return Refusal(
        pool=pool,
        reason=f"its {role} has fingerprint {found or 'none'}, the fleet was deployed with {declared or 'none'} "
        "(geometry/weights)",
        remedy=f"deploy again so that every pool reads the same {role}, or give this machine the files that the fleet "
        "was deployed with (a checkpoint that is retrained in place changes its fingerprint)",
    )
