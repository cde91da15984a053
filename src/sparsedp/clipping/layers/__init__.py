"""One file a layer; importing this package registers them all."""

from sparsedp.clipping.layers import (
    attention,
    conv,
    embedding,
    embedding_bag,
    linear,
    norm,
    recurrent,
)
from sparsedp.clipping.layers.cross_example import cross_example_refusal
from sparsedp.clipping.layers.fallback import Fallback
from sparsedp.clipping.layers.registry import Rule, TableRule, covers, rule_of

__all__ = [
    "Fallback",
    "Rule",
    "TableRule",
    "attention",
    "conv",
    "covers",
    "cross_example_refusal",
    "embedding",
    "embedding_bag",
    "linear",
    "norm",
    "recurrent",
    "rule_of",
]
