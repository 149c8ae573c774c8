"""`hybrid-serve status`: the running fleet, as the planner knows it. Changes nothing; starts nothing."""

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0

TITLES = (
    "model",
    "pool",
    "replica",
    "state",
    "plan",
    "predicted KV tokens",
    "actual",
    "groups",
    "source",
    "max_model_len",
    "generation",
)
NUMBERS = frozenset({"predicted KV tokens", "actual", "groups", "max_model_len"})


class NoFleetError(Exception):
    """There is nothing to show; the message says what was looked for and what to do."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("status", help="the running fleet", description=__doc__)
    command.add_argument(
        "--address", default="auto", metavar="HOST:PORT",
        help="of Ray's head, as in RAY_ADDRESS (default: that variable's, or the Ray that runs on this machine)",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="everything the planner knows, as JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print. Exit status 1 if a replica does not run its plan or the book is not consistent, 2 if there is no
    Ray or no planner."""
    try:
        status = ask(arguments.address)
    except NoFleetError as error:
        print(f"hybrid-serve status: {error}", file=sys.stderr)
        return 2
    print(json.dumps(status, indent=2) if arguments.json else table(status))
    return 1 if status["integrity"] or any(r["state"] == "mismatch" for r in status["replicas"]) else 0


def ask(address: str) -> dict[str, Any]:
    """The planner's `status`. Uses this process's connection to Ray if it has one, and leaves it open.

    Raises:
        NoFleetError: no Ray at the address, no planner in it, or one that does not answer.
    """
    _show_the_token()
    import ray

    from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE

    connected = ray.is_initialized()
    try:
        if not connected:
            ray.init(address=_reachable(address), namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
        status: dict[str, Any] = ray.get(planner.status.remote(), timeout=TIMEOUT_S)
        return status
    except ConnectionError as error:
        raise NoFleetError(
            f"no Ray at address {address}: {_first_line(error)}. Run it on a machine of the cluster, or give --address"
        ) from None
    except ray.exceptions.GetTimeoutError:
        raise NoFleetError(
            f"the planner did not answer within {TIMEOUT_S:g} s: if it is being restarted, ask again"
        ) from None
    except ray.exceptions.RayError as error:
        raise NoFleetError(f"the planner can't be asked: {_first_line(error)}. Ask again") from None
    except ValueError:
        raise NoFleetError(
            f"no planner runs in the Ray at address {address}: it starts with the first replica of an app "
            "(serve run deployments:app)"
        ) from None
    finally:
        if not connected:
            ray.shutdown()


def _show_the_token() -> None:
    """Ray 2.60 asks for a token as soon as one lies in the user's home, and sends it only if it is told to.

    It looks when it is first imported; whoever imported it before has decided for this process.
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


def table(status: dict[str, Any]) -> str:
    """The fleet for people: replicas, then what does not run as planned, then the last refusals."""
    replicas = sorted(status["replicas"], key=lambda r: (r["model_name"], r["pool"], r["replica_id"]))
    lines = _aligned([_row(replica) for replica in replicas]) if replicas else ["no replica is known to the planner"]
    for replica in replicas:
        lines += [f"  {replica['replica_id']}: {difference}" for difference in replica["differences"]]
        if replica["note"]:
            lines.append(f"  {replica['replica_id']}: {replica['note']}")
    for refused in status["refused"]:
        lines.append(
            f"refused {refused['times']} x, last {refused['seconds_ago']:.0f} s ago: {refused['model_name']} "
            f"(generation {refused['generation']}): {refused['reason']}"
        )
    again = status["starts"] - 1
    lines.append(f"planner: started {status['starts']} x ({again} restart{'' if again == 1 else 's'})")
    if status["forgotten_for_space"]:
        lines.append(
            f"more replicas than the planner keeps in view ({status['forgotten_for_space']} x one was dropped): they "
            "serve on, but not all of them are shown"
        )
    if status["integrity"]:
        lines.append(f"THE PLANNER'S BOOK IS NOT CONSISTENT: {status['integrity']}")
    return "\n".join(lines)


def _row(replica: dict[str, Any]) -> tuple[str, ...]:
    plan, report = replica["plan"], replica["report"]
    predicted, actual = replica["predicted_kv_tokens"], None if report is None else report["kv_tokens"]
    return (
        replica["model_name"],
        replica["pool"],
        replica["replica_id"],
        replica["state"],
        replica["plan_id"] or "-",
        _number(predicted),
        "= " + _number(actual) if actual == predicted else _number(actual),
        "-" if plan is None else str(len(plan["groups"])),
        replica["source"],
        _number(replica["max_model_len"]),
        replica["generation"],
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [TITLES, *rows]) for column in range(len(TITLES))]
    lines = []
    for row in [TITLES, *rows]:
        cells = [
            cell.rjust(width) if title in NUMBERS else cell.ljust(width)
            for cell, width, title in zip(row, widths, TITLES, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
