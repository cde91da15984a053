"""Every number that a rule hands to its mechanism, over a grid of parameters, beside the number that is accounted."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest
from support.batches import GivenBatch
from support.spies import spy

import sparsedp as sdp
from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import threshold_for_false_positives
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import (
    Rule,
    Selection,
    adafest,
    exponential,
    fest,
    sparse_vector,
    vocabulary,
)
from sparsedp.selection.vocabulary import StreamingVocabulary

TABLES = [TableShape("a", 40, 3), TableShape("small", 5, 2), TableShape("b", 60, 4)]
COUNTS = SparseCounts(np.array([2, 7, 50]), np.array([1.0, 0.3, 2.5]), 60)
GRID = [(0.3, 0.5, 8.0), (1.7, 2.0, 100.0), (1.0, 1.0, 1.0)]
"""sigma, C, B"""


def rule_of(selection: Selection, sigma: float, clip: float, batch: float) -> tuple[RowSpace, Rule]:
    space = selection.partition_tables(TABLES)
    return space, selection.rule(space, noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=batch)


@pytest.mark.parametrize(("sigma", "clip", "batch"), GRID)
@pytest.mark.parametrize("norm", [None, 0.6])
@pytest.mark.parametrize("within", [None, [3, 4, 9]])
def test_adafest(
    monkeypatch: pytest.MonkeyPatch,
    within: list[int] | None,
    norm: float | None,
    sigma: float,
    clip: float,
    batch: float,
) -> None:
    drawn = spy(monkeypatch, adafest, "draw_survivors")
    inner = None if within is None else sdp.FEST({"a": within, "b": within[:1]}, always_on_rows=10)
    selection = sdp.AdaFEST(
        noise_ratio=4.0, false_positives=1.5, contribution_norm=norm, always_on_rows=10, within=inner
    )
    space, rule = rule_of(selection, sigma, clip, batch)
    counts = SparseCounts(np.array([3, 9, 43]), np.array([1.0, 2.0, 0.5]), 60)
    given = GivenBatch(space, counts)
    found = rule.select(given, NoiseSource(1).selection)
    sigma1 = sigma * math.sqrt(1 + 4.0**2)
    due = norm or math.sqrt(2)
    rows = 100 if within is None else 4
    assert [asked[0] for asked in given.asked] == [due]
    (call,) = drawn
    assert call["std"] == pytest.approx(sigma1 * due, rel=1e-12)
    assert call["size"] == rows
    assert call["threshold"] == pytest.approx(threshold_for_false_positives(1.5, rows, sigma1 * due))
    assert call["counts"].tolist() == [1.0, 2.0, 0.5]
    # sigma2 beside sigma1: together the accounted sigma
    assert rule.gradient_noise_multiplier == pytest.approx(sigma1 / 4)
    assert sigma1**-2 + rule.gradient_noise_multiplier**-2 == pytest.approx(sigma**-2)
    assert (rule.sensitivity, rule.max_grad_norm, rule.expected_batch_size) == (clip, clip, batch)
    domain = np.arange(100) if within is None else np.array([3, 4, 9, 43])
    assert call["touched"].tolist() == np.searchsorted(domain, [3, 9, 43]).tolist()
    assert set(found.rows.tolist()) <= set(domain.tolist())
    assert found.rows.tolist() == domain[call["returned"]].tolist()
    assert selection.step_event(sigma) == GaussianDpEvent(sigma)


@pytest.mark.parametrize(("sigma", "clip", "batch"), GRID)
@pytest.mark.parametrize("cap", [0.01, 10.0])
@pytest.mark.parametrize("batch_clip", [None, 0.02])
def test_scored_rows(
    monkeypatch: pytest.MonkeyPatch,
    batch_clip: float | None,
    cap: float,
    sigma: float,
    clip: float,
    batch: float,
) -> None:
    exponentials = spy(monkeypatch, exponential, "exponential_top_k")
    searches = spy(monkeypatch, sparse_vector, "sparse_vector")
    scored: dict[str, Any] = {"selection_epsilon": 0.8, "score_cap": cap, "batch_clip": batch_clip}
    drawn = sdp.ExponentialSelection(rows=7, always_on_rows=10, **scored)
    searched = sdp.SparseVectorSelection(rows=7, threshold=0.3, always_on_rows=10, **scored)
    one = min(cap, clip / batch)
    for selection in (drawn, searched):
        space, rule = rule_of(selection, sigma, clip, batch)
        rule.select(GivenBatch(space, given_scores=COUNTS), NoiseSource(1).selection)
        due = clip if batch_clip is None else min(clip, 2 * batch_clip * batch)
        assert rule.sensitivity == pytest.approx(due)
        assert (rule.gradient_noise_multiplier, rule.batch_clip) == (sigma, batch_clip)
        assert (rule.max_grad_norm, rule.expected_batch_size) == (clip, batch)
    (call,) = exponentials
    assert (call["k"], call["epsilon"], call["size"]) == (7, 0.8, 100)
    assert call["sensitivity"] == pytest.approx(one, rel=1e-14)
    event = drawn.step_event(sigma)
    assert event == BoundedRangeGaussianDpEvent(draws=7, epsilon=0.8, noise_multiplier=sigma)
    (search,) = searches
    assert (search["positives"], search["threshold"], search["size"]) == (7, 0.3, 100)
    assert search["threshold_scale"] == pytest.approx(2 / 0.8 * one, rel=1e-14)
    assert search["query_scale"] == pytest.approx(4 / 0.8 * one, rel=1e-14)
    assert searched.step_event(sigma) == ComposedDpEvent(
        [SparseVectorDpEvent(7, 2 / 0.8, 4 / 0.8), GaussianDpEvent(sigma)]
    )
    for both in (call, search):
        passed = next(value for name, value in both.items() if name in ("scores", "values"))
        assert passed.tolist() == np.minimum(COUNTS.values, cap).tolist()
        assert both["ids"].tolist() == COUNTS.ids.tolist()


@pytest.mark.parametrize("mu", [0.05, 0.7])
@pytest.mark.parametrize("norm", [None, 3.0])
@pytest.mark.parametrize("k", [1, 30, 1000])
def test_private_top_k(monkeypatch: pytest.MonkeyPatch, k: int, norm: float | None, mu: float) -> None:
    drawn = spy(monkeypatch, fest, "top_k_gaussian")
    asked: list[float] = []

    def count(loader: object, clipped_to: float) -> dict[str, SparseCounts]:
        asked.append(clipped_to)
        return {
            "b": SparseCounts(np.array([1, 59]), np.array([4.0, 9.0]), 60),
            "a": SparseCounts(np.array([0]), np.array([2.0]), 60),
        }

    selection = sdp.FEST.private_top_k("loader", k, mu, contribution_norm=norm, always_on_rows=10)
    paid: list[int] = []
    found = selection.resolve(TABLES, count, NoiseSource(1).selection, lambda: paid.append(len(drawn)))
    due = norm or math.sqrt(2)
    assert asked == [due]
    assert paid == [0]  # before the draw
    (call,) = drawn
    assert (call["std"], call["k"], call["size"]) == (pytest.approx(due / mu, rel=1e-14), min(k, 100), 100)
    assert call["ids"].tolist() == [0, 41, 99]
    assert call["counts"].tolist() == [2.0, 4.0, 9.0]
    assert selection.one_off_events() == found.one_off_events() == (GaussianDpEvent(1 / mu),)
    assert found.always_on_rows == 10
    assert found.numbers(found.partition_tables(TABLES)).tolist() == call["returned"].tolist()


@pytest.mark.parametrize("mu", [0.05, 0.7])
def test_streaming_vocabulary(monkeypatch: pytest.MonkeyPatch, mu: float) -> None:
    noised = spy(monkeypatch, vocabulary, "noisy_counts_above")
    found = StreamingVocabulary(TABLES, 12, mu, always_on_rows=10)
    counts = {
        "a": SparseCounts(np.array([1]), np.array([30.0]), 60),
        "b": SparseCounts(np.array([2]), np.array([20.0]), 60),
    }
    for _ in range(2):
        found.observe(counts, NoiseSource(4).selection)
    std = math.sqrt(2) / mu
    for call in noised:
        assert call["std"] == pytest.approx(std, rel=1e-14)
        assert call["threshold"] == pytest.approx(threshold_for_false_positives(12, 100, std))
        assert (call["counts"].size, call["counts"].ids.tolist()) == (100, [1, 42])
    assert found.event == GaussianDpEvent(1 / mu)
    # what a resumed run goes on from is what was found: sums over periods, row by row
    totals: dict[int, float] = {}
    for call in noised:
        returned = call["returned"]
        for row, value in zip(returned.ids.tolist(), returned.values.tolist(), strict=True):
            totals[row] = totals.get(row, 0.0) + value
    assert found.sums.ids.tolist() == sorted(totals)
    assert found.sums.values.tolist() == [totals[row] for row in sorted(totals)]
    again = StreamingVocabulary(TABLES, 12, mu, always_on_rows=10)
    again.restore(found.sums.ids, found.sums.values)
    assert again.sums.ids.tolist() == found.sums.ids.tolist()
    assert again.sums.values.tolist() == found.sums.values.tolist()
    kept = again.fest(None)
    best = sorted(sorted(totals, key=lambda row: -totals[row])[:12])
    assert kept.numbers(kept.partition_tables(TABLES)).tolist() == best


@pytest.mark.parametrize("count", [1, 9, 1000])
def test_random_rows(count: int) -> None:
    for selection, size in (
        (sdp.RandomSelection(rows=count, always_on_rows=10), 100),
        (sdp.RandomSelection(coordinates=count, always_on_rows=10), 360),
    ):
        space, rule = rule_of(selection, 1.5, 2.0, 8.0)
        found = rule.select(GivenBatch(space), NoiseSource(1).selection)
        chosen = found.rows if found.coordinates is None else found.coordinates
        assert chosen.size == min(count, size)
        assert (rule.gradient_noise_multiplier, rule.sensitivity) == (1.5, 2.0)


DEFAULTS: dict[type, dict[str, Any]] = {
    sdp.DPSGD: {"lazy": False},
    sdp.FEST: {"always_on_rows": 1000, "event": None, "lazy": False, "update_every": 1},
    sdp.AdaFEST: {
        "noise_ratio": 5.0,
        "threshold": None,
        "false_positives": 50.0,
        "contribution_norm": None,
        "always_on_rows": 1000,
        "within": None,
        "memory_steps": None,
        "memory_every": 2,
    },
    sdp.ExponentialSelection: {"batch_clip": None, "always_on_rows": 1000, "coordinates": None},
    sdp.SparseVectorSelection: {"batch_clip": None, "always_on_rows": 1000, "coordinates": None},
    sdp.RandomSelection: {"rows": None, "coordinates": None, "batch_clip": None, "always_on_rows": 1000},
    sdp.selection.PrivateTopK: {
        "mu": 0.05,
        "contribution_norm": None,
        "always_on_rows": 1000,
        "lazy": False,
        "update_every": None,
    },
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_the_documented_ones(kind: type) -> None:
    own = {field.name: field.default for field in fields(kind) if field.init and field.default is not MISSING}
    assert own == DEFAULTS[kind]


SCORED = {"rows": 3, "selection_epsilon": 0.5, "score_cap": 0.1}
WRONG: dict[str, tuple[type, dict[str, Any]]] = {
    "always_on_rows must be": (sdp.AdaFEST, {"always_on_rows": -1}),
    "noise_ratio must be": (sdp.AdaFEST, {"noise_ratio": 0.0}),
    "noise_ratio must be positive and": (sdp.AdaFEST, {"noise_ratio": math.inf}),
    "false_positives must be": (sdp.AdaFEST, {"false_positives": 0.0}),
    "contribution_norm must be": (sdp.AdaFEST, {"contribution_norm": -1.0}),
    "threshold must be": (sdp.AdaFEST, {"threshold": 0.0}),
    "threshold must be positive and": (sdp.AdaFEST, {"threshold": math.nan}),
    "exclude each other": (sdp.AdaFEST, {"threshold": 1.0, "false_positives": 3.0}),
    "rows must be at least 1": (sdp.ExponentialSelection, SCORED | {"rows": 0}),
    "selection_epsilon must be": (sdp.ExponentialSelection, SCORED | {"selection_epsilon": 0.0}),
    "selection_epsilon must be positive": (
        sdp.ExponentialSelection,
        SCORED | {"selection_epsilon": math.inf},
    ),
    "score_cap must be": (sdp.SparseVectorSelection, SCORED | {"threshold": 0.1, "score_cap": math.inf}),
    "batch_clip must be": (sdp.ExponentialSelection, SCORED | {"batch_clip": 0.0}),
    "threshold must be finite": (sdp.SparseVectorSelection, SCORED | {"threshold": math.nan}),
    "give one of them": (sdp.RandomSelection, {}),
    "rows or coordinates: give": (sdp.RandomSelection, {"rows": 1, "coordinates": 1}),
    "must be at least 1": (sdp.RandomSelection, {"coordinates": 0}),
    "batch_clip must be positive": (sdp.RandomSelection, {"rows": 1, "batch_clip": math.inf}),
    "k must be at least 1": (sdp.selection.PrivateTopK, {"source": {}, "k": 0}),
    "mu must be positive": (sdp.selection.PrivateTopK, {"source": {}, "k": 1, "mu": 0.0}),
    "mu must be positive and": (sdp.selection.PrivateTopK, {"source": {}, "k": 1, "mu": math.inf}),
    "contribution_norm must be p": (
        sdp.selection.PrivateTopK,
        {"source": {}, "k": 1, "contribution_norm": 0.0},
    ),
    "always_on_rows must": (sdp.selection.PrivateTopK, {"source": {}, "k": 1, "always_on_rows": -1}),
    "must not be negative": (sdp.FEST, {"rows": {"a": [-1]}}),
    "must be integers": (sdp.FEST, {"rows": {"a": [0.5]}}),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_parameters_are_refused(message: str) -> None:
    kind, given = WRONG[message]
    with pytest.raises(ValueError, match=message):
        kind(**given)


def test_the_smallest_right_ones_are_not() -> None:
    sdp.AdaFEST(always_on_rows=0, noise_ratio=1e-9, threshold=1e-9)
    sdp.ExponentialSelection(rows=1, selection_epsilon=1e-9, score_cap=1e-9, batch_clip=1e-9)
    sdp.SparseVectorSelection(rows=1, selection_epsilon=1e-9, score_cap=1e-9, threshold=-1.0)
    sdp.RandomSelection(rows=1)
    sdp.RandomSelection(coordinates=1)
    sdp.FEST.private_top_k({}, 1, 1e-9, contribution_norm=1e-9, always_on_rows=0)
    sdp.FEST({"a": [0, 39]}, always_on_rows=60).partition_tables(TABLES)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": [40], "b": [0]}, "id 40, the table has 40 rows"),
        ({"a": [0]}, r"does not name \['b'\]"),
        ({"a": [0], "b": [0], "c": [0]}, "names table 'c'"),
    ],
)
def test_rows_that_the_model_does_not_have_are_refused(rows: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sdp.FEST(rows, always_on_rows=10).partition_tables(TABLES)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": ([40], [1.0])}, "has id 40 of 40 rows"),
        ({"a": ([1, 1], [1.0, 1.0])}, "names a row twice"),
        ({"a": ([1], [-1.0])}, "non-negative"),
        ({"a": ([1], [math.inf])}, "finite"),
        ({"a": ([1, 2], [1.0])}, "one per id"),
        ({"a": ([-1], [1.0])}, "must not be negative"),
        ({"a": ([1], [1e300])}, "at most 9007199254740992"),
        ({}, "none for table 'a'"),
        ({"a": ([1], [1.0]), "c": [1.0]}, "name table 'c'"),
    ],
)
def test_counts_that_cannot_be_are_refused_before_anything_is_paid(counts: Any, message: str) -> None:
    def pay() -> None:
        raise AssertionError("paid")

    selection = sdp.FEST.private_top_k({"b": ([], []), **counts}, 3, always_on_rows=10)
    with pytest.raises(ValueError, match=message):
        selection.resolve(TABLES, lambda *_: {}, NoiseSource(1).selection, pay)


def test_a_selection_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 'Nobody'"):
        Selection.from_state_dict({"kind": "Nobody"})


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_nothing_is_selected_where_there_is_nothing_to_select_from(sigma: float) -> None:
    for selection in (
        sdp.AdaFEST(always_on_rows=1000),
        sdp.AdaFEST(always_on_rows=10, within=sdp.FEST({"a": [], "b": []}, always_on_rows=10)),
        sdp.RandomSelection(rows=3, always_on_rows=1000),
        sdp.ExponentialSelection(**SCORED, always_on_rows=1000),  # type: ignore[arg-type]
        sdp.SparseVectorSelection(**SCORED, threshold=0.1, always_on_rows=1000),  # type: ignore[arg-type]
        sdp.DPSGD(),
    ):
        space, rule = rule_of(selection, sigma, 1.0, 8.0)
        assert rule.select(GivenBatch(space), NoiseSource(1).selection).rows.size == 0
