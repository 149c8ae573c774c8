"""The planner's rollouts: ledger, fleet and state machine together. The clock and whoever deploys are handed in."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation.store import Store
from hybrid_serve.rollout import requests, shown
from hybrid_serve.rollout.fleet import PERIOD_S, SETTLE_S, Fleet, FleetView
from hybrid_serve.rollout.ledger import Ledger, LedgerError
from hybrid_serve.rollout.machine import order_for, step
from hybrid_serve.rollout.metrics import RolloutMetrics
from hybrid_serve.rollout.state import App, Event, Generation, Kind
from hybrid_serve.rollout.turn import Outcome
from hybrid_serve.rollout.wire import GenerationOffer, Order, ReplicaRun, RolloutOptions

logger = logging.getLogger(__name__)

ACTIVE_PERIOD_S = 1.0


class Applier(Protocol):
    """Deploys apps through Ray Serve, one deployment of an app at a time, in the background."""

    def start(self, app: str, key: str, offer: GenerationOffer, restart: dict[str, str]) -> None:
        """Begin, unless this key has begun. What runs of the app under another key is wanted no more."""
        ...

    def ended(self, app: str) -> dict[str, str]:
        """The error of each deployment that has ended, by key; empty if it had none."""
        ...

    def settle(self, app: str, key: str) -> None:
        """What became of this key is known now, and need not be told again."""
        ...

    def cancel(self, app: str) -> None:
        """Ray Serve has no such app any more: nothing is to deploy it, and the keys of before are forgotten."""
        ...


class Rollouts:
    """Every method leaves the ledger as it is written, or raises LedgerError and changes nothing."""

    def __init__(self, store: Store, clock: Callable[[], float], applier: Applier) -> None:
        self._clock = clock
        self._applier = applier
        self._ledger = Ledger(store)
        self._fleet = Fleet(clock)
        self._metrics = RolloutMetrics()
        self._settled_at = clock() + (0.0 if self._ledger.is_empty else SETTLE_S)
        self._failing = ""

    @property
    def settled_in(self) -> float:
        """Seconds until every replica that lives was heard of."""
        return max(0.0, self._settled_at - self._clock())

    def heartbeat(self, replica_id: str, known: bool, run: ReplicaRun | None) -> Order:
        """A replica lives: what it is to run."""
        if run is None:
            return Order(known=known)
        self._fleet.heard(replica_id, run)
        app = self._ledger.apps.get(run.app)
        if app is None:
            return Order(known=known)
        seen = self._fleet.seen(replica_id)
        assert seen is not None, "it was heard just now"
        ordered = order_for(app, replica_id, seen)
        if ordered is not None:
            self._fleet.answer(replica_id, ordered)
        latest = app.rollout or app.last
        options = RolloutOptions() if latest is None else latest.options
        again_s = PERIOD_S if app.rollout is None and not app.orders else ACTIVE_PERIOD_S
        return Order(known=known, run=ordered, drain_s=options.drain_s, again_s=again_s)

    def forget(self, replica_id: str) -> None:
        self._fleet.forget(replica_id)

    def tick(self) -> None:
        """One step of every app. Never raises: what could not be written is tried again with the next."""
        try:
            self._ledger.read()
        except LedgerError as error:
            self._log_failure(str(error))
            return
        if not self._ledger.apps:
            return
        views = self._views()
        failures = []
        for name, app in list(self._ledger.apps.items()):
            view = views(name)
            try:
                self._commit(app, step(app, view, self._clock()))
            except LedgerError as error:
                failures.append(str(error))
            except Exception:
                logger.exception("the rollout of %s could not go on", name)
            self._metrics.shows(self._ledger.apps[name])
        self._log_failure("; ".join(failures))

    def unheard(self) -> list[str]:
        """Apps that are deployed as far as is known, and of which no replica lives: somebody should look for them."""
        if self.settled_in > 0:
            return []
        live = self._fleet.by_app()
        return [name for name, app in self._ledger.apps.items() if app.deployed and not live.get(name)]

    def has_deployed(self, name: str) -> bool:
        """The app is deployed as far as is written; False for one that is not known."""
        app = self._ledger.apps.get(name)
        return app is not None and app.deployed

    def was_deleted(self, name: str) -> bool:
        """It is written that Ray Serve has the app no more."""
        app = self._ledger.apps.get(name)
        return app is not None and not app.deployed

    def deleted(self, name: str) -> None:
        """Ray Serve was asked, and has no such app. What it was to be is not remembered if it is deployed again."""
        if name not in self.unheard():
            return
        app = self._known(name)
        self._ledger.forget_wishes(name)
        self._commit(app, requests.deleted(app, self._views()(name), self._clock()))
        self._applier.cancel(name)

    def deployed(self, offer: GenerationOffer) -> int:
        """Ray Serve runs this. The number of its generation."""
        app = self._ledger.app(offer.app)
        now = self._clock()
        if app is None:
            first = Generation.of(offer, 1, "Ray Serve", now)
            self._commit(None, requests.first_deployed(offer.app, first, now), offer)
            return 1
        known = app.by_digest(offer.digest)
        if not requests.is_news(app, offer):
            return known.number if known is not None else app.bound
        generation = Generation.of(offer, self._next(app, offer), "Ray Serve", now)
        self._commit(app, requests.deployed(app, generation, self._views()(app.name), now), offer)
        return generation.number

    def begin(self, offer: GenerationOffer, options: RolloutOptions, actor: str, reason: str) -> dict[str, Any]:
        """Roll a generation out. A refusal with `deployed` (False) may pass: an app that comes back is told of soon."""
        app = self._ledger.app(offer.app)
        if app is None:
            known = ", ".join(sorted(name for name, one in self._ledger.apps.items() if one.deployed)) or "none"
            why = f"app {offer.app} is not known: deploy it with Ray Serve first (known: {known})"
            return {"refused": why, "deployed": False}
        if not app.deployed:
            return {"refused": requests.not_deployed(app.name), "deployed": False}
        if app.rollout is not None:
            to = app.generations[app.rollout.to]
            if to.digest == offer.digest and app.rollout.forward:
                return {"attached": app.rollout.name}
            return {"refused": requests.other_is_active(app)}
        if offer.digest == app.now_current.digest:
            return {"unchanged": app.current}
        generation = Generation.of(offer, self._next(app, offer), actor, self._clock())
        return self._begin(app, generation, "rollout", options, actor, reason, offer)

    def rollback(self, name: str, to: int | None, actor: str, reason: str) -> dict[str, Any]:
        """Turn the active rollout back, or go back to a generation that was good."""
        app = self._known(name)
        if not app.deployed:
            return {"refused": requests.not_deployed(name), "deployed": False}
        view = self._views()(name)
        rollout = app.rollout
        if rollout is not None:
            if to not in (None, rollout.origin):
                return {
                    "refused": f"{requests.other_is_active(app)}; it can be rolled back to generation {rollout.origin}"
                }
            if not rollout.forward:
                return {"attached": rollout.name}
            self._commit(app, requests.turn_back(app, actor, reason, view, self._clock()))
            return {"started": rollout.name, "generation": rollout.origin}
        if to == app.current:
            return {"unchanged": app.current}
        good = requests.last_good(app) if to is None else app.generations.get(to)
        if good is None:
            listed = ", ".join(f"{each.number} ({each.state})" for each in app.generations.values())
            what = "there is no good generation before the current one" if to is None else f"generation {to} is unknown"
            return {"refused": f"{what}; {name} has {listed}"}
        try:
            self._ledger.offer(app, good.number)
        except LedgerError as error:
            return {"refused": str(error)}
        return self._begin(app, good, "rollback", requests.rollback_options(app), actor, reason, None)

    def pause(self, name: str, paused: bool, actor: str) -> dict[str, Any]:
        """Stop or go on with the steps forward."""
        app = self._known(name)
        if app.rollout is None:
            return {"refused": f"no rollout of {name} is active"}
        if not app.rollout.forward:
            return {"refused": f"{app.rollout.name} of {name} is {app.rollout.phase}: that is not paused"}
        if app.rollout.paused == paused:
            return {"unchanged": app.rollout.to}
        self._commit(app, requests.pause(app, paused, actor, self._views()(name), self._clock()))
        return {"paused" if paused else "resumed": app.rollout.name}

    def pool_config(self, name: str, digest: str, pool: str) -> Any:
        """What a replica of the pool is configured with. Raises ValueError with what is known, if it is not."""
        app = self._known(name)
        generation = app.by_digest(digest)
        if generation is None:
            listed = ", ".join(f"{each.number} ({each.digest})" for each in app.generations.values())
            raise ValueError(f"{name} has no generation {digest}; it has {listed}")
        offer = self._ledger.offer(app, generation.number)
        if pool not in offer.pools:
            raise ValueError(
                f"generation {generation.number} of {name} has the pools {', '.join(offer.pools)}, not {pool}"
            )
        return offer.pools[pool].config

    def rollouts(self, name: str | None) -> dict[str, Any]:
        """Every app, or one, as JSON values."""
        views = self._views()
        return {
            app.name: shown.app_shown(app, views(app.name), self._clock())
            for app in self._ledger.apps.values()
            if name in (None, app.name)
        }

    def history(self, name: str | None) -> list[Event]:
        """Events, oldest first."""
        events = [event for app in self._ledger.apps if name in (None, app) for event in self._ledger.events(app)]
        return sorted(events, key=lambda event: str(event["at"]))

    def generation(self, name: str, number: int | None) -> dict[str, Any]:
        """One generation with its configuration. Raises ValueError if it is not known."""
        app = self._known(name)
        generation = app.generations.get(app.current if number is None else number)
        if generation is None:
            raise ValueError(f"{name} has no generation {number}; it has {', '.join(map(str, app.generations))}")
        problem = ""
        try:
            self._ledger.offer(app, generation.number)
        except LedgerError as error:
            problem = str(error)
        config = self._ledger.config(app, generation.number)
        return shown.generation_shown(generation) | {"config": config, "problem": problem}

    def measured(self, name: str) -> dict[str, list[DeviceFacts]]:
        """Distinct devices that live replicas measured, by pool."""
        return shown.measured(self._views()(name))

    def check_integrity(self) -> None:
        """Raises AssertionError if ledger or fleet contradict themselves."""
        self._ledger.check_integrity()
        self._fleet.check_integrity()

    def _known(self, name: str) -> App:
        app = self._ledger.app(name)
        if app is None:
            raise ValueError(f"app {name} is not known; known: {', '.join(sorted(self._ledger.apps)) or 'none'}")
        return app

    def _next(self, app: App, offer: GenerationOffer) -> int:
        known = app.by_digest(offer.digest)
        return max(app.generations) + 1 if known is None else known.number

    def _begin(
        self,
        app: App,
        to: Generation,
        kind: Kind,
        options: RolloutOptions,
        actor: str,
        reason: str,
        offer: GenerationOffer | None,
    ) -> dict[str, Any]:
        view, now = self._views()(app.name), self._clock()
        begun = requests.begin(app, to, kind=kind, options=options, actor=actor, reason=reason, view=view, now=now)
        if isinstance(begun, str):
            return {"refused": begun}
        self._commit(app, begun, offer)
        assert begun.app.rollout is not None, "it was begun"
        return {"started": begun.app.rollout.name, "generation": to.number}

    def _commit(self, before: App | None, outcome: Outcome, offer: GenerationOffer | None = None) -> None:
        """Write it, and only then do it."""
        app = outcome.app
        if app is not before or outcome.events:
            self._ledger.commit(app, outcome.events, offer)
            for event in outcome.events:
                _log(event)
            self._metrics.happened(before, app)
        for apply in outcome.commands:
            generation = app.by_digest(apply.digest)
            assert generation is not None, "what is deployed is listed"
            self._applier.start(app.name, apply.key, self._ledger.offer(app, generation.number), apply.restart)
        waited = (app.rebind, None if app.rollout is None else app.rollout.apply)
        keys = {apply.key for apply in waited if apply is not None and not apply.done}
        for key in self._applier.ended(app.name):
            if key not in keys:
                self._applier.settle(app.name, key)

    def _views(self) -> Callable[[str], FleetView]:
        by_app, gone = self._fleet.by_app(), self._fleet.gone()
        return lambda name: FleetView(
            replicas=by_app.get(name, {}),
            gone=gone,
            started_at=self._fleet.started_at,
            settled=self._clock() >= self._settled_at,
            applied=self._applier.ended(name),
        )

    def _log_failure(self, text: str) -> None:
        if text and text != self._failing:
            logger.error("rollouts stand still: %s", text)
        elif self._failing and not text:
            logger.warning("rollouts go on: the store takes what is written again")
        self._failing = text


def _log(event: Event) -> None:
    words = [f"generation {event['generation']}", event["event"], event.get("replica", ""), event["reason"]]
    log = logger.error if event["event"] in ("gate failed", "rolling back") else logger.info
    log("%s %s: %s", event["app"], event["rollout"], ", ".join(word for word in words if word))
