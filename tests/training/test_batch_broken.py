"""An example whose gradient is not finite anywhere leaves no trace: not in sums, counts, scores or norms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace
from sparsedp.selection import Selected
from sparsedp.training.batch import LogicalBatch

SPACE = RowSpace(selectable=(TableShape("table", 20, 2),), always_on=(TableShape("small", 4, 2),))


class Apart(nn.Module):
    """Each parameter has a path of its own to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.small, self.dense = nn.Embedding(20, 2), nn.Embedding(4, 2), nn.Linear(2, 1)


def batch_of(ids: Tensor, factors: Tensor, pieces: int) -> LogicalBatch:
    torch.manual_seed(0)
    model = Apart()
    capture = Capture(model, loss_reduction="sum")
    for part, own in zip(ids.chunk(pieces), factors.chunk(pieces), strict=True):
        rows = (model.table(part) * own[:, 0].view(-1, 1, 1)).sum((1, 2))
        rows = rows + (model.small(part % 4) * own[:, 1].view(-1, 1, 1)).sum((1, 2))
        (rows + model.dense(own[:, 2:3].expand(-1, 2)).squeeze(1)).sum().backward()
    found = LogicalBatch(capture.take(), SPACE)
    capture.detach()
    return found


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_example_that_is_broken_in_one_place_is_as_if_it_were_not_there(
    where: int, value: float, pieces: int
) -> None:
    """In a table chosen in, in one that is always on, or in a dense layer's input."""
    ids = torch.tensor([[1, 2], [3, 3], [4, 2], [7, 5]])
    factors = torch.tensor([[1.0, 2.0, 0.5], [0.3, 1.0, 2.0], [1.5, 0.2, 1.0], [0.1, 0.2, 0.3]])
    broken = factors.clone()
    broken[2, where] = value
    batch = batch_of(ids, broken, pieces)
    kept = [0, 1, 3]
    alone = batch_of(ids[kept], factors[kept], 1)
    assert batch.finite.tolist() == [True, True, False, True]
    counts, due = batch.contributions(1.0), alone.contributions(1.0)
    present = counts.values > 0
    assert counts.ids[present].tolist() == due.ids.tolist()
    np.testing.assert_allclose(counts.values[present], due.values)
    selected = Selected(np.array([1, 2, 3, 4]))
    survivors, others = batch.surviving(selected), alone.surviving(selected)
    squares = batch.squared_norms(survivors)
    np.testing.assert_allclose(squares[kept], alone.squared_norms(others), rtol=1e-6)
    assert squares[2] == 0.0
    weights, own = batch.clip_weights(squares, 1.0), alone.clip_weights(alone.squared_norms(others), 1.0)
    assert weights[2] == 0.0
    np.testing.assert_allclose(weights[kept], own, rtol=1e-6)
    sums = {n: (rows.tolist(), values) for n, rows, values in batch.row_sums(survivors, weights)}
    for n, rows, values in alone.row_sums(others, own):
        assert sums[n][0] == rows.tolist()
        np.testing.assert_allclose(sums[n][1], values, rtol=1e-6)
    out, expected = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    batch.accumulate_dense("dense.weight", out, weights)
    alone.accumulate_dense("dense.weight", expected, own)
    torch.testing.assert_close(out, expected)
