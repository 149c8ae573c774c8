"""GET /v1/models over several models: each model's own answer, put together."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from deployments.answer import last_line
from deployments.routing.need import NO_KV
from deployments.routing.service import ModelService
from deployments.routing.ticket import ReplicaDraining, ReplicaFull
from hybrid_serve.engine.base import Send

logger = logging.getLogger("ray.serve")

TIMEOUT_S = 5.0
"""For one replica's answer; a model without one is listed by its name."""


async def list_models(services: Mapping[str, ModelService], scope: dict[str, Any], send: Send) -> None:
    """Answers with the cards of all models, as their replicas' vLLM gives them (with `max_model_len` and adapters)."""
    answers = await asyncio.gather(*(_cards(service, scope) for service in services.values()))
    body = json.dumps({"object": "list", "data": [card for cards in answers for card in cards]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _cards(service: ModelService, scope: dict[str, Any]) -> list[dict[str, Any]]:
    reservation = service.board.reserve(NO_KV)
    if reservation is not None:
        messages = None
        try:
            messages = service.call(reservation, NO_KV, scope, b"")
            async with asyncio.timeout(TIMEOUT_S):
                body = b"".join([message.get("body", b"") async for message in messages])
            messages = None
            return list(json.loads(body)["data"])
        except ReplicaFull as error:
            logger.warning("model %s: no replica told its card: %s", service.name, last_line(error))
            service.board.refused(reservation)
        except ReplicaDraining as error:
            logger.warning("model %s: no replica told its card: %s", service.name, last_line(error))
            service.board.draining(reservation)
        except Exception as error:
            logger.warning("model %s: no replica told its card: %s", service.name, last_line(error))
        finally:
            if messages is not None:
                messages.cancel()
            service.board.release(reservation)
    return [{"id": service.name, "object": "model", "owned_by": "vllm", "max_model_len": service.board.max_model_len}]
