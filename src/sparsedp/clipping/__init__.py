"""Per-example clipped gradients without per-example gradients."""

from sparsedp.clipping.capture import Capture, Captured, Table, TableInput
from sparsedp.clipping.gradient import PerExampleGradient
from sparsedp.clipping.materialised import Materialised
from sparsedp.clipping.outer_products import OuterProducts
from sparsedp.clipping.unsupported import UnsupportedLayerError

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
