"""How a changed configuration goes out to a running app."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from deployments.config_fields import Seconds, Section, live
from deployments.errors import AppError
from hybrid_serve.rollout.wire import Gates, RolloutOptions

_SHARE = re.compile(r"(?P<number>[0-9]+)|(?P<percent>[0-9]+(?:\.[0-9]+)?)\s*%")


def _share(value: Any) -> str:
    """`2` or `10%`, as text."""
    text = str(value).strip()
    match = None if isinstance(value, bool) else _SHARE.fullmatch(text)
    if match is None or (match["percent"] is not None and not 0 < float(match["percent"]) <= 100):
        raise ValueError(f"{value!r} is no number of replicas: give a whole number, or a share such as 10%")
    return text.replace(" ", "")


def _at_least_one(value: Any) -> str:
    share = _share(value)
    if share.strip("0") == "":
        raise ValueError("with 0 no replica could ever be changed: give 1 or more, or a share such as 20%")
    return share


Canary = Annotated[str, BeforeValidator(_share)]
Unavailable = Annotated[str, BeforeValidator(_at_least_one)]


class GatesConfig(Section):
    """When a new generation is taken back: its figures beside the old one's, over the same time."""

    error_rate: float = live(
        0.01, "By how much its share of requests that fail may be above the old one's, 0 to 1.", ge=0, le=1
    )
    ttft_ratio: float = live(2.0, "Largest mean time to the first token, as a multiple of the old one's.", gt=0)
    tpot_ratio: float = live(1.5, "Largest mean time per further token, as a multiple of the old one's.", gt=0)
    acceptance_ratio: float = live(
        0.9, "Least mean number of accepted tokens per draft, as a multiple of the old one's.", ge=0
    )


class RolloutConfig(Section):
    """How a changed configuration goes out: first to canaries, then to all replicas, with gates."""

    canary: Canary = live("1", "Replicas of each pool that get it first: `1`, `10%`; `0` for none.")
    bake_s: Seconds = live(300.0, "How long canaries serve before the rest follows, e.g. `5m`.")
    max_unavailable: Unavailable = live(
        "1", "Replicas of the app that may be without an engine at once: `1`, `20%` (at least one)."
    )
    drain_timeout_s: Seconds = live(60.0, "How long running requests get before a replica's engine is ended, `60s`.")
    start_timeout_s: Seconds = live(1800.0, "How long a replica may take until it serves again, e.g. `30m`.")
    min_requests: int = live(20, "Requests that a pool's canaries must have answered before they are judged.", ge=1)
    gates: GatesConfig = Field(
        default_factory=GatesConfig,
        description="When it is taken back.",
        json_schema_extra={"change": "live"},
    )

    def options(
        self,
        *,
        canary: str | int | None = None,
        bake: str | float | None = None,
        max_unavailable: str | int | None = None,
        allow_outage: bool = False,
    ) -> RolloutOptions:
        """For the planner; what is given on a command line is over what is configured.

        Raises:
            AppError: what is given is no number of replicas, or no duration.
        """
        given = {"canary": canary, "bake_s": bake, "max_unavailable": max_unavailable}
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            chosen = RolloutConfig.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            told = [f"{d['loc'][0]}: {d['msg'].removeprefix('Value error, ')}" for d in error.errors()]
            raise AppError("\n".join(told)) from None
        gates = Gates(**chosen.gates.model_dump(), min_requests=chosen.min_requests)
        return RolloutOptions(
            canary=chosen.canary,
            bake_s=chosen.bake_s,
            max_unavailable=chosen.max_unavailable,
            drain_s=chosen.drain_timeout_s,
            start_s=chosen.start_timeout_s,
            allow_outage=allow_outage,
            gates=gates,
        )
