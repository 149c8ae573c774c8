"""A replica's side of the negotiation: it must start even if there is no planner to ask."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from ray.actor import ActorHandle

from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.negotiation.planner import planner_handle
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.wire import GenerationOffer, Order, ReplicaRun

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 15.0
STARTED_TIMEOUT_S = 2.0
"""A replica that is ready does not wait for a planner that hangs: its next heartbeat brings the report."""

SOONEST_S = 0.05
"""Between two heartbeats, whatever the planner wishes."""

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


async def tell_deployed(offer: GenerationOffer, known: bool) -> bool:
    """Tell the planner what Ray Serve was asked to deploy, or (`known`) that it is still so. False if it could not be
    told; never raises because of it."""
    return await _tell("deployed", offer, known, timeout_s=DEFAULT_TIMEOUT_S)


class PlannerUnreachable(RuntimeError):
    """The planner gave no answer."""


async def pool_config(app: str, digest: str, pool: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """What the replicas of a pool are bound with in a generation.

    Raises:
        ValueError: the planner knows no such generation, or not that pool of it; the message says what it knows.
        PlannerUnreachable: it gave no answer in time.
    """
    try:
        return await asyncio.wait_for(_call("pool_config", app, digest, pool), timeout_s)
    except ValueError:
        raise
    except TimeoutError as error:
        raise PlannerUnreachable(f"no answer in {timeout_s:g} s") from error
    except Exception as error:
        raise PlannerUnreachable(_first_line(error)) from error


class Reporter:
    """Keeps the planner informed of one replica, from its answer until it stops.

    A heartbeat says that the replica lives, which report it last sent and what it does (`ReplicaRun`); the answer is an
    `Order`. A planner that does not have that report (it was restarted, or the report was lost) is sent it at once. The
    next heartbeat follows when the planner wishes it, or after `period_s` if it did not answer.
    """

    def __init__(
        self,
        offer: ReplicaOffer,
        answer: PlanAnswer,
        period_s: float = REPORT_PERIOD_S,
        *,
        run: Callable[[], Awaitable[ReplicaRun | None]] | None = None,
        on_order: Callable[[Order], None] = lambda order: None,
    ) -> None:
        self.period_s = period_s
        self._offer = offer
        self._answer = answer
        self._report: EngineReport | None = None
        self._run_now = run
        self._on_order = on_order
        self._start = uuid.uuid4().hex[:12]
        self._sending = asyncio.Lock()
        self._due = asyncio.Event()
        self._again_s = period_s
        self._task: asyncio.Task[None] | None = None

    @property
    def incarnation(self) -> str:
        """Of this start of an engine, and of what it has to tell: another one before and after the engine started."""
        return f"{self._start}:{'starting' if self._report is None else 'started'}"

    def begin(self) -> None:
        """Report from now on, in the background of the running event loop."""
        self._task = asyncio.ensure_future(self._keep_beating())

    def offered(self, offer: ReplicaOffer, answer: PlanAnswer) -> None:
        """From now on the replica starts an engine on this answer: a new incarnation, without a report."""
        self._offer, self._answer, self._report = offer, answer, None
        self._start = uuid.uuid4().hex[:12]
        self.beat_soon()

    def beat_soon(self) -> None:
        """There is news: the next heartbeat is due now."""
        self._due.set()

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
        told = self._offer.replica_id, self.incarnation, await self._current_run()
        try:
            order: Order = await asyncio.wait_for(_call("heartbeat", *told), DEFAULT_TIMEOUT_S)
        except Exception as error:
            logger.warning("planner did not take a heartbeat: %s", _first_line(error))
            self._again_s = self.period_s
            return False
        self._again_s = max(SOONEST_S, order.again_s)
        self._on_order(order)
        return order.known or await self._send()

    async def _current_run(self) -> ReplicaRun | None:
        try:
            return None if self._run_now is None else await self._run_now()
        except Exception:
            logger.exception("this heartbeat does not say what the replica does")
            return None

    async def _keep_beating(self) -> None:
        while True:
            self._due.clear()
            try:
                await self.beat()
            except Exception:
                logger.exception("a heartbeat failed")
            try:
                await asyncio.wait_for(self._due.wait(), self._again_s)
            except TimeoutError:
                continue
            await asyncio.sleep(SOONEST_S)

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
