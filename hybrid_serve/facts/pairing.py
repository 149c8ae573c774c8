"""Whether a drafter fits a target: every problem at once, before a weight is read."""

from hybrid_serve.facts.errors import Problem
from hybrid_serve.facts.model import DrafterFacts, TargetFacts

__all__ = ["Problem", "check_pair"]

OTHER_DRAFTER = "Give the drafter that was trained for this target"


def check_pair(target: TargetFacts, drafter: DrafterFacts, num_speculative_tokens: int) -> tuple[Problem, ...]:
    """All that keeps `drafter` from drafting K = `num_speculative_tokens` tokens for `target`; empty if it fits."""
    return (
        *_hidden_sizes(target, drafter),
        *_target_layers(target, drafter),
        *_vocabularies(target, drafter),
        *_draft_length(drafter, num_speculative_tokens),
    )


def _hidden_sizes(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    """The drafter is fed the target's hidden states, and shares its embedding and head."""
    if drafter.target_hidden_size != target.hidden_size:
        return (
            Problem(
                reason=f"{drafter.source} takes hidden states of {drafter.target_hidden_size}, "
                f"{target.source} has {target.hidden_size}",
                remedy=OTHER_DRAFTER,
            ),
        )
    if drafter.hidden_size != target.hidden_size:
        return (
            Problem(
                reason=f"{drafter.source} has hidden size {drafter.hidden_size}, but shares the embedding of "
                f"{target.source}, of {target.hidden_size}",
                remedy=OTHER_DRAFTER,
            ),
        )
    return ()


def _target_layers(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    problems = []
    if drafter.num_target_layers not in (None, target.num_layers):
        problems.append(
            Problem(
                reason=f"{drafter.source} was trained for a target of {drafter.num_target_layers} layers, "
                f"{target.source} has {target.num_layers}",
                remedy=OTHER_DRAFTER,
            )
        )
    outside = [i for i in drafter.target_layer_ids if not 0 <= i < target.num_layers]
    if outside or not drafter.target_layer_ids:
        what = f"reads target layers {outside}" if outside else "reads no target layer"
        problems.append(
            Problem(
                reason=f"{drafter.source} {what}, {target.source} has layers 0 to {target.num_layers - 1}",
                remedy=f"{OTHER_DRAFTER}, or correct dflash_config.target_layer_ids",
            )
        )
    return tuple(problems)


def _vocabularies(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    problems = []
    if drafter.vocab_size != target.vocab_size:
        problems.append(
            Problem(
                reason=f"{drafter.source} has a vocabulary of {drafter.vocab_size}, "
                f"{target.source} of {target.vocab_size}",
                remedy=OTHER_DRAFTER,
            )
        )
    if drafter.mask_token_id >= target.vocab_size:
        problems.append(
            Problem(
                reason=f"The mask token {drafter.mask_token_id} of {drafter.source} is outside the vocabulary of "
                f"{target.source} ({target.vocab_size}), whose embedding it is looked up in",
                remedy=f"{OTHER_DRAFTER}, or correct dflash_config.mask_token_id",
            )
        )
    return tuple(problems)


def _draft_length(drafter: DrafterFacts, num_speculative_tokens: int) -> tuple[Problem, ...]:
    largest = drafter.max_speculative_tokens
    if num_speculative_tokens < 1:
        return (
            Problem(
                reason=f"num_speculative_tokens is {num_speculative_tokens} with drafter {drafter.source}",
                remedy=f"Set it to 1 to {largest}, or give no drafter",
            ),
        )
    if num_speculative_tokens > largest:
        return (
            Problem(
                reason=f"num_speculative_tokens is {num_speculative_tokens}, {drafter.source} was trained for at most "
                f"{largest} (block_size {drafter.block_size} - 1)",
                remedy=f"Set num_speculative_tokens to {largest} or less",
            ),
        )
    return ()
