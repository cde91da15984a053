"""One table: who owes what, that it is paid, and that rounding does not show who was touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowGradient
from sparsedp.training import lazy_table
from sparsedp.training.lazy_table import FEWEST_CELLS, MOST_CELLS, LazyTable, cell_for

F64 = NDArray[np.float64]


def make(
    rows: int, dim: int, seed: int = 1, dtype: torch.dtype = torch.float32, fill: float = 0.0
) -> LazyTable:
    return LazyTable(
        "table", nn.Parameter(torch.full((rows, dim), fill, dtype=dtype)), NoiseSource(seed).noise
    )


def gradient(rows: list[int], dim: int, value: float = 0.0) -> RowGradient:
    return RowGradient(torch.tensor(rows, dtype=torch.int64), torch.full((len(rows), dim), value))


def weights(table: LazyTable) -> F64:
    return table.parameter.detach().double().numpy()


def test_a_row_that_owes_one_step_is_paid() -> None:
    table = make(3, 200)
    table.step(0.1, 1.0, gradient([0], 200))
    assert not weights(table)[1:].any()
    table.apply_pending_noise(np.array([1]))
    assert 0.07 < weights(table)[1].std() < 0.13
    assert not weights(table)[[0, 2]].any()  # row 0 got its noise with its gradient, which was zero here
    before = weights(table).copy()
    table.apply_pending_noise(np.array([1]))
    assert np.array_equal(weights(table), before)  # nothing is paid twice


def test_touched_rows_are_moved_by_their_gradient_and_owe_nothing_for_the_step() -> None:
    table = make(4, 50)
    table.step(0.5, 1e-3, gradient([1, 3], 50, value=2.0))
    assert np.abs(weights(table)[[1, 3]] + 1.0).max() <= 0.5e-3 / 128
    table.flush()
    assert np.abs(weights(table)[[1, 3]] + 1.0).max() <= 0.5e-3 / 128
    assert weights(table)[[0, 2]].all(axis=0).sum() > 40


def test_a_touched_row_keeps_what_it_owed_before() -> None:
    table = make(2, 20_000)
    table.step(0.1, 1.0, gradient([], 20_000))
    table.step(0.1, 1.0, gradient([1], 20_000))
    table.flush()
    first, second = weights(table).std(axis=1)
    assert first == pytest.approx(0.1 * np.sqrt(2), rel=0.04)
    assert second == pytest.approx(0.1, rel=0.04)  # its second step's noise came with its gradient: none here


@pytest.mark.parametrize("rows", [1, 5, 131, 132])
def test_the_flush_reaches_the_last_row(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_table, "FLUSH_COORDINATES", 1000)  # several pieces, the last one whole or not
    table = make(rows, 30)
    table.step(0.1, 1.0, gradient([], 30))
    table.flush()
    assert (np.abs(weights(table)).sum(axis=1) > 0).all()
    assert not table.has_pending_noise


def test_debts_have_the_variance_that_was_accounted() -> None:
    """Two million coordinates a kind: a standard deviation wrong by 1% is 20 of its own, the bound 8 (1e-15)."""
    rates, stds = [0.1, 0.05, 0.2], [1.0, 1.0, 1.5]
    table = make(30_000, 64, seed=3)
    for lr, std in zip(rates[:2], stds[:2], strict=True):
        table.step(lr, std, gradient([], 64))
    half = np.arange(0, 30_000, 2)
    table.apply_pending_noise(half)
    owed_two = np.sqrt(sum((r * s) ** 2 for r, s in zip(rates[:2], stds[:2], strict=True)))
    assert weights(table)[half].std() == pytest.approx(owed_two, rel=8 / np.sqrt(2 * half.size * 64))
    table.step(rates[2], stds[2], gradient([], 64))
    paid_before = weights(table)[half].copy()
    table.flush()
    last = weights(table)[half] - paid_before
    assert last.std() == pytest.approx(0.3, rel=8 / np.sqrt(2 * last.size))
    whole = weights(table)[1::2]
    owed_all = np.sqrt(sum((r * s) ** 2 for r, s in zip(rates, stds, strict=True)))
    assert whole.std() == pytest.approx(owed_all, rel=8 / np.sqrt(2 * whole.size))
    for wrong in (0.95, 0.99, 1.01):
        assert whole.std() * wrong != pytest.approx(owed_all, rel=8 / np.sqrt(2 * whole.size))


def test_the_number_that_reaches_the_sampler_is_the_one_that_was_accounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With normals that are all 1 a row moves by its debt: T steps' noise, and T - 1 roundings."""
    monkeypatch.setattr(Stream, "normal", lambda stream, size: np.ones(size))
    table = make(3, 4, dtype=torch.float64)
    debts = []
    for lr, std in ((0.1, 1.0), (0.05, 2.0), (0.2, 1.0)):
        table.step(lr, std, gradient([2], 4))
        debts.append((lr * std) ** 2)
    cell = table.state_dict()["cell"]
    table.flush()
    expected = np.sqrt(sum(debts) + 2 * cell**2 / 6)
    assert np.abs(weights(table)[:2] - expected).max() <= cell
    assert not weights(table)[2].any()
    assert 2 * cell**2 / 6 < 1e-4 * sum(debts)


def two_laws(noise: float, steps: int, corrected: bool = True) -> tuple[F64, F64]:
    """In cells: the law of a row that was rounded at every step, and that of one which was paid at the end.

    By their characteristic functions; a random rounding convolves with the triangle, the square of a box.
    """
    angle = 2 * np.pi * np.fft.fftfreq(1 << 13)
    triangle = np.sinc(angle / (2 * np.pi)) ** 2
    touched = np.exp(-steps * noise**2 * angle**2 / 2) * triangle**steps
    owed = steps * noise**2 + (steps - 1) / 6 * corrected
    paid = np.exp(-owed * angle**2 / 2) * triangle
    return np.fft.ifft(touched).real, np.fft.ifft(paid).real


def divergence(first: F64, second: F64) -> float:
    kept = second > 1e-13
    return float(((first - second)[kept] ** 2 / second[kept]).sum() / 2)


def test_what_rounding_shows_of_touched_rows_is_within_the_stated_bound() -> None:
    """And where the roundings that a row missed are not paid, it is ten orders of magnitude more."""
    for steps in (2, 3, 10):
        assert divergence(*two_laws(FEWEST_CELLS, steps)) < 4e-19
        assert divergence(*two_laws(FEWEST_CELLS, steps, corrected=False)) > 1e-10


@pytest.mark.parametrize("steps", [1, 3])
def test_touched_and_paid_rows_have_the_same_variance_to_the_rounding(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coarse on purpose, two cells of noise: the roundings' part is then 4%, and must not be missing.

    1.6 million coordinates each, at 7 standard deviations of a difference (1e-11).
    """
    rows, dim, cell = 50_000, 32, 1.0
    table = make(2 * rows, dim, seed=5)
    table._cell, table._begun = cell, True
    stream = NoiseSource(6).noise
    touched = torch.arange(rows)
    monkeypatch.setattr(lazy_table, "FEWEST_CELLS", 1.0)
    for _ in range(steps):
        noise = torch.from_numpy(2.0 * stream.normal((rows, dim)))
        table.step(1.0, 2.0, RowGradient(touched, noise))
    table.flush()
    values = weights(table) / cell
    first, second = values[:rows].var(), values[rows:].var()
    expected = steps * (4 + 1 / 6)
    tolerance = 7 * expected * np.sqrt(2 / (rows * dim))
    assert abs(first - expected) < tolerance
    assert abs(second - expected) < tolerance
    assert steps / 6 > 5 * tolerance


def test_rounding_is_random_and_without_bias() -> None:
    table = make(40_000, 32, seed=2)
    table.step(1.0, 0.01, RowGradient(torch.arange(40_000), torch.full((40_000, 32), -0.3 * 2.0**-14)))
    cell = table.state_dict()["cell"]
    assert cell == 2.0**-14
    cells = weights(table) / cell
    assert set(np.unique(cells)) == {0.0, 1.0}
    assert cells.mean() == pytest.approx(0.3, abs=7 * 0.46 / np.sqrt(cells.size))


def test_touched_and_paid_rows_lie_on_the_same_lattice() -> None:
    """The released gradient lies on a lattice of its own, which paid rows do not have: a table that starts at
    zero would show it. The control rounds to float32 only, as an earlier form did."""
    release = 0.01 / 2**10
    stream = NoiseSource(9).noise

    def run(rounded: bool) -> tuple[float, float]:
        table = make(2000, 8, seed=4)
        noise = np.rint(0.01 * stream.normal((1000, 8)) / release) * release
        table.step(1.0, 0.01, RowGradient(torch.arange(1000), torch.from_numpy(noise)))
        if rounded:
            table.flush()
            values = weights(table)
        else:
            values = np.concatenate([noise, 0.01 * stream.normal((1000, 8))]).astype(np.float32).astype(float)
        off = np.abs(values / release - np.rint(values / release)) > 1e-3
        return float(off[:1000].mean()), float(off[1000:].mean())

    assert run(rounded=False) == (0.0, pytest.approx(0.998, abs=0.002))
    first, second = run(rounded=True)
    assert first == pytest.approx(second, abs=0.02)
    table = make(50, 8)
    table.step(1.0, 0.01, gradient([1], 8, 0.0123))
    cell = table.state_dict()["cell"]
    table.flush()
    assert np.array_equal(np.rint(weights(table) / cell) * cell, weights(table))


@pytest.mark.parametrize("noise", [1e-7, 3e-4, 1.0, 77.0])
def test_a_cell_is_fine_enough_for_the_noise_and_coarse_enough_for_the_weights(noise: float) -> None:
    for largest in (0.0, 1e-3, 0.99, 1.0, 50.0):
        for dtype, bits in ((torch.float32, 24), (torch.float64, 53), (torch.bfloat16, 8)):
            cell = cell_for(noise, largest, dtype)
            if cell is None:
                assert noise / FEWEST_CELLS < 4 * largest / 2**bits
                continue
            assert FEWEST_CELLS <= noise / cell < MOST_CELLS
            assert np.log2(cell) == np.round(np.log2(cell))
            assert 2 * largest / cell <= 2**bits
    with pytest.raises(ValueError, match="not finite"):
        cell_for(noise, float("nan"), torch.float32)


@pytest.mark.parametrize("fill", [100.0, -100.0])
def test_noise_that_the_table_cannot_hold_is_refused_at_the_first_step(fill: float) -> None:
    one = make(10, 4)
    one.parameter.data[3, 2] = fill
    with pytest.raises(ValueError, match="weights as large as 100"):
        one.step(1e-4, 1e-2, gradient([1], 4, 1.0))
    table = make(10, 4, fill=fill)
    with pytest.raises(ValueError, match=r"'table'.*too fine.*float64"):
        table.step(1e-4, 1e-2, gradient([1], 4, 1.0))
    assert np.array_equal(weights(table), np.full((10, 4), fill))
    fine = make(10, 4, dtype=torch.float64, fill=fill)
    fine.step(1e-4, 1e-2, gradient([1], 4, 1.0))
    fine.flush()
    assert (np.abs(weights(fine) - fill) > 0).all()


def test_a_learning_rate_that_falls_too_low_lets_the_whole_table_rest() -> None:
    table = make(10, 4, fill=1.0)
    table.step(0.1, 1e-2, gradient([1], 4, 1.0))
    with pytest.warns(UserWarning, match="too fine"):
        table.step(1e-9, 1e-2, gradient([1], 4, 1e8))
    assert not table.has_pending_noise
    assert weights(table)[1].min() > 0.85  # moved by the first step alone
    resting = weights(table).copy()
    table.step(1e-9, 1e-2, gradient([2], 4, 1e8))
    table.step(0.0, 1e-2, gradient([2], 4, 1.0))
    table.flush()
    assert np.array_equal(weights(table), resting)  # touched or not
    table.step(0.1, 1e-2, gradient([], 4))
    table.flush()
    assert (weights(table) != resting).all()


def test_another_lattice_is_taken_only_with_all_rows_paid() -> None:
    table = make(20, 4)
    table.step(0.1, 1.0, gradient([0], 4))
    first = table.state_dict()["cell"]
    table.step(0.05, 1.0, gradient([0], 4))
    assert table.state_dict()["cell"] == first
    table.step(0.001, 1.0, gradient([0], 4))
    state = table.state_dict()
    assert state["cell"] < first
    assert len(state["variance"]) == 2  # the debts of the first two steps are paid
    assert (np.abs(weights(table)[1:]).sum(axis=1) > 0).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_weights_stay_where_every_lattice_point_is_a_float(sign: int) -> None:
    table = make(2, 2, fill=1.0)
    table.step(1.0, 0.01, gradient([0], 2, -sign * 1e9))
    cell = table.state_dict()["cell"]
    assert (weights(table)[0] == sign * 2**24 * cell).all()


def test_without_noise_it_is_plain_sgd() -> None:
    table = make(5, 3)
    table.step(0.1, 0.0, gradient([1], 3, 0.7))
    assert np.array_equal(weights(table)[1], np.full(3, np.float32(-0.07)))
    assert not table.has_pending_noise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_work_where_the_noise_is_large(dtype: torch.dtype) -> None:
    table = make(50, 40, dtype=dtype)
    table.step(1.0, 8.0, gradient([3], 40, 1.0))
    table.flush()
    others = np.delete(weights(table), 3, axis=0)
    assert 7.0 < others.std() < 9.0
    assert abs(weights(table)[3] + 1.0).max() <= 8 / 64


def test_an_interrupted_step_leaves_more_noise_not_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    table = make(5, 100)
    with monkeypatch.context() as patch:
        patch.setattr(lazy_table, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.step(0.1, 1.0, gradient([2], 100, 1.0))
    table.flush()
    assert (np.abs(weights(table)).mean(axis=1) > 0.01).all()


def test_only_chosen_rows_have_state_and_noise_and_may_move() -> None:
    rows = np.array([1, 4, 5])
    table = LazyTable("table", nn.Parameter(torch.zeros(7, 200)), NoiseSource(1).noise, rows)
    assert table.state_dict()["applied"].numel() == 3
    table.step(0.1, 1.0, gradient([4], 200, 0.5))
    assert np.flatnonzero(weights(table).any(axis=1)).tolist() == [4]
    table.apply_pending_noise(np.array([0, 1, 6]))
    assert np.flatnonzero(weights(table).any(axis=1)).tolist() == [1, 4]
    before = weights(table).copy()
    with pytest.raises(ValueError, match=r"'table'.*not among those to train"):
        table.step(0.1, 1.0, gradient([0, 4], 200))
    with pytest.raises(ValueError, match=r"'table'.*noise is pending"):
        table.train(np.array([1]))
    assert np.array_equal(weights(table), before)
    table.flush()
    assert np.flatnonzero(weights(table).any(axis=1)).tolist() == rows.tolist()
    assert 0.07 < weights(table)[[1, 5]].std() < 0.13
    table.train(np.array([0]))
    with pytest.raises(ValueError, match="pending on 3 rows there, 1 rows are trained here"):
        table.load_state_dict({**table.state_dict(), "applied": torch.zeros(3, dtype=torch.int32)})


@pytest.mark.parametrize("chosen", [[], [0]])
def test_the_lattice_follows_the_weights_that_are_trained(chosen: list[int]) -> None:
    """Row 1 would not allow so little noise, but nothing is ever added to it."""
    parameter = nn.Parameter(torch.tensor([[0.01] * 4, [100.0] * 4]))
    table = LazyTable("table", parameter, NoiseSource(1).noise, np.array(chosen, dtype=np.int64))
    table.step(1e-4, 1e-2, gradient([], 4))
    table.flush()
    assert torch.equal(parameter[1], torch.full((4,), 100.0))
    assert (parameter[0] != 0.01).all() == bool(chosen)


def test_debts_go_into_a_state_and_back() -> None:
    first, second = make(6, 3, seed=8), make(6, 3, seed=8)
    for table in (first, second):
        table.step(0.1, 1.0, gradient([1, 2], 3, 0.5))
        table.step(0.1, 1.0, gradient([2], 3, 0.5))
    third = make(6, 3, seed=8)
    third.load_state_dict(second.state_dict())
    with torch.no_grad():
        third.parameter.copy_(second.parameter)
    third._stream.restore(second._stream.state())
    first.flush()
    third.flush()
    assert np.array_equal(weights(first), weights(third))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (
            "applied",
            torch.tensor([0, 3, 1], dtype=torch.int32),
        ),  # ahead of the steps: noise would be left out
        ("applied", torch.tensor([0, -1, 1], dtype=torch.int32)),
        ("applied", torch.tensor([0.0, 1.0, 1.5])),
        ("variance", []),
        ("variance", [0.5, 1.0, 2.0]),
        ("variance", [0.0, 2.0, 1.0]),
        ("variance", [0.0, 1.0, 1.0]),
        ("variance", [0.0, 1.0, float("inf")]),
        ("variance", [0.0, float("nan"), 1.0]),
        ("variance", [0.0, 1.0, "2"]),
        ("cell", None),
        ("cell", 0.0),
        ("cell", -0.125),
        ("cell", 0.1),
        ("cell", float("nan")),
        ("cell", True),
        ("begun", 1),
    ],
)
def test_a_state_that_no_table_wrote_is_refused_and_changes_nothing(part: str, value: object) -> None:
    table = make(3, 4)
    for _ in range(2):
        table.step(0.1, 1.0, gradient([0], 4))
    state = {**table.state_dict(), "applied": table.state_dict()["applied"].clone()}
    assert len(state["variance"]) == 3
    other = make(3, 4)
    with pytest.raises(ValueError, match=r"^table 'table': its pending noise is not as a table writes it"):
        other.load_state_dict({**state, part: value})
    assert not other.has_pending_noise
    other.load_state_dict(state)
    assert other.state_dict()["variance"] == state["variance"]
