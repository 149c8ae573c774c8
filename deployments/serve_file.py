"""Ray Serve's configuration file with a wish in it: a rollout by `serve deploy`, for those whose truth is a file."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from deployments.config import AppConfig
from deployments.errors import AppError
from deployments.pool_config import INGRESS
from hybrid_serve.rollout.wire import GenerationOffer

IMPORT_PATH = "deployments:app"


def serve_config(
    wanted: GenerationOffer | AppConfig, base: Mapping[str, Any], *, app: str = "", reason: str = ""
) -> dict[str, Any]:
    """The file that an app is deployed with, saying that another configuration is wanted of it.

    Only the ingress's `user_config` differs from `base`: Ray Serve takes it in place, and the ingress asks the planner
    for a rollout, with canaries and gates. The app's `args` stay as they are for as long as the app runs: they say
    what a cluster that has nothing yet begins with. Idempotent: a wish that the file has already is replaced.

    Args:
        wanted: an offer names the commits of hub ids; a configuration is resolved when it is rolled out.
        base: as `serve deploy` reads it, e.g. of deploy/serve.yaml.
        app: which of the file's applications; default: the offer's, or the only one of ours.
        reason: for the planner's history.

    Raises:
        AppError: there is no such application in the file, or there are several of ours.
    """
    values: dict[str, Any] = deepcopy(dict(base))
    application = _application(values, app or (wanted.app if isinstance(wanted, GenerationOffer) else ""))
    config = wanted.config if isinstance(wanted, GenerationOffer) else plain(wanted)
    desired: dict[str, Any] = {"config": config}
    if reason:
        desired["reason"] = reason
    deployments = application.setdefault("deployments", [])
    ingress = next((one for one in deployments if one.get("name") == INGRESS), None)
    if ingress is None:
        ingress = {"name": INGRESS}
        deployments.append(ingress)
    ingress["user_config"] = {**(ingress.get("user_config") or {}), "desired": desired}
    return values


def plain(config: AppConfig) -> dict[str, Any]:
    """What a configuration sets, as JSON values: the same configuration when it is read again."""
    return config.model_dump(mode="json", exclude_unset=True)


def _application(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    ours = [one for one in values.get("applications") or () if one.get("import_path") == IMPORT_PATH]
    named = [one for one in ours if not name or one.get("name", "default") == name]
    if len(named) == 1:
        found: dict[str, Any] = named[0]
        return found
    names = ", ".join(str(one.get("name", "default")) for one in ours) or "none"
    what = f"named {name} " if name else ""
    raise AppError(f"the file has {len(named)} applications {what}with import_path {IMPORT_PATH} (of ours: {names})")
