"""The same new generations through Ray Serve alone: deployed over the old one, as without rollouts."""

import time
from typing import Any

from ray import serve

from benchmarks.known_requests import figures, longest_gap
from benchmarks.local_fleet import until
from benchmarks.rollout_scene import AFTER_S, BEFORE_S, Scene, not_answered, settled
from deployments.builder import build
from deployments.loading import load_config
from deployments.overrides import from_command_line

PATIENCE_S = 400.0
"""After which the user deploys the old configuration again, if the new one does not run."""


def deployed_over(scene: Scene, *changes: str) -> dict[str, Any]:
    """Deploys the fleet's configuration with these changes over what runs, under load.

    A deployment that is not healthy after `PATIENCE_S`, or that Ray Serve calls failed, is followed by one of the old
    configuration, as its user would do.
    """
    load = scene.load
    with scene.under(load):
        time.sleep(BEFORE_S)
        began = time.monotonic()
        _deploy(scene, *changes)
        time.sleep(2.0)
        status = _ended(PATIENCE_S)
        deployed_s = time.monotonic() - began
        if status != "RUNNING":
            _deploy(scene)
        until(lambda: settled(scene.fleet), 240)
        whole_s = time.monotonic() - began
        time.sleep(AFTER_S)
    since, end = began - load.began, began - load.began + whole_s
    return {
        "changes": list(changes),
        "status": status,
        "deployed_s": round(deployed_s, 1),
        "deployed_again": status != "RUNNING",
        "whole_again_s": round(whole_s, 1),
        "longest_without_an_answer_s": longest_gap(load.outcomes, since, end),
        "load": figures(load.outcomes, scene.answers),
        "not_answered": not_answered(load.outcomes, scene.answers),
    }


def _deploy(scene: Scene, *changes: str) -> None:
    config = load_config(scene.config, from_command_line([*scene.changes, *changes]))
    serve._run(build(config), _blocking=False)


def _ended(seconds: float) -> str:
    """The application's status once it is no longer being deployed, or after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        application = serve.status().applications["default"]
        if application.status != "DEPLOYING":
            return str(application.status.value if hasattr(application.status, "value") else application.status)
        time.sleep(0.5)
    return "DEPLOYING"
