from __future__ import annotations

import torch

from sparsedp.rows import RowGradient


def test_the_sparse_tensor_is_coalesced_and_of_the_tables_shape() -> None:
    gradient = RowGradient(torch.tensor([1, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    sparse = gradient.to_sparse(10**12)
    assert sparse.is_coalesced()
    assert sparse.shape == (10**12, 2)
    dense = gradient.to_sparse(5).to_dense()
    assert dense[1].tolist() == [1.0, 2.0]
    assert dense[4].tolist() == [3.0, 4.0]
    assert dense.abs().sum() == 10.0


def test_a_step_of_sgd_touches_its_rows_only() -> None:
    weight = torch.nn.Parameter(torch.zeros(6, 2))
    weight.grad = RowGradient(torch.tensor([2]), torch.tensor([[1.0, -1.0]])).to_sparse(6)
    torch.optim.SGD([weight], lr=0.5).step()
    assert weight[2].tolist() == [-0.5, 0.5]
    assert weight.count_nonzero() == 2


def test_merging_adds_rows_that_occur_in_several_parts() -> None:
    first = RowGradient(torch.tensor([1, 3]), torch.tensor([[1.0], [2.0]]))
    second = RowGradient(torch.tensor([0, 3]), torch.tensor([[5.0], [7.0]]))
    merged = RowGradient.merge([first, second, first])
    assert merged.ids.tolist() == [0, 1, 3]
    assert merged.values.tolist() == [[5.0], [2.0], [11.0]]
    assert RowGradient.merge([first]) is first


def test_nothing_selected_is_an_empty_gradient() -> None:
    empty = RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, 3))
    assert empty.to_sparse(7)._nnz() == 0
    assert RowGradient.merge([empty, empty]).ids.numel() == 0
