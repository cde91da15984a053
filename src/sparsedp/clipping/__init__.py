"""Per-example clipped gradients without per-example gradients."""

from sparsedp.clipping.capture import Capture, Captured, Table, TableInput
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.gradients.base import PerExampleGradient
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.layers import Rule, TableRule, register_layer_rule

__all__ = [
    "Capture",
    "Captured",
    "Materialised",
    "OuterProducts",
    "PerExampleGradient",
    "Rule",
    "Table",
    "TableInput",
    "TableRule",
    "UnsupportedLayerError",
    "register_layer_rule",
]
