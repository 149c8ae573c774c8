"""How a field of the configuration is declared: what it is, and what a change to it costs.

Every field says in `json_schema_extra["change"]` whether Ray Serve takes a new value in place (`light`) or
starts the replicas of that deployment again (`restart`).
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hybrid_serve.sizes import parse_size

Size = Annotated[int, BeforeValidator(parse_size)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def restart(default: Any, description: str, **constraints: Any) -> Any:
    """A field whose new value starts replicas again."""
    return Field(default, description=description, json_schema_extra={"change": "restart"}, **constraints)


def light(default: Any, description: str, **constraints: Any) -> Any:
    """A field whose new value is taken in place."""
    return Field(default, description=description, json_schema_extra={"change": "light"}, **constraints)


def one_kv_memory(value: int | None, info: ValidationInfo) -> int | None:
    """Validator of `kv_memory` in a section that has `gpu_memory_utilization` before it."""
    if value is not None and info.data.get("gpu_memory_utilization") is not None:
        raise ValueError("gpu_memory_utilization decides the KV memory too: set one of them")
    return value
