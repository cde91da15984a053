"""FEST's rows: public counts, private counts, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from support.batches import GivenBatch
from support.models import TwoTables
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.clipping import Capture
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.training.counting import count_rows

TABLES = [TableShape("large", 300, 5), TableShape("small", 7, 3)]


def test_public_counts_choose_the_most_frequent_over_all_tables() -> None:
    fest = sdp.FEST.from_public_counts({"a": [5, 0, 9, 1], "b": ([10, 4], [7, 6])}, 3)
    assert {name: rows.tolist() for name, rows in fest.sorted_rows.items()} == {"a": [2], "b": [4, 10]}
    assert fest.one_off_events() == ()


def test_counts_stay_with_their_ids_whatever_their_order() -> None:
    fest = sdp.FEST.from_public_counts({"a": ([10, 4, 7], [1.0, 5.0, 9.0])}, 2)
    assert fest.sorted_rows["a"].tolist() == [4, 7]


def test_the_choice_is_paid_for_after_the_counting_and_before_the_noise() -> None:
    happened = []

    def count(source: object, norm: float) -> dict[str, SparseCounts]:
        happened.append("counted")
        return {"large": SparseCounts(np.array([3]), np.array([9.0]), 10**4)}

    def refuse() -> None:
        happened.append("paid")
        raise RuntimeError("the budget is spent")

    stream, untouched = NoiseSource(1).selection, NoiseSource(1).selection
    selection = sdp.FEST.private_top_k([], 2, always_on_rows=10)
    with pytest.raises(RuntimeError, match="spent"):
        selection.resolve(TABLES, count, stream, refuse)
    assert happened == ["counted", "paid"]
    assert np.array_equal(stream.uint64(4), untouched.uint64(4))


def test_ties_are_broken_by_table_and_id() -> None:
    fest = sdp.FEST.from_public_counts({"b": [1, 1, 1], "a": [1, 1]}, 4)
    assert {name: rows.tolist() for name, rows in fest.sorted_rows.items()} == {"b": [0, 1, 2], "a": [0]}


def test_fewer_rows_than_asked_for_are_all_taken() -> None:
    fest = sdp.FEST.from_public_counts({"a": [0, 3, 0]}, 10)
    assert fest.sorted_rows["a"].tolist() == [1]


def test_the_rule_selects_the_same_rows_at_every_step() -> None:
    fest = sdp.FEST({"large": [9, 3, 3]}, always_on_rows=10)
    space = fest.partition_tables(TABLES)
    rule = fest.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    for _ in range(3):
        assert rule.select(GivenBatch(space), NoiseSource(1).selection).rows.tolist() == [3, 9]


def test_a_small_table_that_is_named_is_chosen_in() -> None:
    fest = sdp.FEST({"large": [1], "small": [2]}, always_on_rows=10)
    space = fest.partition_tables(TABLES)
    assert [table.name for table in space.selectable] == ["large", "small"]
    assert fest.numbers(space).tolist() == [1, 302]


def counts_by_hand(ids: torch.Tensor) -> dict[str, np.ndarray]:
    return {"large": np.bincount(ids[:, 0].numpy(), minlength=300).astype(float)}


def test_a_loader_and_its_counts_choose_the_same_rows() -> None:
    """With next to no noise both are the true top-k."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.stack(
        [
            (300 * torch.rand(400, generator=generator) ** 3).long(),
            torch.randint(0, 7, (400,), generator=generator),
        ],
        1,
    )
    loader = DataLoader(TensorDataset(ids, torch.zeros(400)), batch_size=64)
    model = TwoTables()
    capture = Capture(model, loss_reduction="mean")
    true = counts_by_hand(ids)["large"]
    k = int(np.sum(true >= 4))  # a cut between different counts, so that the answer is unique

    def resolve(source: object) -> list[int]:
        selection = sdp.FEST.private_top_k(source, k, mu=1e6, always_on_rows=10)
        space = selection.partition_tables(TABLES)
        fest = selection.resolve(
            TABLES,
            lambda given, norm: count_rows(model, capture, given, norm, space),
            NoiseSource(2).selection,
        )
        return fest.sorted_rows["large"].tolist()

    expected = np.flatnonzero(true >= 4).tolist()
    assert resolve(loader) == expected
    assert resolve(counts_by_hand(ids)) == expected
    sparse = np.flatnonzero(true)
    assert resolve({"large": SparseCounts(sparse, true[sparse], true.size)}) == expected
    capture.detach()


@pytest.mark.parametrize("norm", [None, 0.5, 3.0])
@pytest.mark.parametrize("tables", [1, 3])
def test_examples_are_counted_with_the_norm_that_the_noise_and_the_event_are_for(
    norm: float | None, tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped_to, stds = [], []

    def count(source: object, given: float) -> dict[str, SparseCounts]:
        clipped_to.append(given)
        return {}

    def chosen(*_: object, k: int, std: float, **__: object) -> np.ndarray:
        stds.append(std)
        return np.arange(k)

    monkeypatch.setattr("sparsedp.selection.fest.top_k_gaussian", chosen)
    shapes = [TableShape(f"table {n}", 2000, 1) for n in range(tables)]
    selection = sdp.FEST.private_top_k([], 2, 0.3, contribution_norm=norm)
    fest = selection.resolve(shapes, count, NoiseSource(1).selection)
    assert clipped_to == [norm or pytest.approx(math.sqrt(tables))]
    (event,) = fest.one_off_events()
    assert event == selection.one_off_events()[0]
    assert stds == [pytest.approx(clipped_to[0] * event.noise_multiplier, rel=1e-12)]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_histogram_gets_noise_of_the_contribution_norm_over_mu(factor: float) -> None:
    """Two rows that differ by one: how often the larger one is kept tells the noise; binomial at 1e-8."""
    norm, mu, runs = factor * math.sqrt(2.0), 0.5, 3000
    tables = [TableShape("a", 2, 1), TableShape("b", 2000, 1)]
    counts = {"a": [5001.0, 5000.0], "b": ([0], [1e9])}
    selection = sdp.FEST.private_top_k(
        counts, 2, mu, contribution_norm=None if factor == 1 else norm, always_on_rows=0
    )
    stream = NoiseSource(3).selection
    larger = 0
    for _ in range(runs):
        rows = selection.resolve(tables, lambda *_: {}, stream).sorted_rows
        assert rows["b"].tolist() == [0]
        larger += rows["a"].tolist() == [0]
    p = stats.norm.cdf(1 / (math.sqrt(2) * norm / mu))
    assert stats.binomtest(larger, runs, p).pvalue > 1e-8
    assert stats.binomtest(larger, runs, stats.norm.cdf(4 / (math.sqrt(2) * norm / mu))).pvalue < 1e-8


def test_events() -> None:
    assert sdp.FEST({"large": [1]}).one_off_events() == ()
    selection = sdp.FEST.private_top_k({"large": [1.0] * 300}, 5, mu=0.1, always_on_rows=10)
    assert selection.one_off_events() == (GaussianDpEvent(10.0),)
    fest = selection.resolve(TABLES, lambda *_: {}, NoiseSource(1).selection)
    assert fest.one_off_events() == (GaussianDpEvent(10.0),)
    assert fest.sorted_rows["large"].size == 5
    with pytest.raises(ValueError, match="resolved"):
        selection.rule(
            selection.partition_tables(TABLES), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
        )


BAD: list[tuple[str, Callable[[], object]]] = [
    ("rows names table 'x'", lambda: sdp.FEST({"x": [1]}).partition_tables(TABLES)),
    ("rows of table 'large' has id 300", lambda: sdp.FEST({"large": [300]}).partition_tables(TABLES)),
    ("rows of table 'large' must not be negative", lambda: sdp.FEST({"large": [-1]})),
    ("rows of table 'large' must be integers", lambda: sdp.FEST({"large": [1.5]})),
    ("rows does not name", lambda: sdp.FEST({}, always_on_rows=10).partition_tables(TABLES)),
    ("k must", lambda: sdp.FEST.from_public_counts({"large": [1]}, 0)),
    ("k must", lambda: sdp.FEST.private_top_k({}, 0)),
    ("mu must", lambda: sdp.FEST.private_top_k({}, 1, math.nan)),
    ("mu must", lambda: sdp.FEST.private_top_k({}, 1, 0.0)),
    ("contribution_norm must", lambda: sdp.FEST.private_top_k({}, 1, contribution_norm=math.inf)),
    ("counts of 'large' must", lambda: sdp.FEST.from_public_counts({"large": [math.nan]}, 1)),
    ("counts of 'large' must", lambda: sdp.FEST.from_public_counts({"large": [-1.0]}, 1)),
    ("counts of 'large' must", lambda: sdp.FEST.from_public_counts({"large": ([1, 2], [1.0])}, 1)),
    (
        "counts of 'large' names a row twice",
        lambda: sdp.FEST.from_public_counts({"large": ([1, 1], [1, 1])}, 1),
    ),
    (
        "counts of 'large' has id 300",
        lambda: sdp.FEST.private_top_k({"large": [1.0] * 301}, 1, always_on_rows=10).resolve(
            TABLES, lambda *_: {}, NoiseSource(1).selection
        ),
    ),
]


@pytest.mark.parametrize(("message", "call"), BAD)
def test_bad_input_is_named(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_rows_in_turns_are_those_that_are_read_by_noisy_counts() -> None:
    """Rows without reads are left out, rare ones wait longest, and ``k`` rows a step are due on average."""
    counts = np.concatenate([np.full(20, 40_000.0), np.full(400, 3000.0), np.full(1580, 0.0)])
    stated = sdp.FEST.private_top_k({"table": counts}, 40, mu=0.05, update_every=64)
    chosen = stated.resolve([TableShape("table", 2000, 3)], None, NoiseSource(4).selection)  # type: ignore[arg-type]
    rows, every = chosen.sorted_rows["table"], chosen.parameters()["update_every"]["table"]
    assert set(range(420)) <= set(rows.tolist())
    assert rows.size < 600
    assert every[:20].max() < every[20:420].min() <= every.max() <= 64
    assert 30 < (1 / every).sum() <= 40
    assert chosen.one_off_events() == stated.one_off_events() != ()


@pytest.mark.parametrize(
    ("every", "problem"),
    [
        (0, "update_every"),
        (1.5, "update_every"),
        ({"other": [1, 2]}, "must name the tables of rows"),
        ({"table": [1]}, "one for each of its distinct rows"),
        ({"table": [1, 0]}, "whole numbers of at least 1"),
        ({"table": [1.0, 2.0]}, "whole numbers of at least 1"),
    ],
)
def test_bad_turns_are_refused(every: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sdp.FEST({"table": [5, 3]}, update_every=every)  # type: ignore[arg-type]


def test_turns_go_with_their_rows_however_these_are_ordered() -> None:
    assert sdp.FEST({"table": [5, 3]}, update_every={"table": [2, 9]}).parameters()["update_every"][
        "table"
    ].tolist() == [9, 2]
    with pytest.raises(ValueError, match="distinct"):
        sdp.FEST({"table": [5, 5]}, update_every={"table": [2, 9]})


def test_turns_exclude_lazy_noise_and_adafest() -> None:
    for refused in (
        lambda: sdp.FEST({"table": [1]}, lazy=True, update_every=2),
        lambda: sdp.FEST.private_top_k({}, 3, lazy=True, update_every=2),
        lambda: sdp.AdaFEST(within=sdp.FEST({"table": [1]}, update_every=2)),
        lambda: sdp.AdaFEST(within=sdp.FEST.private_top_k({}, 3, update_every=2)),
    ):
        with pytest.raises(ValueError, match="update_every"):
            refused()
