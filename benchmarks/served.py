"""An engine's own OpenAI app behind a socket, as its users reach it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from hybrid_serve.engine.vllm_engine import VLLMEngine


@asynccontextmanager
async def served(engine: VLLMEngine) -> AsyncIterator[str]:
    """The engine's app on a loopback port of its own; yields its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = uvicorn.Config(engine.app, host="127.0.0.1", port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(settings)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving
