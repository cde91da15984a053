"""Blocks that the click models share, initialised for private training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

EMBEDDING_STD = 0.01
"""Rare rows learn little under noise and stay close to their initial values, which should therefore be small."""

OUTPUT_STD = 0.01


def embedding(rows: int, dim: int, *, std: float = EMBEDDING_STD) -> nn.Embedding:
    """Return a table with sparse gradients and small random rows."""
    table = nn.Embedding(rows, dim, sparse=True)
    nn.init.normal_(table.weight, std=std)
    return table


def embedding_bag(rows: int, dim: int, *, std: float = EMBEDDING_STD) -> nn.EmbeddingBag:
    """Return a table whose rows are summed over a bag, with sparse gradients and small random rows."""
    table = nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
    nn.init.normal_(table.weight, std=std)
    return table


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Return He-initialised linear layers with ReLU between them, and after the last if `last_relu`."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    if not last_relu:
        # An output: the first predictions should be alike, not sure of anything.
        nn.init.normal_(layers[-2].weight, std=OUTPUT_STD)  # type: ignore[arg-type]
        layers.pop()
    return nn.Sequential(*layers)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Refuse sizes that are not positive integers."""
    if any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"{name} must be positive integers, got {list(sizes)}")
