"""The state of an app as a JSON document, and back."""

from typing import Any

from hybrid_serve.rollout.state import App, ApplyRun, Generation, PoolRecord, Rollout, Step
from hybrid_serve.rollout.wire import Figures, Gates, RolloutOptions


def app_to_json(app: App) -> dict[str, Any]:
    """Plain values; what is shared with the app is not to be changed."""
    return vars(app) | {
        "generations": [_generation_to_json(each) for each in app.generations.values()],
        "orders": {replica: vars(step) for replica, step in app.orders.items()},
        "rollout": None if app.rollout is None else _rollout_to_json(app.rollout),
        "last": None if app.last is None else _rollout_to_json(app.last),
        "rebind": None if app.rebind is None else vars(app.rebind),
    }


def app_from_json(value: dict[str, Any]) -> App:
    """Inverse of `app_to_json`. Raises KeyError, TypeError or ValueError if it is none."""
    generations = [_generation_from_json(each) for each in value["generations"]]
    app = App(
        **value
        | {
            "generations": {each.number: each for each in generations},
            "orders": {replica: Step(**step) for replica, step in value["orders"].items()},
            "rollout": None if value["rollout"] is None else _rollout_from_json(value["rollout"]),
            "last": None if value["last"] is None else _rollout_from_json(value["last"]),
            "rebind": None if value["rebind"] is None else ApplyRun(**value["rebind"]),
        }
    )
    named = {app.current, app.bound} | ({app.rollout.origin, app.rollout.to} if app.rollout else set())
    if missing := named - set(app.generations):
        raise ValueError(f"generations {sorted(missing)} are named, and not listed")
    return app


def _generation_to_json(generation: Generation) -> dict[str, Any]:
    return vars(generation) | {"pools": {name: vars(pool) for name, pool in generation.pools.items()}}


def _generation_from_json(value: dict[str, Any]) -> Generation:
    return Generation(**value | {"pools": {name: PoolRecord(**pool) for name, pool in value["pools"].items()}})


def _rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    baseline = rollout.baseline
    return vars(rollout) | {
        "options": vars(rollout.options) | {"gates": vars(rollout.options.gates)},
        "baseline": None if baseline is None else {replica: vars(figures) for replica, figures in baseline.items()},
        "apply": None if rollout.apply is None else vars(rollout.apply),
    }


def _rollout_from_json(value: dict[str, Any]) -> Rollout:
    options = RolloutOptions(**value["options"] | {"gates": Gates(**value["options"]["gates"])})
    baseline = value["baseline"]
    return Rollout(
        **value
        | {
            "options": options,
            "baseline": None if baseline is None else {key: _figures_from_json(each) for key, each in baseline.items()},
            "replaced": tuple(value["replaced"]),
            "apply": None if value["apply"] is None else ApplyRun(**value["apply"]),
            "gates": tuple(value["gates"]),
        }
    )


def _figures_from_json(value: dict[str, Any]) -> Figures:
    return Figures(**value | {"accepted_per_position": tuple(value["accepted_per_position"])})
