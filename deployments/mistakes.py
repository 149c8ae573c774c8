"""What is wrong in a configuration, in sentences that name the place and what was meant."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from deployments.config_places import LISTS, Place, all_keys, keys_of, sections, words


def sentences(error: ValidationError, values: dict[str, Any]) -> Iterator[str]:
    """One for each mistake that pydantic found in `values`."""
    for detail in error.errors(include_url=False):
        where = words(detail["loc"], values)
        if detail["type"] == "extra_forbidden":
            yield f"{where}: unknown key{_hint(detail['loc'])}"
            continue
        if detail["type"] == "tuple_type":
            yield f"{where}: give a list, a `-` before each entry"
            continue
        message = detail["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        given = detail["input"]
        short = isinstance(given, str | int | float) and repr(given) not in message
        shown = f" (given: {given!r})" if short else ""
        yield f"{where or 'configuration'}: {message}{shown}"


def nearest(key: str, known: Iterable[str]) -> str:
    """`; did you mean a or b?`, also where only the last part of a dotted name is like the key."""
    known = list(known)
    by_leaf: dict[str, str] = {}
    for name in known:
        by_leaf.setdefault(name.rpartition(".")[2], name)
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    close += [by_leaf[leaf] for leaf in difflib.get_close_matches(key.rpartition(".")[2], by_leaf, n=3, cutoff=0.6)]
    names = list(dict.fromkeys(close))[:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _hint(place: Place) -> str:
    """What an unknown key may have been meant for."""
    *parents, key = place
    if not parents:
        return nearest(str(key), [*sections(), *LISTS, *all_keys()])
    elsewhere = [known for known in all_keys() if known.endswith(f".{key}")]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    here = list(keys_of(tuple(parents)))
    return nearest(str(key), here) + f" (known here: {', '.join(here)})"
