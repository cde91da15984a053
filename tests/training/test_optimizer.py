"""What docs/optimisers.md says of each optimiser, and when pieces of a batch are kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selection
from sparsedp.training import Private, RowWiseAdagrad

ROWS = 2000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.small = nn.Embedding(ROWS, 4, sparse=True), nn.Embedding(50, 4, sparse=True)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.table(ids) + self.small(ids % 50)).squeeze(1)
        return out


class Computed(Model):
    """Reads ids that are no tensor of the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward((ids + 1) % ROWS)


Make = Callable[[list[nn.Parameter], list[nn.Parameter]], Optimizer | list[Optimizer]]


def make(
    optimizer: Make, selection: Selection, model: Model | None = None, physical_batch_size: int | None = None
) -> Private:
    model = model or Model()
    tables = [model.table.weight, model.small.weight]
    data = TensorDataset(torch.arange(64) * 7 % ROWS)
    return sdp.PrivacyEngine(seed=0).make_private(
        module=model,
        optimizer=optimizer(tables, list(model.out.parameters())),
        data_loader=DataLoader(data, batch_size=32),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
        physical_batch_size=physical_batch_size,
    )


def one_epoch(private: Private) -> None:
    for (ids,) in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()


def together(kind: Callable[..., Optimizer], **options: float) -> Make:
    return lambda tables, dense: kind([*tables, *dense], lr=0.1, **options)


def pair(of_tables: Callable[..., Optimizer]) -> Make:
    return lambda tables, dense: [of_tables(tables, lr=0.1), torch.optim.Adam(dense, lr=0.1)]


@pytest.mark.parametrize(
    ("optimizer", "moves"),
    [
        (together(torch.optim.SGD), False),
        (together(torch.optim.SGD, momentum=0.9), True),
        (together(torch.optim.Adagrad), False),
        (pair(torch.optim.SparseAdam), False),
        (pair(RowWiseAdagrad), False),
    ],
    ids=["SGD", "momentum", "Adagrad", "SparseAdam", "RowWiseAdagrad"],
)
def test_a_row_that_is_not_selected_stays_except_under_momentum(optimizer: Make, moves: bool) -> None:
    private = make(optimizer, sdp.RandomSelection(rows=20))
    weight = private.module.table.weight
    selected, weights, states = [], [], []
    for (ids,) in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()
        selected.append(set(weight.grad.indices()[0].tolist()))
        weights.append(weight.detach().clone())
        states.append([value.clone() for value in state_of(private, weight) if not value.is_sparse])
    rested = sorted(selected[0] - selected[1])
    assert len(selected[0]) == 20
    assert len(rested) > 10
    assert torch.equal(weights[0][rested], weights[1][rested]) is not moves
    for before, after in zip(*states, strict=True):
        assert torch.equal(before[rested], after[rested])
        assert not torch.equal(before, after)


def state_of(private: Private, weight: nn.Parameter) -> list[Tensor]:
    """What the optimiser keeps for each row of the table."""
    states = [
        optimizer.state[weight] for optimizer in private.optimizer.optimizers if weight in optimizer.state
    ]
    return (
        [value for value in states[0].values() if torch.is_tensor(value) and value.numel() >= ROWS]
        if states
        else []
    )


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimisers_that_cannot_take_sparse_gradients_are_refused(kind: Callable[..., Optimizer]) -> None:
    with pytest.raises(ValueError, match="cannot take sparse gradients"):
        make(together(kind), sdp.AdaFEST())


def test_weight_decay_on_selected_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        make(together(torch.optim.SGD, weight_decay=0.1), sdp.AdaFEST())


@pytest.mark.parametrize(("of_tables", "sparse"), [(torch.optim.SGD, False), (torch.optim.SparseAdam, True)])
def test_always_on_tables_have_dense_gradients_except_for_sparse_adam(
    of_tables: Callable[..., Optimizer], sparse: bool
) -> None:
    private = make(pair(of_tables), sdp.AdaFEST(always_on_rows=100))
    one_epoch(private)
    model = private.module
    assert model.table.weight.grad.is_sparse
    assert model.table.weight.grad.is_coalesced()
    assert model.small.weight.grad.is_sparse is sparse
    assert not model.out.weight.grad.is_sparse


@pytest.mark.parametrize(
    ("model", "selection", "warned"),
    [
        (Model, sdp.AdaFEST(), False),
        (Computed, sdp.AdaFEST(), True),
        (Computed, sdp.RandomSelection(rows=20), False),
    ],
    ids=["ids of the batch", "computed ids", "no ids needed"],
)
def test_pieces_that_are_kept_are_said(model: type[Model], selection: Selection, warned: bool) -> None:
    private = make(together(torch.optim.SGD), selection, model(), physical_batch_size=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one_epoch(private)
    assert any("are stored until its last one" in str(each.message) for each in caught) is warned


@pytest.mark.parametrize("physical_batch_size", [None, 8, 1000])
@pytest.mark.parametrize(
    ("selection", "scored"),
    [
        (sdp.ExponentialSelection(rows=5, selection_epsilon=1.0, score_cap=0.1), True),
        (sdp.SparseVectorSelection(rows=5, selection_epsilon=1.0, score_cap=0.1, threshold=0.0), True),
        (sdp.DPSGD(), False),
        (sdp.AdaFEST(), False),
        (sdp.FEST.private_top_k({"table": ([], [])}, 5), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_scored_rows_keep_all_pieces_and_make_private_says_so(
    selection: Selection, scored: bool, physical_batch_size: int | None
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private = make(together(torch.optim.SGD), selection, Model(), physical_batch_size=physical_batch_size)
        said = [str(each.message) for each in caught]
        one_epoch(private)
    pieces = physical_batch_size == 8
    assert len(said) == (scored and pieces)
    assert len(caught) == len(said)  # once, and not again in training
    if said:
        assert said[0].startswith(f"physical_batch_size: {type(selection).__name__} scores rows")
        assert "memory is that of the whole batch" in said[0]
        assert caught[0].filename == __file__
