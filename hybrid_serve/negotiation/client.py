"""A replica's side of the negotiation: it must start even if there is no planner to ask."""

import asyncio
import logging
from typing import Any

from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.negotiation.planner import planner_handle
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.kv_plan import EngineReport

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 15.0


async def negotiate(offer: ReplicaOffer, timeout_s: float = DEFAULT_TIMEOUT_S) -> PlanAnswer:
    """The planner's answer, or one computed here if the planner can't be reached within `timeout_s`.

    Never raises because of the planner; equal code gives equal plans on both sides.
    """
    try:
        answer: PlanAnswer = await asyncio.wait_for(_call("negotiate", offer), timeout_s)
        return answer
    except TimeoutError:
        reason = f"no answer from the planner within {timeout_s:g} s"
    except Exception as error:
        reason = f"planner unreachable: {_first_line(error)}"
    logger.warning("%s; replica %s plans for itself", reason, offer.replica_id)
    return PlanAnswer(decision=decide(offer.inputs, offer.policy), source="local", note=reason)


async def report(
    offer: ReplicaOffer, answer: PlanAnswer, report: EngineReport | None, timeout_s: float = DEFAULT_TIMEOUT_S
) -> bool:
    """Tell the planner what the engine got (None: still starting). False if it could not be told.

    Repeat it: a planner that lost its memory learns of this replica again, and forgets those that fall silent.
    """
    return await _tell("report", offer, answer, report, timeout_s=timeout_s)


async def forget(replica_id: str, timeout_s: float = 2.0) -> bool:
    """Tell the planner that this replica stops. False if it could not be told."""
    return await _tell("forget", replica_id, timeout_s=timeout_s)


async def _tell(method: str, *args: object, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(_call(method, *args), timeout_s)
    except Exception as error:
        logger.warning("planner did not take %s: %s", method, _first_line(error) or f"no answer in {timeout_s:g} s")
        return False
    return True


async def _call(method: str, *args: object) -> Any:
    planner = await asyncio.to_thread(planner_handle)
    return await getattr(planner, method).remote(*args)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
