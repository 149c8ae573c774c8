"""What a request will need, estimated from its parsed body before any tokenizer has seen it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from deployments.routing.prefix import chained_hashes

BYTES_PER_TOKEN = 3.5
"""Until replicas have measured it: English runs at 4 to 4.5 bytes a token, code and other languages at 2 to 3.5."""

OUTPUT_TOKENS = 256.0
"""Of a request, until replicas have measured it."""

IMAGE_TOKENS = 1024
"""Of an image or another part of a prompt that is no text: about a megapixel in patches of 28 or 32 pixels."""

PROMPT_KEYS = ("messages", "prompt", "input", "token_ids", "text_1", "query", "queries", "documents")
NO_KV_PATHS = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
NO_KV_ENDINGS = ("/render", "/derender", "/cancel")


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What replicas have measured, or the start values."""

    bytes_per_token: float = BYTES_PER_TOKEN
    output_tokens: float = OUTPUT_TOKENS


@dataclass(frozen=True, kw_only=True)
class RequestNeed:
    """A request as the board sees it.

    Attributes:
        prompt_tokens: of one sequence (of the longest where a request has several prompts), estimated.
        output_tokens: of one sequence, estimated.
        sequences: that the request runs at once; 0 for a request that needs no KV.
        prompt_bytes: UTF-8 bytes of all sequences' text; 0 if they say nothing about tokens.
        prefix: chained hashes of its beginning, see `deployments.routing.prefix`.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    sequences: int = 0
    prompt_bytes: int = 0
    prefix: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Of one sequence."""
        return self.prompt_tokens + self.output_tokens


NO_KV = RequestNeed()
"""Of a request that holds no KV blocks: /v1/models, /tokenize, ..."""


def generates(method: str, path: str, body: Any) -> bool:
    """True if the request makes the engine hold KV: a POST with a prompt, to any path not known to only look at it."""
    if method != "POST" or not isinstance(body, dict) or path in NO_KV_PATHS or path.endswith(NO_KV_ENDINGS):
        return False
    return any(key in body for key in PROMPT_KEYS)


def need_of(body: Mapping[str, Any], estimates: Estimates) -> RequestNeed:
    """The need of a parsed request that generates. What is malformed counts as little: vLLM refuses it."""
    sequences = _count(body.get("n"), 1)
    prompts = _prompts(body)
    tokens, text_bytes, only_text = 0, 0, True
    for prompt in prompts:
        size = _Size()
        for part in prompt:
            size.add(part)
        tokens = max(tokens, size.tokens + ceil(size.text_bytes / estimates.bytes_per_token))
        text_bytes += size.text_bytes
        only_text &= size.tokens == 0
    output = ceil(estimates.output_tokens)
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        output = min(output, _count(body.get(key), output))
    if "documents" in body or "text_1" in body or "queries" in body:
        output = 0
    seed = f"{body.get('model')}\0{body.get('cache_salt')}"
    return RequestNeed(
        prompt_tokens=max(1, tokens),
        output_tokens=output,
        sequences=sequences * len(prompts),
        prompt_bytes=text_bytes * sequences if only_text else 0,
        prefix=chained_hashes(prompts[0], seed) if len(prompts) == 1 else (),
    )


class _Size:
    """Of one prompt: text in bytes, and what is counted in tokens."""

    def __init__(self) -> None:
        self.text_bytes = 0
        self.tokens = 0

    def add(self, part: str | bytes | int) -> None:
        if isinstance(part, int):
            self.tokens += part
        else:
            self.text_bytes += (
                len(part) if isinstance(part, bytes) or part.isascii() else len(part.encode(errors="replace"))
            )


def _prompts(body: Mapping[str, Any]) -> list[list[Any]]:
    """Each prompt of a request as its parts: text, or numbers of tokens. At least one."""
    if isinstance(body.get("messages"), list):
        return [list(_chat(body))]
    for key in ("prompt", "input", "token_ids", "text_1", "query", "queries"):
        value = body.get(key)
        if isinstance(value, list) and value and all(isinstance(item, (str, list)) for item in value):
            return [list(_texts(item)) for item in value]
        if value is not None:
            parts = list(_texts(body.get("instructions"))) if key == "input" else []
            return [[*parts, *_texts(value)]]
    return [[]]


def _chat(body: Mapping[str, Any]) -> Iterator[str | int]:
    """Templates put tools and the system's text first, then the messages in their order."""
    for key in ("tools", "system"):
        if body.get(key):
            yield from _texts(body[key])
    for message in body["messages"]:
        if isinstance(message, dict):
            yield f"\0{message.get('role')}\0"
            yield from _texts(message.get("content"))
            if message.get("tool_calls"):
                yield from _texts(message["tool_calls"])


def _texts(value: Any) -> Iterator[str | int]:
    """The text in a value of any shape, part by part; numbers of tokens for token ids and for what is no text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        if value and all(type(item) is int for item in value):
            yield len(value)
        else:
            for item in value:
                yield from _texts(item)
    elif isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and ("image" in kind or "audio" in kind or "video" in kind):
            yield IMAGE_TOKENS
        else:
            for key, item in value.items():
                if key != "type":
                    yield from _texts(item)


def _count(value: Any, default: int) -> int:
    return value if type(value) is int and value > 0 else default
