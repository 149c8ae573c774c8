"""SIGKILL of one part of a fleet under load: what was lost, and how long until the fleet was whole again."""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.load import Load, Outcome, Request, mixed_requests, summary
from benchmarks.local_fleet import LocalFleet, until
from benchmarks.steady_load import steady

DEATHS = ("planner", "engine", "replica", "node")
BEFORE_S, AFTER_S = 5.0, 3.0
NOTICE_LIMIT_S, RECOVERY_LIMIT_S = 60.0, 600.0
ON_THE_WAY_S = 0.5
"""A request that was sent so long ago has reached its replica."""


def after_death(fleet: LocalFleet, what: str, options: argparse.Namespace) -> dict[str, Any]:
    """What killing it cost. The load goes on until the fleet is whole again, and a little longer.

    `streaming_on_it` are the requests that the victim had when they were counted, just before it was killed;
    `sent_since_the_count` are those that were on the way by then, to whichever pool, or were sent until it was gone.
    No more than these may be lost. The node is one without the ingress, with which all requests in flight would go.
    """
    pool = fleet.without_ingress() if what == "node" else fleet.pools[0]
    plans = _plans(fleet)
    load = Load(fleet.url, fleet.model, deadline_s=120)
    noticed = recovered = None
    with steady(load, _mixed(options.seed + 100), options.rate, options.seed):
        time.sleep(BEFORE_S)
        processes = _victims(fleet, what, pool)
        counted_at = time.monotonic()
        had = _requests_on(fleet, pool) if what != "planner" else 0
        killed_at = time.monotonic()
        if what == "node":
            gone_at = fleet.kill_node(pool)
            fleet.replace_node(pool)
        else:
            processes[0].kill()
            gone_at = time.monotonic()
        if what != "planner":
            noticed = round(until(lambda: not fleet.whole(), NOTICE_LIMIT_S), 2)
        until(fleet.whole, RECOVERY_LIMIT_S)
        recovered = round(time.monotonic() - killed_at, 2)
        time.sleep(AFTER_S)
    plans_now = _plans(fleet)
    kept = sorted(set(plans) & set(plans_now))
    on_the_way, at, gone = (at - load.began for at in (counted_at - ON_THE_WAY_S, killed_at, gone_at))
    status = fleet.status()
    return {
        "noticed_s": noticed,
        "whole_again_s": recovered,
        "streaming_on_it": had,
        "sent_since_the_count": sum(on_the_way <= o.sent_s <= gone for o in load.outcomes),
        "lost": [_short(o) for o in load.outcomes if o.end not in ("done", "refused")],
        "lost_that_were_sent_after": sum(o.sent_s > gone and o.end not in ("done", "refused") for o in load.outcomes),
        "in_flight": sum(o.sent_s <= at <= o.sent_s + o.total_s for o in load.outcomes),
        "sent_after": sum(o.sent_s > gone for o in load.outcomes),
        "replicas_kept": kept,
        "plans_kept": all(plans_now[replica] == plans[replica] for replica in kept),
        "left_over_processes": fleet.left_over(processes),
        "integrity": status["integrity"],
        "planner_starts": status["starts"],
        **summary(load.outcomes),
    }


def _victims(fleet: LocalFleet, what: str, pool: str) -> list[psutil.Process]:
    """The processes that have to be gone afterwards: the victim, and all below it."""
    if what == "node":
        return fleet.processes_of_node(pool)
    if what == "planner":
        process = fleet.planner()
    else:
        process = fleet.engine_core(pool) if what == "engine" else fleet.replica(pool)
    return [process, *process.children(recursive=True)]


def _requests_on(fleet: LocalFleet, pool: str) -> int:
    """Of a pool's replica: as its engine last said, or those that hold room there, which it may not know yet."""
    stats = fleet.stats(pool)
    engine = stats["engine"]
    reserved = sum(sequences for _, sequences in stats["reserved"].values())
    return max(int(engine["running"] + engine["waiting"]), int(reserved))


def _plans(fleet: LocalFleet) -> dict[str, str]:
    """Plan id by running replica."""
    alive = fleet.replica_ids()
    entries = [entry for of_pool in fleet.running().values() for entry in of_pool]
    return {entry["replica_id"]: entry["plan_id"] for entry in entries if entry["replica_id"] in alive}


def _mixed(seed: int) -> Iterator[Request]:
    """Requests of mixed length without end."""
    while True:
        yield from mixed_requests(50, seed=seed, prompt_bytes=(60, 1200), tokens=(64, 400))
        seed += 1


def _short(outcome: Outcome) -> dict[str, Any]:
    return {
        "sent_s": round(outcome.sent_s, 2),
        "status": outcome.status,
        "end": outcome.end,
        "total_s": round(outcome.total_s, 2),
    }
