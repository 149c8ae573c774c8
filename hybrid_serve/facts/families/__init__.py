"""The model families known, by architecture. A new family is one module here and one entry below."""

from hybrid_serve.facts.families.base import DrafterMethod, TargetFamily
from hybrid_serve.facts.families.dflash import DFLASH
from hybrid_serve.facts.families.draft_model import DRAFT_MODEL
from hybrid_serve.facts.families.dspark import DSPARK
from hybrid_serve.facts.families.eagle3 import EAGLE3
from hybrid_serve.facts.families.falcon_h1 import FALCON_H1
from hybrid_serve.facts.families.gpt_oss import GPT_OSS
from hybrid_serve.facts.families.granite_hybrid import GRANITE_HYBRID
from hybrid_serve.facts.families.nemotron_h import NEMOTRON_H
from hybrid_serve.facts.families.not_planned import NOT_PLANNED
from hybrid_serve.facts.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from hybrid_serve.facts.families.qwen3_next import QWEN3_NEXT

TARGETS: dict[str, TargetFamily] = {
    architecture: family
    for family in (QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, NEMOTRON_H, GRANITE_HYBRID, FALCON_H1, GPT_OSS)
    for architecture in family.architectures
}
DRAFTERS: dict[str, DrafterMethod] = {
    architecture: method for method in (DFLASH, EAGLE3, DSPARK, DRAFT_MODEL) for architecture in method.architectures
}

__all__ = ["DRAFTERS", "NOT_PLANNED", "TARGETS", "DrafterMethod", "TargetFamily"]
