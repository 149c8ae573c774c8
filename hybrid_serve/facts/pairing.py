"""Whether a drafter fits a target: every problem at once, before a weight is read."""

from collections.abc import Callable

from hybrid_serve.facts.errors import Problem, fail
from hybrid_serve.facts.model import DrafterFacts, TargetFacts

__all__ = ["Problem", "check_pair", "speculative_tokens"]

OTHER_DRAFTER = "Give the drafter that was trained for this target"


def speculative_tokens(asked: int | None, drafter: DrafterFacts | None) -> int:
    """K: as asked, or else the drafter's own largest; 0 without a drafter.

    Raises:
        FactsError: nothing was asked, and the drafter has no K of its own.
    """
    if asked is not None or drafter is None:
        return asked or 0
    drafted = drafter.default_speculative_tokens
    if drafted is None:
        raise fail(
            f"num_speculative_tokens is not set, and drafter {drafter.source} ({drafter.method}) has no K of its own",
            "Set num_speculative_tokens, e.g. to 3",
        )
    return drafted


def check_pair(target: TargetFacts, drafter: DrafterFacts, num_speculative_tokens: int) -> tuple[Problem, ...]:
    """All that keeps `drafter` from drafting K = `num_speculative_tokens` tokens for `target`; empty if it fits."""
    problems = [problem for check in _CHECKS[drafter.method] for problem in check(target, drafter)]
    return (*_method(target, drafter), *problems, *_draft_length(drafter, num_speculative_tokens))


def _method(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    if drafter.method in target.methods:
        return ()
    return (
        Problem(
            reason=f"A {drafter.method} drafter is not planned for {target.source} ({target.family}): vLLM 0.29 hands "
            "out no hidden states of this family, and leaves K out when it aligns pages, so that a state may not fit",
            remedy="Give no drafter",
        ),
    )


def _fed_hidden_size(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    if drafter.target_hidden_size == target.hidden_size:
        return ()
    return (
        Problem(
            reason=f"{drafter.source} takes hidden states of {drafter.target_hidden_size}, "
            f"{target.source} has {target.hidden_size}",
            remedy=OTHER_DRAFTER,
        ),
    )


def _hidden_sizes(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    """The drafter is fed the target's hidden states, and shares its embedding and head."""
    if fed := _fed_hidden_size(target, drafter):
        return fed
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


def _aux_layers(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    """EAGLE-3 may read the embedding (-1), and leaves the choice to the target where it names no layer."""
    outside = [i for i in drafter.target_layer_ids if not -1 <= i < target.num_layers]
    if not outside:
        return ()
    return (
        Problem(
            reason=f"{drafter.source} reads target layers {outside}, {target.source} has layers 0 to "
            f"{target.num_layers - 1}",
            remedy=f"{OTHER_DRAFTER}, or correct eagle_aux_hidden_state_layer_ids",
        ),
    )


def _same_vocabulary(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    if drafter.vocab_size == target.vocab_size:
        return ()
    return (
        Problem(
            reason=f"{drafter.source} has a vocabulary of {drafter.vocab_size}, {target.source} of {target.vocab_size}",
            remedy=OTHER_DRAFTER,
        ),
    )


def _covered_vocabulary(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    """A DSpark drafter may know more tokens than its target, and then brings its own embedding."""
    return _same_vocabulary(target, drafter) if drafter.vocab_size < target.vocab_size else ()


def _mask_in_own_vocabulary(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    if drafter.mask_token_id is None or drafter.mask_token_id < drafter.vocab_size:
        return ()
    return (
        Problem(
            reason=f"The mask token {drafter.mask_token_id} of {drafter.source} is outside its vocabulary "
            f"({drafter.vocab_size})",
            remedy=f"{OTHER_DRAFTER}, or correct mask_token_id",
        ),
    )


def _mask_in_targets_vocabulary(target: TargetFacts, drafter: DrafterFacts) -> tuple[Problem, ...]:
    if drafter.mask_token_id is None or drafter.mask_token_id < target.vocab_size:
        return ()
    return (
        Problem(
            reason=f"The mask token {drafter.mask_token_id} of {drafter.source} is outside the vocabulary of "
            f"{target.source} ({target.vocab_size}), whose embedding it is looked up in",
            remedy=f"{OTHER_DRAFTER}, or correct dflash_config.mask_token_id",
        ),
    )


def _draft_length(drafter: DrafterFacts, num_speculative_tokens: int) -> tuple[Problem, ...]:
    """At least 1; no more than it was trained for; a multiple of the MTP modules, which predict in turn."""
    asked, largest, modules = num_speculative_tokens, drafter.max_speculative_tokens, drafter.mtp_modules
    if asked < 1:
        return (
            Problem(
                reason=f"num_speculative_tokens is {asked} with drafter {drafter.source}",
                remedy=f"Set it to {'1 or more' if largest is None else f'1 to {largest}'}, or give no drafter",
            ),
        )
    if largest is not None and asked > largest:
        trained = f"block_size {drafter.block_size}" + ("" if drafter.samples_anchor else " - 1")
        return (
            Problem(
                reason=f"num_speculative_tokens is {asked}, {drafter.source} was trained for at most {largest} "
                f"({trained})",
                remedy=f"Set num_speculative_tokens to {largest} or less",
            ),
        )
    if modules is not None and asked > modules and asked % modules:
        return (
            Problem(
                reason=f"num_speculative_tokens is {asked}, no multiple of the {modules} MTP modules of "
                f"{drafter.source}, which predict in turn",
                remedy=f"Set num_speculative_tokens to {modules}, or a multiple of it",
            ),
        )
    return ()


_Check = Callable[[TargetFacts, DrafterFacts], tuple[Problem, ...]]

_CHECKS: dict[str, tuple[_Check, ...]] = {
    "dflash": (_hidden_sizes, _target_layers, _same_vocabulary, _mask_in_targets_vocabulary),
    "eagle3": (_fed_hidden_size, _aux_layers, _same_vocabulary),
    "dspark": (_fed_hidden_size, _target_layers, _covered_vocabulary, _mask_in_own_vocabulary),
    "mtp": (_hidden_sizes, _same_vocabulary),
    "draft_model": (_same_vocabulary,),
}
