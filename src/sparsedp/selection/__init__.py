"""Which rows a step may touch: one interface, one file per rule."""

from sparsedp.selection.adafest import AdaFEST
from sparsedp.selection.base import Batch, Rule, Selected, Selection
from sparsedp.selection.dpsgd import DPSGD
from sparsedp.selection.exponential import ExponentialSelection
from sparsedp.selection.fest import FEST, PrivateTopK
from sparsedp.selection.random_rows import RandomSelection
from sparsedp.selection.sparse_vector import SparseVectorSelection

__all__ = [
    "DPSGD",
    "FEST",
    "AdaFEST",
    "Batch",
    "ExponentialSelection",
    "PrivateTopK",
    "RandomSelection",
    "Rule",
    "Selected",
    "Selection",
    "SparseVectorSelection",
]
