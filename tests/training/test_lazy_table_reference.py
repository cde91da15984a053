"""A lazy table against a slow one that keeps, row by row, the list of steps it has missed: equal to the last bit."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowGradient
from sparsedp.training import lazy_table
from sparsedp.training.lazy_table import LazyTable, cell_for

ROWS, DIM = 11, 3
NOTHING = RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM))


class SlowTable:
    """What ``LazyTable`` says it does, one row and one number at a time."""

    def __init__(self, weights: NDArray[Any], stream: Stream, chunk: int) -> None:
        self.weights, self.stream, self.chunk = weights.copy(), stream, chunk
        self.missed: list[list[float]] = [[] for _ in weights]
        """Per row the variances of the steps that it has missed."""
        self.cell: float | None = None
        self.most = 2.0 ** (23 if weights.dtype == np.float32 else 52) * 2
        self.known: float | None = None

    def write(self, rows: list[int], change: NDArray[np.float64]) -> None:
        assert self.cell is not None
        words = (
            self.stream.uint64((change.size + 1) // 2).view(np.uint32)[: change.size].reshape(change.shape)
        )
        for n, row in enumerate(rows):
            for c in range(DIM):
                cells = math.floor(
                    (float(self.weights[row, c]) + change[n, c]) / self.cell + float(words[n, c]) / 2**32
                )
                self.weights[row, c] = max(-self.most, min(self.most, cells)) * self.cell
        self.known = None

    def pay(self, rows: list[int]) -> None:
        late = [row for row in rows if self.missed[row]]
        if not late:
            return
        assert self.cell is not None
        std = [
            math.sqrt(math.fsum(self.missed[row]) + (len(self.missed[row]) - 1) * self.cell**2 / 6)
            for row in late
        ]
        self.write(late, self.stream.normal((len(late), DIM)) * np.array(std)[:, None])
        for row in late:
            self.missed[row] = []

    def flush(self) -> None:
        for start in range(0, ROWS, self.chunk):
            self.pay(list(range(start, min(start + self.chunk, ROWS))))
        self.cell = self.known = None

    def step(self, lr: float, std: float, rows: list[int], values: NDArray[np.float32]) -> None:
        change = values * np.float64(-lr)
        if std == 0:
            for n, row in enumerate(rows):
                self.weights[row] = self.weights[row].astype(np.float64) + change[n]
            self.known = None
            return
        if lr <= 0:
            return
        if self.cell is None or not 32 <= lr * std / self.cell <= 512:
            known = self.known
            self.flush()
            self.known = float(np.abs(self.weights).max()) if known is None else known
            dtype = torch.float32 if self.weights.dtype == np.float32 else torch.float64
            self.cell = cell_for(lr * std, self.known, dtype)
            if self.cell is None:
                return
        self.pay(rows)
        for row in range(ROWS):
            if row not in rows:
                self.missed[row].append((lr * std) ** 2)
        self.write(rows, change)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_steps_reads_flushes_and_resumes(
    seed: int, dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning rates that change the lattice, steps without noise or rate, and large weights included."""
    monkeypatch.setattr(lazy_table, "FLUSH_COORDINATES", chunk * DIM)
    rng = np.random.default_rng(seed)
    begin = torch.from_numpy(rng.standard_normal((ROWS, DIM)) * 2.0 ** (6 * seed - 6)).to(dtype)
    table = LazyTable("table", nn.Parameter(begin.clone()), NoiseSource(seed).noise)
    slow = SlowTable(begin.numpy(), NoiseSource(seed).noise, chunk)
    table.step(1.0, 0.5, NOTHING)  # the first step must find a lattice
    slow.step(1.0, 0.5, [], np.empty((0, DIM), np.float32))
    for _ in range(60):
        kind = rng.integers(12)
        if kind < 8:
            lr = float(rng.choice([0.1, 0.1, 0.1, 0.03, 1.0, 0.1 / 16, 0.0, 1e-9]))
            std = float(rng.choice([0.5, 0.5, 0.5, 0.2, 0.0]))
            rows = sorted(rng.choice(ROWS, size=int(rng.integers(0, 5)), replace=False).tolist())
            values = rng.standard_normal((len(rows), DIM)).astype(np.float32)
            gradient = RowGradient(torch.tensor(rows, dtype=torch.int64), torch.from_numpy(values))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table.step(lr, std, gradient)
            slow.step(lr, std, rows, values)
        elif kind < 10:
            ids = rng.integers(ROWS, size=int(rng.integers(1, 6)))
            table.apply_pending_noise_to_ids(torch.from_numpy(ids))
            slow.pay(sorted(set(ids.tolist())))
        elif kind == 10:
            table.flush()
            slow.flush()
        else:
            again = LazyTable("table", table.parameter, table._stream)
            again.load_state_dict({**table.state_dict()})
            table, slow.known = again, None
        np.testing.assert_allclose(table.parameter.detach().numpy(), slow.weights, rtol=0, atol=0)
        assert table.has_pending_noise >= any(slow.missed)
    table.flush()
    slow.flush()
    assert np.array_equal(table.parameter.detach().numpy(), slow.weights)
    assert not table.has_pending_noise


@pytest.mark.parametrize(
    ("noise", "largest", "dtype", "cell"),
    [
        (1.0, 0.0, torch.float32, 2.0**-7),
        (1.99, 0.0, torch.float32, 2.0**-7),
        (2.0, 1.0, torch.float32, 2.0**-6),
        (1.0, 2.0**15, torch.float32, 2.0**-7),  # 2^16 of room is 2^23 cells
        (1.0, 2.0**16, torch.float32, 2.0**-6),
        (1.0, 2.0**17, torch.float32, 2.0**-5),
        (1.0, 2.0**18, torch.float32, None),
        (1.0, 2.0**44, torch.float64, 2.0**-7),
        (1.0, 2.0**46, torch.float64, 2.0**-5),
        (1.0, 2.0**47, torch.float64, None),
    ],
)
def test_the_cell_in_numbers(noise: float, largest: float, dtype: torch.dtype, cell: float | None) -> None:
    assert cell_for(noise, largest, dtype) == cell


@pytest.mark.parametrize("largest", [math.inf, math.nan])
def test_weights_that_are_not_finite_are_refused(largest: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        cell_for(1.0, largest, torch.float32)


def test_a_table_that_rests_says_so_once() -> None:
    table = LazyTable("words", nn.Parameter(torch.ones(2, DIM)), NoiseSource(1).noise)
    table.step(0.1, 1.0, NOTHING)
    with pytest.warns(UserWarning, match="too fine"):
        table.step(1e-12, 1.0, NOTHING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.step(1e-12, 1.0, NOTHING)
