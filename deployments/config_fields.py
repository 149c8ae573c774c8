"""How a field of the configuration is declared: what it is, and what a change to it costs.

Every field says in `json_schema_extra["change"]` what it takes until all replicas have a new value:

- `live`: nothing restarts. Ray Serve takes it in place, or a replica needs it only when it next starts.
- `replan`: each replica ends its engine and starts one on a new plan, in its own process.
- `replace`: only a new replica can have it: what Ray fixes when it starts an actor, and what routers are made for.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hybrid_serve.durations import parse_duration
from hybrid_serve.sizes import parse_size

Size = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]

Change = Literal["live", "replan", "replace"]
CHANGES: tuple[Change, ...] = ("live", "replan", "replace")
"""What a change may cost, from nothing to new replicas."""


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """What an older release has pickled lacks the fields that are new since: they have their defaults, unset."""
        super().__setstate__(state)
        kept = self.__dict__
        for name, field in type(self).model_fields.items():
            if name not in kept and not field.is_required():
                kept[name] = field.get_default(call_default_factory=True, validated_data=kept)


def live(default: Any, description: str, **constraints: Any) -> Any:
    """A field whose new value is taken in place."""
    return _field("live", default, description, constraints)


def replan(default: Any, description: str, **constraints: Any) -> Any:
    """A field whose new value needs another engine in each replica."""
    return _field("replan", default, description, constraints)


def replace(default: Any, description: str, **constraints: Any) -> Any:
    """A field whose new value needs new replicas."""
    return _field("replace", default, description, constraints)


def _field(change: Change, default: Any, description: str, constraints: dict[str, Any]) -> Any:
    return Field(default, description=description, json_schema_extra={"change": change}, **constraints)


def change_of(section: type[BaseModel], field: str) -> Change:
    """What a change to a field costs."""
    extra = section.model_fields[field].json_schema_extra
    assert isinstance(extra, dict), f"{section.__name__}.{field} declares what a change to it costs"
    found: Change = extra["change"]  # type: ignore[assignment]
    return found


def one_kv_memory(value: int | None, info: ValidationInfo) -> int | None:
    """Validator of `kv_memory` in a section that has `gpu_memory_utilization` before it."""
    if value is not None and info.data.get("gpu_memory_utilization") is not None:
        raise ValueError("gpu_memory_utilization decides the KV memory too: set one of them")
    return value
