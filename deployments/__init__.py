"""What runs on Ray Serve: `serve run deployments:app` (the demo), `serve run deployments:app config=FILE`."""

from deployments.builder import app

__all__ = ["app"]
