"""What outlives the planner of its rollouts: every app's state and events, and the offers of its generations.

Unlike `negotiation.kept`, nothing takes effect that is not written: a store that can't be reached stops rollouts where
they are, and an app that can't be read is left alone. Keys: `rollouts` lists the apps, `rollout/APP` has one app's
state and events, `generation/APP/NUMBER` one offer. The app's side writes beside them what Ray Serve is to be deployed
with, and wants: that ends with the app.
"""

import base64
import json
import logging
import pickle
from dataclasses import replace
from typing import Any

from ray import cloudpickle

from hybrid_serve.negotiation.store import Store
from hybrid_serve.rollout.records import app_from_json, app_to_json
from hybrid_serve.rollout.state import App, Event
from hybrid_serve.rollout.wire import GenerationOffer

logger = logging.getLogger(__name__)

INDEX = "rollouts"
FORMAT = 1
MAX_GENERATIONS = 32
MAX_EVENTS = 1000
MAX_APPS = 256


def wish_key(app: str) -> str:
    """Of the configuration that an app's file wanted when a rollout was last asked for."""
    return f"desired:{app}"


def rolled_out_key(app: str) -> str:
    """Of the generation that was last deployed by a rollout."""
    return f"rolled_out:{app}"


class LedgerError(Exception):
    """The ledger can't be read or written; the text says what and why. Nothing has changed."""


class Ledger:
    """Apps as they are written, and nothing else. A change is written whole, and holds only then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._apps: dict[str, App] = {}
        self._events: dict[str, list[Event]] = {}
        self._unreadable: dict[str, str] = {}
        self._offers: dict[tuple[str, int], GenerationOffer] = {}
        self._read = False
        try:
            self.read()
        except LedgerError as error:
            logger.error("%s", error)

    def read(self) -> None:
        """Everything that is kept, if it was not read yet.

        Raises:
            LedgerError: the store can't be reached, or its list of apps can't be read.
        """
        if self._read:
            return
        index = self._document(INDEX)
        names = [] if index is None else index["apps"]
        apps: dict[str, App] = {}
        events: dict[str, list[Event]] = {}
        unreadable: dict[str, str] = {}
        for name in names:
            document = self._value(_app_key(name))
            if document is None:
                continue  # the planner was lost between the two writes
            try:
                decoded = _decoded(document)
                apps[name], events[name] = app_from_json(decoded["app"]), decoded["events"]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                unreadable[name] = f"what is kept of app {name} can't be read, and is left as it is: {error}"
                logger.error("%s", unreadable[name])
        self._names = list(names)
        self._apps, self._events, self._unreadable = apps, events, unreadable
        self._read = True

    @property
    def is_empty(self) -> bool:
        """Nothing is kept; False while that is not known."""
        return self._read and not self._names

    @property
    def apps(self) -> dict[str, App]:
        """By name; not to be changed."""
        return self._apps

    def app(self, name: str) -> App | None:
        """None if it is not known.

        Raises:
            LedgerError: it can't be read.
        """
        self.read()
        if name in self._unreadable:
            raise LedgerError(self._unreadable[name])
        return self._apps.get(name)

    def events(self, name: str) -> list[Event]:
        """Oldest first."""
        return list(self._events.get(name, ()))

    def commit(self, app: App, events: tuple[Event, ...] = (), offer: GenerationOffer | None = None) -> None:
        """The app is so from now on. `offer` is of a generation that it lists since.

        Raises:
            LedgerError: it could not be written, and nothing has changed.
        """
        self.app(app.name)
        app, dropped = _bounded(app)
        told = (self._events.get(app.name, []) + list(events))[-MAX_EVENTS:]
        document = {"format": FORMAT, "app": app_to_json(app), "events": told}
        if offer is not None:
            number = _number(app, offer)
            self._write(_generation_key(app.name, number), _offer_to_json(number, offer))
        if app.name not in self._names:
            self._enter(app.name)
        self._write(_app_key(app.name), document)
        self._apps[app.name], self._events[app.name] = app, told
        if offer is not None:
            self._offers[app.name, _number(app, offer)] = offer
        for number in dropped:
            self._delete(app.name, number)

    def forget_wishes(self, name: str) -> None:
        """Whoever deploys an app of this name next begins with what is written then.

        Raises:
            LedgerError: the store could not be reached. Safe to repeat.
        """
        for key in (wish_key(name), rolled_out_key(name)):
            try:
                self._store.delete(key)
            except Exception as error:
                raise LedgerError(f"the planner's store could not drop {key}: {error}") from error

    def offer(self, app: App, number: int) -> GenerationOffer:
        """What a generation was offered with.

        Raises:
            LedgerError: it can't be read, here or by this release.
        """
        kept = self._offers.get((app.name, number))
        if kept is not None:
            return kept
        document = self._document(_generation_key(app.name, number))
        if document is None:
            raise LedgerError(f"generation {number} of {app.name} is not kept")
        try:
            offer = pickle.loads(base64.b64decode(document["offer"]))
            if not isinstance(offer, GenerationOffer):
                raise TypeError(f"it is a {type(offer).__name__}")
        except Exception as error:  # whatever the classes of another release do
            raise LedgerError(
                f"generation {number} of {app.name} was kept by another release and can't be read: {error}; roll its "
                "configuration out again"
            ) from error
        self._offers[app.name, number] = offer
        return offer

    def config(self, app: App, number: int) -> dict[str, Any]:
        """The configuration of a generation, which is readable where its offer is not.

        Raises:
            LedgerError: it can't be read.
        """
        document = self._document(_generation_key(app.name, number))
        if document is None:
            raise LedgerError(f"generation {number} of {app.name} is not kept")
        found: dict[str, Any] = document["config"]
        return found

    def check_integrity(self) -> None:
        """Raises AssertionError if an app contradicts itself, or differs from what is written."""
        for name, app in self._apps.items():
            assert name == app.name, f"{app.name} is filed under {name}"
            assert len(app.generations) <= MAX_GENERATIONS, f"{name} has {len(app.generations)} generations"
            assert len(self._events[name]) <= MAX_EVENTS, f"{name} has {len(self._events[name])} events"
            states = [each.number for each in app.generations.values() if each.state == "current"]
            assert states == [app.current], f"{name} is at generation {app.current}, and {states} say that they are it"
            digests = [each.digest for each in app.generations.values()]
            assert len(set(digests)) == len(digests), f"{name} has two generations with one digest"
            assert app.bound in app.generations, f"{name} is bound to generation {app.bound}, which is not listed"
            rollout = app.rollout
            known = {app.now_current.digest}
            if rollout is not None:
                assert rollout.origin == app.current, f"{name}'s {rollout.name} is from {rollout.origin}"
                assert rollout.to in app.generations, f"{name}'s {rollout.name} is to {rollout.to}, which is not listed"
                known.add(app.generations[rollout.to].digest)
            else:
                assert app.bound == app.current, f"{name} is at {app.current}, and bound to {app.bound}"
            for replica_id, step in app.orders.items():
                assert step.digest in known, f"{replica_id} is ordered to {step.digest}, which is not in play"

    def _enter(self, name: str) -> None:
        """Into the list of apps; the first of those that Ray Serve has deleted makes room if it is full."""
        names, left = [*self._names, name], None
        if len(self._names) >= MAX_APPS:
            left = next((app for app in self._apps.values() if not app.deployed), None)
            if left is None:
                raise LedgerError(f"{MAX_APPS} apps are known already, so {name} is not entered")
            names.remove(left.name)
        self._write(INDEX, {"format": FORMAT, "apps": names})
        self._names = names
        if left is not None:
            del self._apps[left.name], self._events[left.name]
            for number in left.generations:
                self._delete(left.name, number)
            self._drop(_app_key(left.name))

    def _delete(self, app: str, number: int) -> None:
        self._offers.pop((app, number), None)
        self._drop(_generation_key(app, number))

    def _drop(self, key: str) -> None:
        try:
            self._store.delete(key)
        except Exception as error:
            logger.warning("%s could not be dropped from the store: %s", key, error)

    def _write(self, key: str, document: dict[str, Any]) -> None:
        try:
            self._store.write(key, json.dumps(document).encode())
        except Exception as error:
            raise LedgerError(f"the planner's store could not take {key}: {error}") from error

    def _value(self, key: str) -> bytes | None:
        try:
            return self._store.read(key)
        except Exception as error:
            raise LedgerError(f"the planner's store could not be read at {key}: {error}") from error

    def _document(self, key: str) -> dict[str, Any] | None:
        value = self._value(key)
        try:
            return None if value is None else _decoded(value)
        except ValueError as error:
            raise LedgerError(f"what is kept at {key} can't be read, and is left as it is: {error}") from error


def _decoded(value: bytes) -> dict[str, Any]:
    document = json.loads(value)
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ValueError(f"it has format {found}, this release reads format {FORMAT}")
    return dict(document)


def _offer_to_json(number: int, offer: GenerationOffer) -> dict[str, Any]:
    pickled = base64.b64encode(cloudpickle.dumps(offer)).decode()
    return {"format": FORMAT, "number": number, "digest": offer.digest, "config": offer.config, "offer": pickled}


def _number(app: App, offer: GenerationOffer) -> int:
    generation = app.by_digest(offer.digest)
    assert generation is not None, "an offer is kept of a generation that is listed"
    return generation.number


def _bounded(app: App) -> tuple[App, list[int]]:
    """The app with its last generations, and the numbers of those that went."""
    from hybrid_serve.rollout.requests import last_good

    over = len(app.generations) - MAX_GENERATIONS
    if over <= 0:
        return app, []
    good = last_good(app)
    needed = {app.current, app.bound, *([good.number] if good else [])}
    if app.rollout is not None:
        needed |= {app.rollout.origin, app.rollout.to}
    dropped = [number for number in sorted(app.generations) if number not in needed][:over]
    left = {number: each for number, each in app.generations.items() if number not in dropped}
    return replace(app, generations=left), dropped


def _app_key(name: str) -> str:
    return f"rollout/{name}"


def _generation_key(name: str, number: int) -> str:
    return f"generation/{name}/{number}"
