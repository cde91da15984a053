"""Whoever charges for a mechanism charges what the mechanism's own price function says."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsedp as sdp
from sparsedp import mechanisms
from sparsedp.accounting import merge_sigmas
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.data.partition_selection import PartitionSelection
from sparsedp.mechanisms import (
    exponential_event,
    gaussian_event,
    sparse_vector_event,
    thresholded_counts_event,
    top_k_gaussian_event,
)
from sparsedp.randomness import NoiseSource
from sparsedp.selection import Selection
from sparsedp.selection.vocabulary import StreamingVocabulary

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sparsedp"
TABLES = [TableShape(name, 2000, 4) for name in "abcd"]
"""Four tables: C = 2, so that std / C has no rounding of its own."""
COUNTS = {table.name: SparseCounts(np.array([3, 5]), np.array([9.0, 4.0]), 2000) for table in TABLES}
SIGMA, CLIP, BATCH = 1.3, 0.5, 4


class Scores:
    """A batch that has scores."""

    def scores(self) -> SparseCounts:
        return SparseCounts(np.array([3, 2005]), np.array([0.1, 0.05]), 8000)


def handed_to(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> list[dict[str, Any]]:
    """The keyword arguments (and places) of the calls of a sampler."""
    home, calls = importlib.import_module(module), list[dict[str, Any]]()
    real = getattr(home, name)

    def noted(*places: Any, **options: Any) -> Any:
        calls.append({"places": places, **options})
        return real(*places, **options)

    monkeypatch.setattr(home, name, noted)
    return calls


def step(selection: Selection) -> Any:
    rule = selection.rule(
        selection.partition_tables(TABLES),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
    )
    rule.select(Scores(), NoiseSource(seed=0).selection)  # type: ignore[arg-type]
    return rule


@pytest.mark.parametrize("mu", [0.05, 0.3, 1])
def test_private_top_k(monkeypatch: pytest.MonkeyPatch, mu: float) -> None:
    calls = handed_to(monkeypatch, "sparsedp.selection.fest", "top_k_gaussian")
    selection = sdp.FEST.private_top_k(COUNTS, 5, mu)
    chosen = selection.resolve(TABLES, lambda *_: COUNTS, NoiseSource(seed=0).selection)
    (call,) = calls
    price = top_k_gaussian_event(std=call["std"], sensitivity=2.0)
    assert selection.one_off_events() == chosen.one_off_events() == (price,)
    assert sdp.AdaFEST(within=selection).one_off_events() == (price,)
    assert event_key(price) == event_key(GaussianDpEvent(1.0 / mu))  # what ledgers of earlier runs hold


def test_streaming_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = handed_to(monkeypatch, "sparsedp.selection.vocabulary", "noisy_counts_above")
    vocabulary = StreamingVocabulary(TABLES, 5, 0.3)
    vocabulary.observe(COUNTS, NoiseSource(seed=0).selection)
    ((_, std, *_),) = (call["places"] for call in calls)
    assert vocabulary.event == gaussian_event(std=std, sensitivity=2.0) == GaussianDpEvent(1.0 / 0.3)


@pytest.mark.parametrize("ratio", [1.0, 5.0, 0.3])
def test_map_and_gradient_of_adafest(ratio: float) -> None:
    selection = sdp.AdaFEST(noise_ratio=ratio)
    rule = selection.rule(
        selection.partition_tables(TABLES),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
    )
    on_map = thresholded_counts_event(std=rule.map_std, sensitivity=rule.contribution_norm)
    on_gradient = gaussian_event(
        std=rule.gradient_noise_multiplier * rule.sensitivity, sensitivity=rule.sensitivity
    )
    both = merge_sigmas(on_map.noise_multiplier, on_gradient.noise_multiplier)
    assert both == pytest.approx(selection.step_event(SIGMA).noise_multiplier, rel=1e-14)
    wrong = merge_sigmas(on_map.noise_multiplier**2, on_gradient.noise_multiplier)
    assert ratio == 1.0 or wrong != pytest.approx(SIGMA, rel=1e-3)


@pytest.mark.parametrize("sigma", [SIGMA, 2, np.float64(0.7)])
@pytest.mark.parametrize("selection", [sdp.DPSGD(), sdp.AdaFEST(), sdp.RandomSelection(rows=3)], ids=str)
def test_the_gradient_of_a_step(selection: Selection, sigma: float) -> None:
    charged = selection.step_event(sigma)
    assert charged == gaussian_event(std=sigma, sensitivity=1.0)
    assert event_key(charged) == event_key(GaussianDpEvent(float(sigma)))


def test_exponential_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = handed_to(monkeypatch, "sparsedp.selection.exponential", "exponential_top_k")
    selection = sdp.ExponentialSelection(rows=6, selection_epsilon=0.7, score_cap=0.2)
    rule = step(selection)
    (call,) = calls
    price = exponential_event(
        draws=call["k"], epsilon=call["epsilon"], noise_multiplier=rule.gradient_noise_multiplier
    )
    assert selection.step_event(SIGMA) == price == BoundedRangeGaussianDpEvent(6, 0.7, SIGMA)


def test_the_search_of_a_sparse_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = handed_to(monkeypatch, "sparsedp.selection.sparse_vector", "sparse_vector")
    selection = sdp.SparseVectorSelection(rows=6, selection_epsilon=0.7, score_cap=0.2, threshold=0.02)
    rule = step(selection)
    (call,) = calls
    search = sparse_vector_event(
        positives=call["positives"],
        sensitivity=CLIP / BATCH,
        threshold_scale=call["threshold_scale"],
        query_scale=call["query_scale"],
    )
    gradient = gaussian_event(std=rule.gradient_noise_multiplier, sensitivity=1.0)
    assert selection.step_event(SIGMA) == ComposedDpEvent([search, gradient])
    assert search == SparseVectorDpEvent(6, 2.0 / 0.7, 4.0 / 0.7)


def test_partition_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = handed_to(monkeypatch, "sparsedp.data.partition_selection", "thresholded_counts")
    selection = PartitionSelection(epsilon=0.5, delta=1e-6, features=3)
    selection.select(SparseCounts(np.array([4]), np.array([9.0]), selection.size), NoiseSource(seed=0))
    (call,) = calls
    assert selection.event == thresholded_counts_event(std=call["std"], sensitivity=math.sqrt(3))


# No price is written by hand.

PRICED = {"GaussianDpEvent", "LaplaceDpEvent", "BoundedRangeGaussianDpEvent", "SparseVectorDpEvent"}
ASKED_FOR = {"cli/account.py", "audit/cases/epochs.py", "audit/cases/users.py"}
"""Prices of numbers that a user asks about: no mechanism runs."""


def called(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_events_are_built_by_the_price_functions_alone() -> None:
    others = {
        path.relative_to(SOURCE).as_posix(): path
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("accounting", "mechanisms")
    }
    assert {name for name, path in others.items() if PRICED & set(called(path))} == ASKED_FOR


def test_every_price_function_is_charged() -> None:
    prices = {name for name in mechanisms.__all__ if name.endswith("_event")}
    charged = {
        name
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "mechanisms"
        for name in called(path)
    }
    assert "laplace_event(" in (ROOT / "docs" / "extending.md").read_text()  # by a mechanism of a user's own
    assert prices - charged == {"laplace_event"}
