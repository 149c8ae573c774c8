"""Which app Ray Serve is building: it calls an app's builder with the arguments alone, and two apps may have the same.

The task of Ray 2.60 that builds an app has the name as an argument, and calls the builder within. Remove this when Ray
Serve tells a builder the name.
"""

import logging
import sys

import ray

logger = logging.getLogger("ray.serve")

MODULE, FUNCTION, ARGUMENT = "ray.serve._private.application_state", "build_serve_application", "name"


def app_being_built() -> str | None:
    """Its name, if this is called by the app's builder in Ray Serve's own task; None in `serve run` and elsewhere.

    In a task of another Ray, where it can't be told, that is logged.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == FUNCTION and frame.f_globals.get("__name__") == MODULE:
            if (name := frame.f_locals.get(ARGUMENT)) is None:
                break
            return str(name)
        frame = frame.f_back  # type: ignore[assignment]
    in_a_task = ray.is_initialized() and ray._private.worker.global_worker.mode == ray.WORKER_MODE
    if frame is not None or in_a_task:
        logger.error("this Ray Serve (%s) does not tell which app it builds", ray.__version__)
    return None
