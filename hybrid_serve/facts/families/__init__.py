"""The model families known, by architecture. A new family is one module here and one entry below."""

from hybrid_serve.facts.families.base import DrafterMethod, TargetFamily
from hybrid_serve.facts.families.dflash import DFLASH
from hybrid_serve.facts.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from hybrid_serve.facts.families.qwen3_next import QWEN3_NEXT

TARGETS: dict[str, TargetFamily] = {
    architecture: family for family in (QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE) for architecture in family.architectures
}
DRAFTERS: dict[str, DrafterMethod] = {
    architecture: method for method in (DFLASH,) for architecture in method.architectures
}

__all__ = ["DRAFTERS", "TARGETS", "DrafterMethod", "TargetFamily"]
