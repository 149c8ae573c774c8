"""`--serve-config FILE`: the file that `serve deploy` takes, saying that a configuration is wanted."""

import os
from pathlib import Path
from typing import Any

import yaml

from hybrid_serve.config_argument import WrongArgumentsError
from hybrid_serve.rollout.wire import GenerationOffer


def write_serve_config(file: Path, offer: GenerationOffer, began_with: dict[str, Any], reason: str) -> str:
    """Writes the wish into a file that is there, or a file with nothing else in it. What was done, in words.

    Only the wish of a file that is there changes, so that Ray Serve restarts nobody; its comments are lost.

    Args:
        began_with: arguments of the app for a file that is not there: what a cluster that has nothing begins with.

    Raises:
        WrongArgumentsError: it can't be read or written, or has no such app.
    """
    from deployments.errors import AppError
    from deployments.serve_file import IMPORT_PATH, serve_config

    new = not file.exists()
    app = {"name": offer.app, "route_prefix": "/", "import_path": IMPORT_PATH, "args": began_with}
    try:
        base = {"applications": [app]} if new else yaml.safe_load(file.read_text())
        if not isinstance(base, dict):
            raise WrongArgumentsError(f"{file} is no configuration of Ray Serve: it has no applications")
        values = serve_config(offer, base, app=offer.app, reason=reason)
        written = file.with_name(f".{file.name}.new")
        written.write_text(yaml.safe_dump(values, sort_keys=False))
        os.replace(written, file)
    except (OSError, yaml.YAMLError) as error:
        raise WrongArgumentsError(f"{file}: {error}") from None
    except AppError as error:
        raise WrongArgumentsError(f"{file}: {error}. --app says which one is meant") from None
    return f"{file} {'is new' if new else 'was changed'}: serve deploy {file} rolls generation {offer.digest} out"
