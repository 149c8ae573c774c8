"""Why stock vLLM fails or wastes memory on given inputs, and what to change: paragraphs with the numbers.

The story follows vLLM's steps: bytes of the layers, alignment of the target's block, one page for all, groups, the
bill. Figures come from the functions that `stock()` itself runs.
"""

from dataclasses import replace
from typing import NamedTuple

from hybrid_serve.plan.buckets import AttentionBucket, MambaBucket, buckets_of
from hybrid_serve.plan.capacity import states_per_request
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.layer_words import bucket_facts, bucket_name, groups_in_words, joined, times
from hybrid_serve.plan.refusals import refusal
from hybrid_serve.plan.replay_words import replayed
from hybrid_serve.plan.search import contexts_of
from hybrid_serve.plan.specs import LayerSpec, align, layer_specs
from hybrid_serve.plan.stock import uniform_splits, unify
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch
from hybrid_serve.plan.workload import (
    by_layer_type,
    mean_concurrency,
    mean_floor_bytes,
    mean_request_bytes,
    percent_over,
    state_bytes_of_a_request,
    state_share,
)
from hybrid_serve.sizes import format_size

LITTLE_GAIN = 0.03
"""Stock is called fine where the best plan holds at most this share more requests."""


MANY_TIMES = 3
"""Groups are worth a word where stock has at least this many times the best plan's."""


class Explanation(NamedTuple):
    """`text`: paragraphs, unwrapped."""

    decision: Decision
    text: tuple[str, ...]


def explain(inputs: PlanInputs) -> Explanation:
    """What stock vLLM does with these inputs, why, what it costs, and what to do instead."""
    decision = decide(inputs)
    note = inputs.capabilities.note
    text = [f"{note}."] if note else []
    if (refused := refusal(inputs)) is not None:
        return Explanation(decision, (*text, f"No engine starts: {refused.reason}. To do: {refused.remedy}."))
    text.append(_bytes(inputs))
    gain = _gain(decision, inputs)
    if gain is not None and gain <= LITTLE_GAIN:
        text.append(_stock_is_fine(decision, gain, inputs))
    else:
        text += [_stock_story(decision, inputs), _change(decision, inputs)]
    text += _states(inputs)
    if (what_if := replayed(decision, inputs)) is not None:
        text.append(what_if.text)
    return Explanation(decision, tuple(text))


def _gain(decision: Decision, inputs: PlanInputs) -> float | None:
    """How many more mean requests the best plan holds, as a share; None if either does not start."""
    if isinstance(decision.stock, Impossible) or isinstance(decision.chosen, Impossible):
        return None
    stock_concurrency = mean_concurrency(decision.stock.plan, inputs)
    return mean_concurrency(decision.chosen.plan, inputs) / stock_concurrency - 1


def _bytes(inputs: PlanInputs) -> str:
    buckets = buckets_of(inputs)
    share = " (its share on one GPU)" if inputs.settings.tensor_parallel_size > 1 else ""
    text = f"What a layer keeps{share}: {joined([bucket_facts(bucket, inputs) for bucket in buckets])}."
    attention = [bucket for bucket in buckets if isinstance(bucket, AttentionBucket)]
    target = max((b.bytes_per_token for b in attention if b.owner == "target"), default=0)
    drafter = max((b.bytes_per_token for b in attention if b.owner == "drafter"), default=0)
    if target and drafter > target:
        text += f" The drafter's {drafter:,} bytes per token are {times(drafter / target)} the target's {target:,}."
    asked = len(inputs.drafter.buckets) if inputs.drafter else 0
    if inputs.capabilities.dflash_sliding_as_full and asked and len(buckets) < len(inputs.target.buckets) + asked:
        text += f" (vLLM {inputs.capabilities.version} runs the drafter's sliding layers as full ones.)"
    return text


def _stock_is_fine(decision: Decision, gain: float, inputs: PlanInputs) -> str:
    """Stock wastes no memory worth the trouble; perhaps it has many groups."""
    assert not isinstance(decision.stock, Impossible) and not isinstance(decision.chosen, Impossible)
    stock_plan, plan = decision.stock.plan, decision.chosen.plan
    text = f"Stock vLLM is fine here. {_bill(stock_plan, inputs)}"
    if isinstance(decision.chosen, Fits):
        return f"{text}, and no plan of ours is better. There is nothing to change."
    more = f"{abs(gain):.1%} {'more' if gain > 0 else 'fewer'}" if abs(gain) >= 0.0005 else "as many"
    text += f"; the best plan would hold {more}."
    if MANY_TIMES * len(plan.groups) > len(stock_plan.groups):
        return f"{text} There is nothing to change."
    return (
        f"{text} What is left to win is groups, each with a block table of its own in every step: "
        f"{len(plan.groups)} instead of {len(stock_plan.groups)}. To do, if steps are too slow: "
        f"{decision.chosen.remedy}."
    )


def _stock_story(decision: Decision, inputs: PlanInputs) -> str:
    layout = inputs.settings.kv_cache_layout or ""
    sentences = [*_alignment(inputs)]
    specs = layer_specs(inputs)
    if len({spec.type_key for spec in specs}) > 1 and not layout.startswith("B"):
        sentences += _unifying(specs, inputs)
    verdict = decision.stock
    plan = verdict.computed if isinstance(verdict, Impossible) else verdict.plan
    if plan is not None and plan.pages == "packed":
        sentences.append(_packed(plan, inputs))
    if isinstance(verdict, Fits):
        sentences.append(f"{_bill(verdict.plan, inputs)}.")
    elif isinstance(verdict, Impossible) and verdict.computed is not None:
        sentences.append(f"The start ends there: {verdict.reason} ({verdict.error}).")
    return " ".join(sentences)


def _alignment(inputs: PlanInputs) -> list[str]:
    buckets = buckets_of(inputs)
    block_size, page = align(buckets, inputs)
    states = [bucket.state_bytes for bucket in buckets if isinstance(bucket, MambaBucket)]
    if not page:
        return []
    return [
        f"Stock vLLM {inputs.capabilities.version} grows the target's block until its page covers a mamba state of "
        f"{max(states):,} bytes: {block_size:,} tokens x {page // block_size:,} = {page:,} bytes "
        f"({percent_over(page, max(states)):+.2f} %)."
    ]


def _unifying(specs: tuple[LayerSpec, ...], inputs: PlanInputs) -> list[str]:
    """One page for all layers, and the groups that come of it; or why it fails."""
    largest = max(specs, key=lambda spec: spec.page)
    name = bucket_name(largest.bucket, inputs)
    sentences = []
    if isinstance(largest.bucket, AttentionBucket) and len({spec.page for spec in specs}) > 1:
        sentences.append(
            f"In such a block {name} {_need(largest)} {largest.block_size:,} x {largest.bucket.bytes_per_token:,} = "
            f"{largest.page:,} bytes, and all layers must have one page size, so the page becomes {largest.page:,}."
        )
    unified = unify(specs, inputs)
    if isinstance(unified, Impossible):
        return [*sentences, _does_not_unify(specs, unified, inputs)]
    sentences += _fillings(specs, unified, inputs)
    splits = uniform_splits(unified)
    counts = [sum(spec.bucket.layers for spec in alike) for alike, _ in splits]
    groups = sum(number for _, number in splits)
    rarest = min(counts)
    alike = splits[counts.index(rarest)][0]
    owners = " and ".join(dict.fromkeys(bucket_name(spec.bucket, inputs) for spec in alike))
    if groups > len(splits):
        sentences.append(
            f"Groups are as wide as the rarest layer kind ({owners}), so there are {groups} groups of at most "
            f"{rarest}, each with a block table of its own in every step."
        )
    return sentences


def _packed(plan: KVPlan, inputs: PlanInputs) -> str:
    """How stock fills blocks of unlike layers, and which layer type wastes most."""
    worst = max(by_layer_type(plan, inputs), key=lambda part: part.padding)
    return (
        f"With blocks outermost ({plan.kv_cache_layout}) each group fills a block of {plan.block_bytes:,} bytes in its "
        f"own way: {groups_in_words(plan.groups)}. Most is wasted on the {worst.owner}'s {worst.kind} layers: "
        f"{worst.padding:,} of {worst.held:,} bytes."
    )


def _need(spec: LayerSpec) -> str:
    return "needs" if spec.bucket.layers == 1 else "need"


def _fillings(specs: tuple[LayerSpec, ...], unified: tuple[LayerSpec, ...], inputs: PlanInputs) -> list[str]:
    """How each layer type fills the page: a larger block, or padding."""
    sentences = []
    for before, after in zip(specs, unified, strict=True):
        name = bucket_name(before.bucket, inputs)
        if isinstance(before.bucket, MambaBucket):
            over = percent_over(after.page, before.bucket.state_bytes)
            if after.page > before.page:
                sentences.append(
                    f"A state has no tokens, so it cannot scale as a block can: {name} are padded from "
                    f"{before.bucket.state_bytes:,} to {after.page:,} bytes ({over:+.0f} %)."
                )
        elif after.block_size != before.block_size:
            sentences.append(f"{name[0].upper()}{name[1:]} fill it with {after.block_size:,} tokens.")
        elif after.page > before.page:
            over = percent_over(after.page, before.page)
            sentences.append(f"{before.page:,} does not divide it, so {name} are padded to it ({over:+.0f} %).")
    return sentences


def _does_not_unify(specs: tuple[LayerSpec, ...], failed: Impossible, inputs: PlanInputs) -> str:
    version = inputs.capabilities.version
    largest = max(spec.page for spec in specs)
    if failed.error != "AssertionError":
        return (
            f"There the start ends, in `unify_kv_cache_spec_page_size`: {failed.reason}, because the smaller page does "
            "not divide the larger one and this release pads none."
        )
    state = next(s for s in specs if isinstance(s.bucket, MambaBucket) and s.page != largest and largest % s.page == 0)
    return (
        f"vLLM {version} brings a smaller page to that size by putting more tokens into the block. A state has no "
        f"tokens, so it cannot scale: the page of {bucket_name(state.bucket, inputs)} stays {state.page:,} bytes, no "
        f"padding is known to this release, and `unify_kv_cache_spec_page_size` asserts that the page is {largest:,} "
        "now. The start ends with a bare AssertionError, after all weights are loaded."
    )


def _words(inputs: PlanInputs) -> str:
    contexts = contexts_of(inputs)
    return f"A request of {contexts[0][0]:,} tokens" if len(contexts) == 1 else "A mean request of the workload"


def _bill(plan: KVPlan, inputs: PlanInputs) -> str:
    held, floor = mean_request_bytes(plan, inputs), mean_floor_bytes(inputs)
    padding = sum(part.padding for part in by_layer_type(plan, inputs))
    return (
        f"{_words(inputs)} holds {held:,} bytes in {len(plan.groups)} groups, {held / floor:.2f} times the {floor:,} "
        f"that it needs; {padding:,} of them are padding. {format_size(plan.kv_memory_bytes)} hold "
        f"{mean_concurrency(plan, inputs):.2f} such requests"
    )


def _change(decision: Decision, inputs: PlanInputs) -> str:
    chosen = decision.chosen
    if isinstance(chosen, Impossible):
        return f"No plan starts here: {chosen.reason}. To do: {chosen.remedy}."
    plan = chosen.plan
    text = (
        f"What to change: give every layer type the block that fills its page. The best plan has blocks of "
        f"{plan.block_bytes:,} bytes and these groups: {groups_in_words(plan.groups)}. {_bill(plan, inputs)}"
    )
    gain = _gain(decision, inputs)
    text += f" ({gain:+.0%})." if gain is not None else "."
    if isinstance(chosen, NeedsPatch):
        text += f" To do: {chosen.remedy}."
    return text


def _states(inputs: PlanInputs) -> list[str]:
    """How much of a request is mamba state, and what one drafted token costs."""
    drafted = inputs.settings.num_speculative_tokens
    if not inputs.target.mamba or not drafted:
        return []
    fewer = replace(inputs, settings=replace(inputs.settings, num_speculative_tokens=drafted - 1))
    states = state_bytes_of_a_request(inputs)
    saved = states - state_bytes_of_a_request(fewer)
    layers = sum(layers.count for layers in inputs.target.mamba)
    return [
        f"{_words(inputs)} is {state_share(inputs):.0%} mamba state (before padding): {layers} layers x "
        f"{states_per_request(inputs)} states at K = {drafted}, {states:,} bytes. One drafted token fewer saves "
        f"{saved:,} of them, so a smaller K is the other thing to change where acceptance is low.",
    ]
