"""Patch for vLLM 0.20.1 to 0.25: the planned groups, and an error that says what stock grouping could not do.

Grouping is replaced where 0.26 has it too (`kv_cache_utils`). Stock grouping there pads no page: it ends in a bare
AssertionError when a mamba state's page divides the largest one, and in a NotImplementedError without any number when a
page does not. That is where a drafter with more bytes per token than its target ends up.

Remove when no supported vLLM is older than 0.26.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import wraps
from typing import Any

from hybrid_serve.engine.patches import kv_cache_utils
from hybrid_serve.plan.best import ASK_FOR_A_PLAN

LAYERS_NAMED = 3


class PagesDoNotUnifyError(NotImplementedError):
    """Stock vLLM cannot give all layers one page size; the message has the layers, the pages and the remedy.

    A NotImplementedError, as vLLM documents it for this case.
    """


def install() -> bool:
    """Patch this process. Idempotent; False if it was in place already."""
    from vllm.v1.core import kv_cache_utils as vllm_grouping

    if not kv_cache_utils.install():
        return False
    unify = vllm_grouping.unify_kv_cache_spec_page_size

    @wraps(unify)
    def unify_kv_cache_spec_page_size(kv_cache_spec: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(unify(kv_cache_spec))
        except (AssertionError, NotImplementedError) as error:
            raise PagesDoNotUnifyError(explanation(kv_cache_spec)) from error

    vllm_grouping.unify_kv_cache_spec_page_size = unify_kv_cache_spec_page_size
    return True


def installed() -> bool:
    """Whether this process is patched."""
    return kv_cache_utils.installed()


def explanation(specs: Mapping[str, Any]) -> str:
    """What stock vLLM was asked to do with these layers, why it cannot, and what can."""
    import vllm

    alike: dict[tuple[int, str, int], list[str]] = defaultdict(list)
    for name, spec in specs.items():
        alike[(spec.page_size_bytes, type(spec).__name__, spec.block_size)].append(name)
    largest = max(page for page, _, _ in alike)
    rows = [
        f"{len(names)} {kind} layers ({_some(names)}) have pages of {page:,} bytes in blocks of {block:,} tokens"
        + _verdict(kind, page, largest)
        for (page, kind, block), names in sorted(alike.items(), reverse=True)
    ]
    return (
        f"vLLM {vllm.__version__} wants one page size for all layers, grows blocks until a page is as large as the "
        f"largest ({largest:,} bytes), and cannot do that here: {'; '.join(rows)}. Run this model on a KV plan: "
        f"{ASK_FOR_A_PLAN}"
    )


def _verdict(kind: str, page: int, largest: int) -> str:
    if page == largest:
        return ""
    if largest % page:
        return f", which {largest:,} is no multiple of"
    return ", which no block size changes" if kind == "MambaSpec" else ""


def _some(names: list[str]) -> str:
    more = len(names) - LAYERS_NAMED
    return ", ".join(names[:LAYERS_NAMED]) + (f" and {more} more" if more > 0 else "")
