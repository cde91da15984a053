"""How often each row occurs in a data set, each example's contribution clipped: what FEST chooses by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsedp.clipping import Capture, Captured
from sparsedp.rows import Readings, RowCounts, RowSpace


def count_rows(
    module: nn.Module, capture: Capture, loader: Any, norm: float, space: RowSpace
) -> Mapping[str, RowCounts]:
    """One pass over ``loader``: the joint histogram of rows read, each example's part clipped to ``norm``.

    Which ids go to which table is what the model itself reads, so the model runs on every batch of
    ``(features, label)``; where the counts are known already, give them instead of a loader. The result is
    private: noise comes after.
    """
    total = {table.name: RowCounts(np.empty(0, np.int64), np.empty(0)) for table in space.selectable}
    was_training = module.training
    module.train()
    try:
        for features, _ in loader:
            inputs = features if isinstance(features, tuple | list) else (features,)
            outputs = [leaf for leaf in tree_leaves(module(*inputs)) if isinstance(leaf, Tensor)]
            sum(leaf.sum() for leaf in outputs if leaf.requires_grad).backward()  # type: ignore[union-attr]
            for captured in capture.take():
                for name, counts in _clipped(captured, norm, space).items():
                    total[name] = _add(total[name], counts)
    finally:
        module.train(was_training)
    return total


def _clipped(captured: Captured, norm: float, space: RowSpace) -> dict[str, RowCounts]:
    everyone = np.ones(captured.batch_size, dtype=np.bool_)
    counts = Readings(space, captured.tables, captured.batch_size).contributions(norm, everyone)
    cuts = np.searchsorted(counts.ids, space.offsets[: len(space.selectable) + 1])
    return {
        table.name: RowCounts(
            counts.ids[cuts[n] : cuts[n + 1]] - space.offsets[n], counts.counts[cuts[n] : cuts[n + 1]]
        )
        for n, table in enumerate(space.selectable)
    }


def _add(first: RowCounts, second: RowCounts) -> RowCounts:
    ids, place = np.unique(np.concatenate([first.ids, second.ids]), return_inverse=True)
    sums = np.bincount(place, np.concatenate([first.counts, second.counts]), minlength=ids.size)
    return RowCounts(ids, sums.astype(np.float64))
