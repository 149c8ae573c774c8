"""This process's boards, one per model of an app.

Ray Serve carries a router class to each process by value, with its module. What routers and ingress share is therefore
here, in a module that they all import.
"""

from deployments.routing.board import Board

_boards: dict[tuple[str, str], Board] = {}


def board_of(app: str, model: str) -> Board:
    """The board of a model; made at the first call."""
    return _boards.setdefault((app, model), Board())
