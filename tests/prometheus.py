"""What Ray's Prometheus endpoints show of ours."""

import re
from dataclasses import dataclass

import httpx
import ray

_LINE = re.compile(r"^(?P<name>ray_hybrid_serve_\w+)\{(?P<labels>.*)\} (?P<value>\S+)$")


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


def scraped() -> list[Sample]:
    """Samples from every node's agent."""
    found = []
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for line in httpx.get(url, timeout=10).text.splitlines():
            if match := _LINE.match(line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
                found.append(Sample(match["name"], labels, float(match["value"])))
    return found


def of_pool(pool: str, name: str) -> list[Sample]:
    """Samples of one pool; `name` is without the prefix that all have."""
    return [each for each in scraped() if each.labels.get("pool") == pool and each.name == f"ray_hybrid_serve_{name}"]
