"""A command's way to the planner of a running cluster. Starts nothing there."""

import argparse
import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0


class NoFleetError(Exception):
    """There is nobody to ask; the message says what was looked for and what to do."""


class SilentPlannerError(NoFleetError):
    """The planner can't be asked now. It may be about to be restarted: ask again."""


class UnknownToPlannerError(Exception):
    """The planner does not have what it was asked for; the message is its own and names what it has."""


class PlannerConnection:
    """The planner's methods, called one at a time. Get one from `connected`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, method: str, *args: object, timeout_s: float = TIMEOUT_S) -> Any:
        """The answer of one method.

        Raises:
            SilentPlannerError: no answer in `timeout_s`, or it died meanwhile.
            NoFleetError: no planner runs there, or one of a release without rollouts.
            UnknownToPlannerError: the method refused its arguments.
        """
        import ray

        return self.through(lambda planner: ray.get(getattr(planner, method).remote(*args), timeout=timeout_s))

    def through(self, calls: Callable[[Any], Answer]) -> Answer:
        """What a function answers that is given the planner's handle. Raises as `ask`.

        The planner is looked up anew each time: it may have been restarted since.
        """
        import ray

        from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE

        try:
            planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
        except ValueError:
            raise NoFleetError(
                f"no planner runs in the Ray at address {self._address}: it starts with the first replica of an app "
                "(serve run deployments:app)"
            ) from None
        except ray.exceptions.RayError as error:
            raise SilentPlannerError(f"the planner can't be looked up: {_first_line(error)}. Ask again") from None
        try:
            return calls(planner)
        except ray.exceptions.GetTimeoutError:
            raise SilentPlannerError(
                "the planner did not answer in time: if it is being restarted, ask again"
            ) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise UnknownToPlannerError(str(error.cause)) from None
            raise NoFleetError(f"the planner failed: {error.cause!r}. Its log says more") from None
        except ray.exceptions.RayError as error:
            raise SilentPlannerError(f"the planner can't be asked: {_first_line(error)}. Ask again") from None
        except AttributeError as error:
            if hasattr(planner, "rollouts"):
                raise
            raise NoFleetError(
                f"the planner that runs is of an older release of hybrid_serve than this command ({error}): use the "
                "command of its release, or end the app and deploy it with this one"
            ) from None


def caller() -> str:
    """Who asks, for the planner's history: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def add_address(command: argparse.ArgumentParser) -> None:
    """The option that says where the cluster is."""
    command.add_argument(
        "--address", default="auto", metavar="HOST:PORT",
        help="of Ray's head, as in RAY_ADDRESS (default: that variable's, or the Ray that runs on this machine)",
    )  # fmt: skip


def add_app(command: argparse.ArgumentParser) -> None:
    """The options that say which app of which cluster is meant."""
    command.add_argument("--app", default="default", help="Ray Serve's name of the application (default: default)")
    add_address(command)


@contextmanager
def connected(address: str) -> Iterator[PlannerConnection]:
    """A connection to the cluster at an address. Uses this process's own if it has one, and leaves that open.

    Raises:
        NoFleetError: no Ray at the address.
    """
    show_the_token()
    import ray

    from hybrid_serve.negotiation.planner import NAMESPACE

    ours = not ray.is_initialized()
    try:
        if ours:
            _connect(address, NAMESPACE)
        yield PlannerConnection(address)
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str, namespace: str) -> None:
    import ray

    try:
        ray.init(address=_reachable(address), namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise NoFleetError(
            f"no Ray at address {address}: {_first_line(error).rstrip('.')}. Run it on a machine of the cluster, or "
            "give --address"
        ) from None
    except ray.exceptions.RayError as error:
        raise NoFleetError(f"the Ray at address {address} can't be asked: {_first_line(error)}. Ask again") from None


def show_the_token() -> None:
    """Ray 2.60 asks for a token as soon as one lies in the user's home, and sends it only if it is told to.

    It looks when it is first imported: call this before anything that imports it. Whoever imported it before has
    decided for this process.
    """
    lies = (Path.home() / ".ray" / "auth_token").exists()
    if lies and "ray" not in sys.modules and "RAY_AUTH_TOKEN" not in os.environ:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _reachable(address: str) -> str:
    """The address, with `auto` resolved, if something listens there: Ray itself would try for minutes.

    Ray takes 127.0.0.1 for this machine's outer address. A Ray that listens on loopback only (`make serve`) is reached
    with the constant by which Ray itself stays on loopback on desktops. Remove that when Ray connects to the address
    that it is given.

    Raises:
        ConnectionError: nothing listens, or no Ray was found.
    """
    from ray._private import ray_constants, services

    if address.startswith("ray://"):
        return address
    if address == "auto":
        address = services.get_ray_address_from_environment(address, None)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConnectionError(f"{address!r} is not HOST:PORT")
    outer = services.resolve_ip_for_localhost(host)
    if _listens(outer, int(port)):
        return address
    if outer == host or not _listens(host, int(port)):
        raise ConnectionError("nothing listens there")
    ray_constants.ENABLE_RAY_CLUSTER = False
    return address


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
