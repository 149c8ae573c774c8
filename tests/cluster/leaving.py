"""A client that goes away before it has seen anything of its answer."""

import asyncio
from typing import Any

import httpx

from tests.cluster.conftest import App, until


def leave_while_it_runs(app: App, body: dict[str, Any]) -> None:
    """Asks for a whole answer and breaks the connection off once the engine has the request."""

    async def leave() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            asking = asyncio.ensure_future(http.post(f"{app.url}/v1/chat/completions", json=body))
            await asyncio.to_thread(until, lambda: asking.done() or app.running() == 1)
            assert not asking.done(), f"it was answered before the client could leave: {asking.result().text[:300]}"
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(leave())
