"""What the planner keeps in its store: agreements, overrides, and how often it started. Bounded."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from hybrid_serve.negotiation.agreement import Agreement
from hybrid_serve.negotiation.store import Store

logger = logging.getLogger(__name__)

KEY = "planner"
FORMAT = 1
MAX_MODELS = 256
MAX_OVERRIDES = 64
MAX_OVERRIDE_BYTES = 4096
RETRY_PERIOD_S = 5.0


class Kept:
    """One JSON document in a store, read once and written whole at every change.

    A store that can't be reached never costs a start or an answer: it is logged, and the next change, or `keep` after
    `RETRY_PERIOD_S`, writes everything again. What could not be read at the start is never written over: it is read
    before the first write, and what was set since then is added to it.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._failed_at: float | None = None
        self.starts = 0
        self.agreements: tuple[Agreement, ...] = ()
        self._overrides: dict[str, dict[str, Any]] = {}
        self._unread = True
        try:
            self._read()
        except Exception as error:
            logger.error("the planner starts without what it kept: %s", error)

    def count_start(self) -> None:
        """One more planner has started."""
        self.starts += 1
        self._save()

    def keep(self, agreements: tuple[Agreement, ...]) -> None:
        """These are the agreements from now on. Writes only if they changed, or if an earlier write failed."""
        changed = agreements != self.agreements
        again = self._failed_at is not None and self._clock() - self._failed_at >= RETRY_PERIOD_S
        self.agreements = agreements
        if changed or again:
            self._save()

    def overrides(self, model: str) -> dict[str, Any]:
        """What was set for a model; empty if nothing was."""
        return dict(self._overrides.get(model, {}))

    def all_overrides(self) -> dict[str, dict[str, Any]]:
        """What was set, by model."""
        return {model: dict(values) for model, values in self._overrides.items()}

    def set_override(self, model: str, key: str, value: Any) -> None:
        """Set one value for a model, or remove it (None).

        Raises:
            ValueError: no JSON, too large, or too many; nothing is changed then.
        """
        try:
            size = len(json.dumps({key: value}))
        except TypeError as error:
            raise ValueError(f"override {key}={value!r} is not JSON: {error}") from None
        if size > MAX_OVERRIDE_BYTES:
            raise ValueError(f"override {key} has {size:,} bytes as JSON, at most {MAX_OVERRIDE_BYTES:,} are kept")
        values = self.overrides(model)
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if len(values) > MAX_OVERRIDES:
            raise ValueError(f"{model} has {MAX_OVERRIDES} overrides already: remove one (set it to None) first")
        others = {name: kept for name, kept in self._overrides.items() if name != model}
        if values and len(others) >= MAX_MODELS:
            raise ValueError(f"{MAX_MODELS} models have overrides already: remove those of one first")
        self._overrides = others | ({model: values} if values else {})
        self._save()

    def _save(self) -> None:
        try:
            if self._unread:
                self._read()
            self._store.write(KEY, json.dumps(self._document()).encode())
        except Exception as error:
            logger.error("the planner could not keep its agreements: %s", error)
            self._failed_at = self._clock()
        else:
            self._failed_at = None

    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "starts": self.starts,
            "agreements": [agreement.to_json() for agreement in self.agreements],
            "overrides": self._overrides,
        }

    def _read(self) -> None:
        """Raises whatever the store raises. What this release can't read is logged, and given up."""
        value = self._store.read(KEY)
        self._unread = False
        try:
            self._add(json.loads(value) if value is not None else None)
        except (KeyError, TypeError, ValueError) as error:
            logger.error("the planner starts without what it kept: %s", error)

    def _add(self, document: Any) -> None:
        """What was kept, below what was set in the meantime."""
        if document is None:
            return
        if document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')}, this release reads format {FORMAT}")
        newer = {(agreement.model_name, agreement.generation) for agreement in self.agreements}
        agreements = (Agreement.from_json(agreement) for agreement in document["agreements"])
        older = tuple(a for a in agreements if (a.model_name, a.generation) not in newer)
        overrides = {
            model: document["overrides"].get(model, {}) | self._overrides.get(model, {})
            for model in {**document["overrides"], **self._overrides}
        }
        starts = self.starts + document["starts"]
        self.starts, self.agreements, self._overrides = starts, older + self.agreements, overrides
