"""One file per layer; importing this package registers them all."""

from sparsedp.clipping.layers import (
    attention,
    conv,
    derived_embedding,
    embedding,
    embedding_bag,
    linear,
    norm,
    recurrent,
)
from sparsedp.clipping.layers.cross_example import cross_example_refusal
from sparsedp.clipping.layers.fallback import Fallback
from sparsedp.clipping.layers.registry import (
    Rule,
    TableRule,
    register_derived_layer_rule,
    register_layer_rule,
    rule_of,
)

__all__ = [
    "Fallback",
    "Rule",
    "TableRule",
    "attention",
    "conv",
    "cross_example_refusal",
    "derived_embedding",
    "embedding",
    "embedding_bag",
    "linear",
    "norm",
    "recurrent",
    "register_derived_layer_rule",
    "register_layer_rule",
    "rule_of",
]
