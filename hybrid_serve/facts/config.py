"""Typed access to a config.json: an error names the field, the value and the file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_serve.facts.errors import FactsError, fail
from hybrid_serve.facts.layers import Dtype

DTYPE_NAMES: dict[str, Dtype] = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
}


@dataclass(frozen=True)
class Config:
    """One section of a config.json.

    Attributes:
        values: the section.
        where: the file, for errors.
        path: dotted path of the section inside the file, with a trailing dot; empty for the root.
    """

    values: Mapping[str, Any]
    where: str
    path: str = ""

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> "Config":
        """Raises FactsError if `text` is no JSON object."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise fail(f"{where} is not JSON: {error}", "Restore the file from the model's source") from None
        if not isinstance(values, dict):
            raise fail(f"{where} holds a {type(values).__name__}, not a JSON object", "Restore the file") from None
        return cls(values, where)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def section(self, name: str) -> "Config":
        """A nested object; an empty section if it is absent."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Config(value, self.where, f"{self.path}{name}.")

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.missing(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(name, f"an integer of at least {minimum}")
        return value

    def optional_integer(self, name: str, minimum: int = 1) -> int | None:
        return self.integer(name, minimum=minimum) if name in self else None

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        if value is None:
            raise self.missing(name)
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise self.wrong(name, "a list of integers")
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if value is None:
            raise self.missing(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.wrong(name, "a list of strings")
        return tuple(value)

    def string(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            raise self.missing(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def optional_dtype(self, name: str) -> Dtype | None:
        """fp32, fp16 or bf16, however the file spells it (`torch.bfloat16`, `bfloat16`, ...)."""
        value = self.values.get(name)
        if value is None:
            return None
        dtype = DTYPE_NAMES.get(str(value).removeprefix("torch."))
        if dtype is None:
            raise self.wrong(name, "float32, float16 or bfloat16")
        return dtype

    def missing(self, name: str) -> FactsError:
        return fail(f"{self.where} has no field {self.path}{name}", f"Add {self.path}{name}, or fetch the file again")

    def wrong(self, name: str, expected: str) -> FactsError:
        return fail(
            f"{self.where}: {self.path}{name} is {self.values.get(name)!r}, expected {expected}",
            f"Correct {self.path}{name}",
        )
