"""A replica's side of the negotiation: it must start even if there is no planner to ask."""

import asyncio
import logging
import uuid
from typing import Any

from ray.actor import ActorHandle

from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.negotiation.planner import planner_handle
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.wire import GenerationOffer, Order

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 15.0
STARTED_TIMEOUT_S = 2.0
"""A replica that is ready does not wait for a planner that hangs: its next heartbeat brings the report."""

_handle: ActorHandle[Any] | None = None


async def negotiate(offer: ReplicaOffer, timeout_s: float = DEFAULT_TIMEOUT_S) -> PlanAnswer:
    """The planner's answer, or one computed here if the planner can't be reached within `timeout_s`.

    Never raises because of the planner; equal code gives equal plans on both sides. Computed here, the agreement is the
    one of the declared fleet with this replica's own measurement: what a planner would fix if this replica were the
    first to ask.
    """
    try:
        answer: PlanAnswer = await asyncio.wait_for(_call("negotiate", offer), timeout_s)
        return answer
    except TimeoutError:
        reason = f"no answer from the planner within {timeout_s:g} s"
    except Exception as error:
        reason = f"planner unreachable: {_first_line(error)}"
    logger.warning("%s; replica %s plans for itself", reason, offer.replica_id)
    return answer_to(offer, agreement_with(offer), "local", reason)


async def tell_deployed(offer: GenerationOffer) -> bool:
    """Tell the planner what Ray Serve was asked to deploy. False if it could not be told; never raises because of
    it."""
    return await _tell("deployed", offer, timeout_s=DEFAULT_TIMEOUT_S)


class Reporter:
    """Keeps the planner informed of one replica, from its answer until it stops.

    A heartbeat every `period_s` says only that the replica lives and which report it last sent; a planner that does not
    have that report (it was restarted, or the report was lost) is sent it at once.
    """

    def __init__(self, offer: ReplicaOffer, answer: PlanAnswer, period_s: float = REPORT_PERIOD_S) -> None:
        self.period_s = period_s
        self._offer = offer
        self._answer = answer
        self._report: EngineReport | None = None
        self._start = uuid.uuid4().hex[:12]
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def incarnation(self) -> str:
        """Of this start of the replica, and of what it has to tell: another one before and after the engine started."""
        return f"{self._start}:{'starting' if self._report is None else 'started'}"

    def begin(self) -> None:
        """Report from now on, in the background of the running event loop."""
        self._task = asyncio.ensure_future(self._run())

    async def started(self, report: EngineReport) -> bool:
        """The engine runs: tell the planner now. False if it could not be told; a later heartbeat does it then."""
        self._report = report
        return await self._send(STARTED_TIMEOUT_S)

    async def stop(self) -> None:
        """The replica stops; safe to repeat, and before `begin`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await _tell("forget", self._offer.replica_id, timeout_s=2.0)

    async def beat(self) -> bool:
        """One heartbeat, and the full report if the planner wants it. False if the planner could not be told."""
        try:
            order: Order = await asyncio.wait_for(
                _call("heartbeat", self._offer.replica_id, self.incarnation), DEFAULT_TIMEOUT_S
            )
        except Exception as error:
            logger.warning("planner did not take a heartbeat: %s", _first_line(error))
            return False
        return order.known or await self._send()

    async def _run(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self.period_s)

    async def _send(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        async with self._sending:
            told = (self._offer, self._answer, self._report, self.incarnation)
            return await _tell("report", *told, timeout_s=timeout_s)


async def _tell(method: str, *args: object, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(_call(method, *args), timeout_s)
    except Exception as error:
        logger.warning("planner did not take %s: %s", method, _first_line(error) or f"no answer in {timeout_s:g} s")
        return False
    return True


async def _call(method: str, *args: object) -> Any:
    """Call the planner over a handle that is looked up once, and again after anything went wrong with it."""
    global _handle
    if _handle is None:
        _handle = await asyncio.to_thread(planner_handle)
    try:
        return await getattr(_handle, method).remote(*args)
    except BaseException:  # a timeout cancels this
        _handle = None
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
