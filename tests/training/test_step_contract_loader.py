"""What a step is: what the loader hands out, in pieces and of any type."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import peak_memory
from support.loops import Net, largest_move, loss_of, make, points, setting
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import sparsedp as sdp
from sparsedp.training import Private


@dataclass
class _Record:
    x: Tensor
    names: list[str]


class _Encoding(UserDict):  # type: ignore[type-arg]
    """Like transformers' BatchEncoding: a UserDict with more arguments."""

    def __init__(
        self, data: dict[str, Any] | None = None, encodings: Any = None, n_sequences: int | None = None
    ):
        super().__init__(data)


_Pair = namedtuple("_Pair", ["x", "names"])


def _stacked(items: list[Any]) -> tuple[Tensor, list[str]]:
    return torch.stack([x for (x,) in items]), [f"name {float(x[0])}" for (x,) in items]


FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "UserDict": lambda items: UserDict(zip(("x", "names"), _stacked(items), strict=True)),
    "BatchEncoding": lambda items: _Encoding(dict(zip(("x", "names"), _stacked(items), strict=True))),
    "dataclass": lambda items: _Record(*_stacked(items)),
    "namedtuple": lambda items: _Pair(*_stacked(items)),
    "list": lambda items: list(_stacked(items)),
    "strings": lambda items: _stacked(items)[1],
}


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_holds_no_example(form: str) -> None:
    data = DataLoader(TensorDataset(points()), batch_size=1, collate_fn=FORMS[form])
    private = make(nn.Linear(3, 2), data_loader=data, expected_batch_size=1e-9)
    batch = next(iter(private.data_loader))
    parts = (
        batch.values()
        if isinstance(batch, UserDict)
        else vars(batch).values()
        if form == "dataclass"
        else batch
    )
    assert type(batch) is type(FORMS[form]([(points()[0],)]))
    assert all(len(part) == 0 for part in parts)


def test_a_collate_fn_on_a_tensor_dataset_is_used() -> None:
    data = DataLoader(
        TensorDataset(points()), batch_size=8, collate_fn=lambda items: torch.stack([x for (x,) in items]) + 1
    )
    batch = next(iter(make(Net(), data_loader=data).data_loader))
    torch.testing.assert_close(batch, points() + 1)


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(points())


def test_a_stream_of_batches() -> None:
    model, engine = Net(), sdp.PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(_Stream(), batch_size=4),
        target_epsilon=5.0,
        target_delta=1e-5,
        max_grad_norm=1.0,
        poisson=False,
        steps=2,
    )
    for x in private.data_loader:
        loss_of(private.module(x)).backward()
        private.optimizer.step()
    assert private.optimizer.steps_taken == 2
    assert "zero" in engine.statement(1e-5).adjacency


def _sequence_first(items: list[Any]) -> tuple[Tensor]:
    return (torch.stack([x for (x,) in items], 1),)


def _with_a_scalar(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for (x,) in items]).flatten(0, 1), torch.tensor(0.5)


@pytest.mark.parametrize("collate", [_sequence_first, _with_a_scalar])
def test_batches_of_the_users_own_hold_one_example_along_dimension_0(collate: Callable[..., Any]) -> None:
    """Six positions of one far example: clipped one by one they would move the sum by 6 C."""
    x = 1e-3 * torch.randn(8, 6, 3)
    x[0] = torch.ones(3)
    own = setting(
        lambda: nn.Linear(3, 2, bias=False),
        data=[x],
        poisson=False,
        loader={"collate_fn": collate},
        options={"loss_reduction": "sum"},
    )

    def summed(private: Private) -> None:
        for batch, *_ in private.data_loader:
            private.optimizer.zero_grad()
            private.module(batch).sum().backward()
            private.optimizer.step()

    assert largest_move(own, summed) <= 1


def test_samplers_with_replacement_are_refused() -> None:
    """An example that is three times in a batch moves it by 3 C."""
    for sampler in (RandomSampler(points(), replacement=True), WeightedRandomSampler([1.0] * 8, 8)):
        data = DataLoader(TensorDataset(points()), batch_size=4, sampler=sampler)
        with pytest.raises(ValueError, match="replacement"):
            make(Net(), data_loader=data, poisson=False)


def test_counting_rows_takes_any_loader() -> None:
    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(50, 3, sparse=True), nn.Linear(3, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.table(ids)).squeeze(1)

    data = DataLoader(
        TensorDataset(torch.randint(0, 50, (20,)), torch.rand(20), torch.rand(20)), batch_size=5
    )
    private = make(Clicks(), data_loader=data, selection=sdp.FEST.private_top_k(data, 5, mu=1.0))
    for ids, *_ in private.data_loader:
        private.module(ids).sum().backward()
        private.optimizer.step()


# --- pieces in constant memory -----------------------------------------------------------------------------


class _Words(nn.Module):
    """A table, and a layer on features whose memory can be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden = nn.Embedding(2000, 16, sparse=True), nn.Linear(16, 16)
        self.features: list[weakref.ref[Any]] = []

    def forward(self, ids: Tensor) -> Tensor:
        memory = np.ones((len(ids), 16), np.float32)
        self.features.append(weakref.ref(memory))
        return (self.table(ids).sum(1) * self.hidden(torch.from_numpy(memory))).tanh().sum(1)


PIECES: dict[str, sdp.selection.Selection] = {
    "dpsgd": sdp.DPSGD(),
    "fest": sdp.FEST({"table": range(100)}),
    "fest-turns": sdp.FEST({"table": range(100)}, update_every=3),
    "random": sdp.RandomSelection(rows=100),
    "adafest": sdp.AdaFEST(),
    "exponential": sdp.ExponentialSelection(rows=50, selection_epsilon=1.0, score_cap=1.0),
}


def _in_pieces(selection: str, after_piece: Callable[[int, _Words], None]) -> None:
    """One logical batch of 20 pieces of 8 examples, which read the same 160 rows again and again."""
    model = _Words()
    ids = (torch.arange(160 * 10) % 160).view(160, 10)
    private = make(
        model,
        data_loader=DataLoader(TensorDataset(ids), batch_size=160),
        selection=PIECES[selection],
        physical_batch_size=8,
    )
    gc.collect()
    gc.freeze()  # what other tests hold need not be looked at after every piece
    try:
        for number, (piece,) in enumerate(private.data_loader):
            private.module(piece).mean().backward()
            private.optimizer.step()
            del piece
            after_piece(number, model)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("selection", PIECES)
def test_what_a_piece_left_behind_is_forgotten(selection: str) -> None:
    """Rules that look at gradients keep the pieces: the control."""
    alive: list[int] = []

    def look(number: int, model: _Words) -> None:
        gc.collect()
        alive.append(sum(memory() is not None for memory in model.features))

    _in_pieces(selection, look)
    assert max(alive) >= 19 if selection == "exponential" else max(alive) <= 1


@pytest.mark.parametrize("selection", ["dpsgd", "fest", "random", "adafest"])
def test_the_sums_do_not_grow_with_the_pieces(selection: str) -> None:
    held: list[int] = []

    def look(number: int, model: _Words) -> None:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        _in_pieces(selection, look)
    finally:
        tracemalloc.stop()
    assert held[18] - held[4] < 4 * 80 * 16 * 8  # the row sums of four pieces


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["dpsgd", "fest", "random", "adafest"])
def test_peak_memory_is_flat(selection: str) -> None:
    """A piece of 32 of this model holds 50 MB; 512 examples, if they were kept, 800 MB."""
    program = Path(peak_memory.__file__)

    def peak(examples: int) -> float:
        command = [sys.executable, str(program), selection, str(examples)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    least = peak(64)
    assert peak(256) < least + 50
    assert peak(512) < least + 50
