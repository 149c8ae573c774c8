"""Asking the planner to roll a configuration out: the same steps for the command and for `serve deploy`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import ray
from pydantic import ValidationError
from ray.actor import ActorHandle
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from deployments.config import AppConfig, ReplicaConfig
from deployments.config_changes import retrained
from deployments.generation import Problems, offer_of
from deployments.mistakes import sentences
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation.planner import planner_handle
from hybrid_serve.negotiation.store import NAMESPACE
from hybrid_serve.rollout.ledger import wish_key
from hybrid_serve.rollout.wire import GenerationOffer, RolloutOptions

SERVE_DEPLOY = "serve deploy"
"""The actor of what a file that was deployed wants."""

TIMEOUT_S = 30.0


def request(config: AppConfig, app: str, options: RolloutOptions, actor: str, reason: str = "") -> dict[str, Any]:
    """Plan a configuration for the running fleet, and have the planner roll it out.

    Blocks: it reads checkpoints and asks the planner. Needs a process that is connected to Ray.

    Returns:
        The planner's answer to `begin`: `started`, `unchanged`, `attached` or `refused` (with `deployed`, False, if it
        takes the app for one that is not). Refused before it is asked:
        what can't be planned (with `problems`, a list), and what `serve deploy` wants but was rolled back before.

    Raises:
        Exception: whatever Ray raises if the planner can't be reached.
    """
    planner = planner_handle()
    offer = planned(planner, config, app)
    if isinstance(offer, Problems):
        return {"refused": str(offer), "problems": offer.to_json()}
    if found := retrained(offer, running_pools(planner, app)):
        text = "\n".join(str(problem) for _, problem in found)
        return {"refused": text, "problems": [{"model": model, **asdict(problem)} for model, problem in found]}
    if actor == SERVE_DEPLOY and (why := _rolled_back(planner, offer)):
        return {"refused": why}
    answer: dict[str, Any] = _ask(planner, "begin", offer, options, actor, reason)
    return answer


def planned(planner: ActorHandle[Any], config: AppConfig, app: str) -> GenerationOffer | Problems:
    """The generation that a configuration is, planned for the devices that the app's replicas measured."""
    return offer_of(config, app, measured_devices(planner, app))


def measured_devices(planner: ActorHandle[Any], app: str) -> dict[str, DeviceFacts]:
    """By pool: the device that running replicas measured; where they differ, the one with the least memory."""
    told: Mapping[str, list[DeviceFacts]] = _ask(planner, "measured", app)
    return {pool: min(devices, key=lambda device: device.memory_bytes) for pool, devices in told.items() if devices}


def running_pools(planner: ActorHandle[Any], app: str) -> dict[str, ReplicaConfig]:
    """What the replicas of the current generation are bound with, by pool; empty if the planner knows of none."""
    try:
        current = _ask(planner, "generation", app, None)
    except ValueError:
        return {}
    return {pool: _ask(planner, "pool_config", app, current["digest"], pool) for pool in current["pools"]}


def request_desired(app: str, desired: Mapping[str, Any]) -> dict[str, Any]:
    """`request` of what a deployed file wants: `{"config": <sections>, "reason": text}`.

    It is asked for once: a configuration that was taken, and that somebody has rolled back or replaced since, is not
    asked for again until the file wants something else. Additional answer: `busy`, another rollout is on its way, or
    the planner was not told yet that the app, whose ingress asks, is deployed (with `soon`: that takes seconds).
    """
    values = dict(desired["config"])
    wanted = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    if _internal_kv_get(wish_key(app), namespace=NAMESPACE) == wanted.encode():
        return {"unchanged": "it was asked for before"}
    try:
        config = AppConfig.model_validate(values)
    except ValidationError as error:
        return {"refused": "; ".join(sentences(error, values))}
    answer = request(config, app, config.rollout.options(), SERVE_DEPLOY, str(desired.get("reason") or ""))
    if "refused" in answer and not answer.get("deployed", True):
        return {"busy": answer["refused"], "soon": True}
    if "refused" in answer and "problems" not in answer and _rollout_of(planner_handle(), app):
        return {"busy": answer["refused"]}
    if "refused" not in answer:
        _internal_kv_put(wish_key(app), wanted.encode(), overwrite=True, namespace=NAMESPACE)
    return answer


def _rolled_back(planner: ActorHandle[Any], offer: GenerationOffer) -> str:
    """Why `serve deploy` does not get what it wants again; empty if it was never rolled back."""
    state = _ask(planner, "rollouts", offer.app).get(offer.app) or {}
    numbers = {one["number"] for one in state.get("generations", ()) if one.get("digest") == offer.digest}
    last = state.get("last") or {}
    if not state.get("deployed", True):
        return ""
    if state.get("rollout") or last.get("phase") != "rolled back" or last.get("to") not in numbers:
        return ""
    return (
        f"generation {last['to']} was rolled back: {last.get('failure') or 'by hand'}; change the configuration, or "
        "roll it out by hand"
    )


def _rollout_of(planner: ActorHandle[Any], app: str) -> Any:
    return (_ask(planner, "rollouts", app).get(app) or {}).get("rollout")


def _ask(planner: ActorHandle[Any], method: str, *arguments: Any) -> Any:
    return ray.get(getattr(planner, method).remote(*arguments), timeout=TIMEOUT_S)
