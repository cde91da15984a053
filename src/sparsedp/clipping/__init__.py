"""Per-example clipped gradients without per-example gradients."""

from sparsedp.clipping.capture import Capture, Captured, Table, TableInput
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.gradients.base import PerExampleGradient
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts

__all__ = [
    "Capture",
    "Captured",
    "Materialised",
    "OuterProducts",
    "PerExampleGradient",
    "Table",
    "TableInput",
    "UnsupportedLayerError",
]
