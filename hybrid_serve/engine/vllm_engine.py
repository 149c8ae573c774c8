"""The real engine: vLLM's AsyncLLM and vLLM's own OpenAI app, running one KV plan."""

import argparse
import asyncio
import warnings
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Any, NamedTuple

from hybrid_serve.engine.additional import entry
from hybrid_serve.engine.base import ASGIApp, EngineConfig, EngineStartError, EngineStats
from hybrid_serve.engine.processes import EngineProcesses
from hybrid_serve.engine.stats import StatsCollector
from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.plan.kv_plan import EngineReport

PARSER_MODULES = (
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.common.cli_args",
)
"""Where vLLM keeps its server's argument parser, by version (0.29; 0.20 to 0.28; 0.33)."""


KILL_PERIOD_S = 0.2
"""A start that is given up may be about to start a process: looked for again after so long."""

WATCH_PERIOD_S = 1.0
"""While an engine starts, whether its engine core still has workers is looked at so often."""


class _Built(NamedTuple):
    arguments: argparse.Namespace
    vllm_config: Any
    client: Any


class VLLMEngine:
    """One vLLM engine in this process and its children; see `hybrid_serve.engine.base.Engine`."""

    def __init__(self) -> None:
        self._client: Any = None
        self._app: ASGIApp | None = None
        self._stats: StatsCollector | None = None
        self._reuses_prefixes = False
        self._exit = AsyncExitStack()
        self._processes: EngineProcesses | None = None
        self._building: asyncio.Future[_Built] | None = None
        self._stopping = asyncio.Lock()

    async def start(self, config: EngineConfig) -> EngineReport:
        """Start vLLM on the plan and verify it in every worker.

        Raises:
            EngineStartError: vLLM refused its arguments or died while starting, or a worker runs something else
                than the plan. Nothing is left running.
        """
        try:
            return await self._start(config)
        except BaseException as error:
            await self.stop()
            if isinstance(error, EngineStartError) or not isinstance(error, Exception):
                raise
            raise EngineStartError(f"vLLM did not start: {error}") from error

    async def _start(self, config: EngineConfig) -> EngineReport:
        collector = StatsCollector(config.settings.num_speculative_tokens)
        self._processes = await asyncio.to_thread(EngineProcesses)
        # vLLM's constructor waits for the engine core: in a thread, or this process would be deaf for minutes.
        self._building = asyncio.ensure_future(asyncio.to_thread(_build, config, collector))
        watch = asyncio.ensure_future(_watch_workers(self._processes))
        try:
            arguments, vllm_config, self._client = await asyncio.shield(self._building)
        finally:
            watch.cancel()
        self._stats = collector
        self._reuses_prefixes = config.settings.prefix_caching
        report = await self._verify(config, vllm_config)
        await self._serve(arguments)
        return report

    async def _verify(self, config: EngineConfig, vllm_config: Any) -> EngineReport:
        """What the engine got, after every worker confirmed the plan."""
        cache = vllm_config.cache_config
        if config.plan is None:
            raise EngineStartError("no KV plan: give EngineConfig.plan, with policy `stock` for vLLM's own layout")
        workers: list[dict[str, Any]] = await self._client.collective_rpc("hybrid_serve_report")
        expected = vllm_config.parallel_config.world_size
        if len(workers) != expected:
            raise EngineStartError(f"{len(workers)} of {expected} workers confirmed KV plan {config.plan.plan_id}")
        for rank, worker in enumerate(workers):
            if not worker["patched"] or worker["plan_id"] != config.plan.plan_id:
                raise EngineStartError(
                    f"worker {rank} does not run KV plan {config.plan.plan_id}: its plan is {worker['plan_id']}, "
                    f"the plugin {'is' if worker['patched'] else 'is not'} in place"
                )
            if worker["groups"] != workers[0]["groups"] or worker["num_blocks"] != workers[0]["num_blocks"]:
                raise EngineStartError(f"worker {rank} got another KV cache than worker 0: {worker} and {workers[0]}")
            if worker["prefix_match_unit"] != (config.settings.prefix_match_unit or worker["prefix_match_unit"]):
                raise EngineStartError(
                    f"worker {rank} hashes prefixes every {worker['prefix_match_unit']} tokens, the fleet agreed on "
                    f"{config.settings.prefix_match_unit}: the release does not take prefix_match_unit for this plan"
                )
        tokens, concurrency = workers[0]["capacity"] or (cache.kv_cache_size_tokens, cache.kv_cache_max_concurrency)
        return EngineReport(
            num_blocks=workers[0]["num_blocks"],
            groups=tuple((kind, layers, block, page) for kind, layers, block, page in workers[0]["groups"]),
            kv_tokens=tokens,
            concurrency=concurrency,
            workers=len(workers),
            prefix_match_unit=workers[0]["prefix_match_unit"],
        )

    async def _serve(self, arguments: argparse.Namespace) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the one module that has both from 0.20.1 to 0.33.0
            from vllm.entrypoints.openai.api_server import build_app, init_app_state
        tasks = await self._client.get_supported_tasks()
        app = build_app(arguments, tasks, self._client.model_config)
        await init_app_state(self._client, app.state, arguments, tasks)
        app.state.server = _NoServer()
        await self._exit.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    @property
    def app(self) -> ASGIApp:
        """vLLM's OpenAI app as an ASGI app. Only after `start`."""
        if self._app is None:
            raise EngineStartError("the engine has not started")
        return self._app

    @property
    def reuses_prefixes(self) -> bool:
        """vLLM's prefix caching is on."""
        return self._reuses_prefixes

    async def stats(self) -> EngineStats:
        """Live figures, from the engine's own stats; requests as the client knows them."""
        if self._stats is None:
            raise EngineStartError("the engine has not started")
        unfinished = self._client.output_processor.get_num_unfinished_requests()
        return self._stats.snapshot(unfinished)

    async def check_health(self) -> None:
        """Raises EngineStartError if the engine died."""
        if self._client is None:
            raise EngineStartError("the engine has not started")
        try:
            await self._client.check_health()
        except Exception as error:
            raise EngineStartError(f"the engine died: {error}") from error

    async def stop(self) -> None:
        """End the engine's processes and wait until all are gone; safe if it never started, and while it starts."""
        async with self._stopping:
            await self._exit.aclose()
            client, self._client, self._app = self._client, None, None
            if self._building is not None:
                client = await self._built_or_given_up() or client
                self._building = None
            processes, self._processes = self._processes, None
            if processes is not None:
                await asyncio.to_thread(_end, client, processes)

    async def _built_or_given_up(self) -> Any:
        """The client that was built, or that is built before word gets through that nobody wants it; None if none is.

        The thread that builds can't be interrupted; without its engine core it ends by itself.
        """
        assert self._building is not None and self._processes is not None
        while not self._building.done():
            await asyncio.to_thread(self._processes.kill)
            await asyncio.wait({self._building}, timeout=KILL_PERIOD_S)
        with suppress(Exception):
            return self._building.result().client
        return None


async def _watch_workers(processes: EngineProcesses) -> None:
    """So that a start whose workers died fails, even if their engine core hangs; see what it does not notice there."""
    while True:
        await asyncio.sleep(WATCH_PERIOD_S)
        await asyncio.to_thread(processes.kill_cores_without_workers)


def _build(config: EngineConfig, collector: StatsCollector) -> _Built:
    """vLLM's engine, with its processes. Blocks until they have loaded their weights."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    from hybrid_serve.engine.plugin import register

    register()
    arguments = server_arguments(config)
    engine_args = AsyncEngineArgs.from_cli_args(arguments)
    vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    client = AsyncLLM.from_vllm_config(
        vllm_config=vllm_config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        stat_loggers=[collector.logger_factory()],
    )
    return _Built(arguments, vllm_config, client)


def _end(client: Any, processes: EngineProcesses) -> None:
    """Blocks until the engine's processes are gone."""
    running = processes.running()
    if client is not None:
        client.shutdown()
    else:
        processes.kill()
    processes.wait_for_end(running)


class _NoServer:
    """Stands where vLLM's launcher keeps its uvicorn server.

    vLLM's handler for an engine that died tells the server to exit, and only then writes its answer. Here Ray Serve
    ends the replica, once `check_health` says why.
    """

    should_exit = False


def server_arguments(config: EngineConfig) -> argparse.Namespace:
    """vLLM's own server arguments for a config.

    Raises:
        EngineStartError: an engine argument that this vLLM does not have, or that the plan already decides.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments: argparse.Namespace = _parser_module().make_arg_parser(FlexibleArgumentParser()).parse_args([])
    planned = _planned_arguments(config)
    unknown = sorted(name for name in config.engine_args if not hasattr(arguments, name))
    if unknown:
        raise EngineStartError(f"vLLM has no engine arguments {', '.join(unknown)}; see `vllm serve --help`")
    decided = sorted(name for name, value in config.engine_args.items() if name in planned and planned[name] != value)
    if decided:
        raise EngineStartError(
            f"engine arguments {', '.join(decided)} are decided by the config's own fields: set them there"
        )
    if missing := sorted(name for name in planned if not hasattr(arguments, name)):
        raise EngineStartError(f"this vLLM has no engine arguments {', '.join(missing)}, which the plan needs")
    for name, value in {**config.engine_args, **planned}.items():
        setattr(arguments, name, value)
    return arguments


def _parser_module() -> Any:
    for name in PARSER_MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise EngineStartError(f"this vLLM has no server argument parser in {', '.join(PARSER_MODULES)}")


def _planned_arguments(config: EngineConfig) -> dict[str, Any]:
    settings, plan = config.settings, config.plan
    planned: dict[str, Any] = {
        "model": config.target_path,
        "served_model_name": [config.model_name],
        "tensor_parallel_size": settings.tensor_parallel_size,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "enable_prefix_caching": settings.prefix_caching,
        "kv_cache_dtype": _cache_dtype(settings.kv_dtype),
        "mamba_ssm_cache_dtype": _ssm_cache_dtype(config),
    }
    if settings.block_size is not None:
        planned["block_size"] = settings.block_size
    if settings.prefix_match_unit is not None:
        planned["prefix_match_unit"] = settings.prefix_match_unit
    if plan is not None:
        planned["kv_cache_memory_bytes"] = plan.kv_memory_bytes
        planned["additional_config"] = entry(plan)
    if config.drafter is not None:
        planned["speculative_config"] = {
            "method": config.drafter.method,
            "model": config.drafter_path,
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
        if settings.draft_kv_dtype != settings.kv_dtype and _has_draft_kv_dtype():
            planned["speculative_config"]["kv_cache_dtype"] = _cache_dtype(settings.draft_kv_dtype)
    return planned


def _has_draft_kv_dtype() -> bool:
    """Where it is missing, only a dtype that the drafter's KV cache has anyway was planned for."""
    import vllm

    return capabilities(vllm.__version__).draft_kv_dtype


def _cache_dtype(dtype: str) -> str:
    return {"bf16": "bfloat16"}.get(dtype, dtype)


def _ssm_cache_dtype(config: EngineConfig) -> str:
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    mamba = config.target.layers.mamba
    return names[mamba[0].ssm_dtype] if mamba else "auto"
