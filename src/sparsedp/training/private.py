"""What ``make_private`` returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from sparsedp.training.optimizer import PrivateOptimizer


class Private(NamedTuple):
    """The same module (now with hooks), the private optimiser, and the Poisson loader."""

    module: nn.Module
    optimizer: PrivateOptimizer
    data_loader: Any
