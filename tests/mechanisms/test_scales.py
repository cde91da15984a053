"""The number that reaches the sampler is the number that was accounted, for every mechanism.

First by spies, exactly; then from large samples, where an error of one percent would show (false alarm below 1e-8).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from sparsedp import mechanisms
from sparsedp.mechanisms.order_statistics import largest_gumbels, largest_laplaces, largest_normals
from sparsedp.randomness import NoiseSource, Stream, noise_lattice, passing_cell, rounding

IDS, VALUES, SIZE = np.array([1, 4, 7]), np.array([3.0, -1.0, 2.0]), 50
EPSILON, SENSITIVITY, STD = 0.7, 1.9, 2.3


class Spy:
    """Calls of a function of a module, passed on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        home = importlib.import_module(module)
        real: Callable[..., Any] = getattr(home, name)

        def noted(*args: Any, **options: Any) -> Any:
            self.calls.append((args, options))
            return real(*args, **options)

        monkeypatch.setattr(home, name, noted)

    def scale(self) -> float:
        """Of the only call: how large the noise is."""
        ((_, options),) = self.calls
        return float(options["std"] if "std" in options else options["scale"])

    def lattice(self) -> float:
        ((_, options),) = self.calls
        return float(options["lattice"])


def home(name: str) -> str:
    return f"sparsedp.mechanisms.{name}"


def test_gaussian(monkeypatch, stream):
    spy = Spy(monkeypatch, home("gaussian"), "round_gaussian")
    mechanisms.gaussian(VALUES, std=STD, stream=stream)
    event = mechanisms.gaussian_event(std=STD, sensitivity=SENSITIVITY)
    assert spy.scale() / SENSITIVITY == event.noise_multiplier


def test_laplace(monkeypatch, stream):
    spy = Spy(monkeypatch, home("laplace"), "round_laplace")
    mechanisms.laplace(VALUES, scale=STD, stream=stream)
    event = mechanisms.laplace_event(scale=STD, sensitivity=SENSITIVITY)
    assert spy.scale() / SENSITIVITY == event.noise_multiplier


@pytest.mark.parametrize(
    ("module", "mechanism", "sampler"),
    [
        ("noisy_max", "report_noisy_max", "round_laplace"),
        ("permute_and_flip", "permute_and_flip", "round_exponential"),
        ("exponential", "exponential", "round_gumbel"),
    ],
)
def test_one_of_a_few(module, mechanism, sampler, monkeypatch, stream):
    """Two scores move apart by at most 2 sensitivity: over that distance the noise changes by e^epsilon."""
    spy = Spy(monkeypatch, home(module), sampler)
    getattr(mechanisms, mechanism)(VALUES, epsilon=EPSILON, sensitivity=SENSITIVITY, stream=stream)
    assert 2 * SENSITIVITY / spy.scale() == pytest.approx(EPSILON, rel=1e-15)
    assert spy.lattice() <= 2.0**-40 * spy.scale()


@pytest.mark.parametrize(
    ("module", "sampler", "call", "expected"),
    [
        (
            "top_k",
            "round_gaussian",
            lambda stream: mechanisms.top_k_gaussian(IDS, VALUES, SIZE, k=4, std=STD, stream=stream),
            mechanisms.top_k_gaussian_event(std=STD, sensitivity=1.0).noise_multiplier,
        ),
        (
            "top_k",
            "round_laplace",
            lambda stream: mechanisms.top_k_laplace(
                IDS, VALUES, SIZE, k=4, epsilon=EPSILON, sensitivity=SENSITIVITY, stream=stream
            ),
            mechanisms.laplace_event(scale=SENSITIVITY / EPSILON, sensitivity=1.0).noise_multiplier,
        ),
        (
            "exponential",
            "round_gumbel",
            lambda stream: mechanisms.exponential_top_k(
                IDS, VALUES, SIZE, k=4, epsilon=EPSILON, sensitivity=SENSITIVITY, stream=stream
            ),
            2 * SENSITIVITY / mechanisms.exponential_event(draws=4, epsilon=EPSILON).epsilon,
        ),
        (
            "exponential",
            "round_gumbel",
            lambda stream: mechanisms.top_k_gumbel(IDS, VALUES, SIZE, k=4, epsilon=EPSILON, stream=stream),
            1 / mechanisms.exponential_event(draws=4, epsilon=EPSILON).epsilon,
        ),
    ],
    ids=["gaussian", "laplace", "exponential", "gumbel"],
)
def test_the_k_largest(module, sampler, call, expected, monkeypatch, stream):
    """Touched and untouched rows get noise of one scale, on one lattice."""
    touched = Spy(monkeypatch, home(module), sampler)
    untouched = Spy(monkeypatch, home(module), "cells_of")
    call(stream)
    assert touched.scale() == pytest.approx(expected, rel=1e-15)
    (((draws, scale_cells), _),) = untouched.calls
    assert scale_cells * touched.lattice() == touched.scale()
    assert draws.size == SIZE - IDS.size


def test_thresholded_counts(monkeypatch, stream):
    touched = Spy(monkeypatch, home("thresholded_counts"), "round_gaussian")
    untouched = Spy(monkeypatch, home("thresholded_counts"), "bernoulli_positions")
    mechanisms.thresholded_counts(IDS, VALUES, SIZE, std=STD, threshold=1.7, stream=stream)
    event = mechanisms.thresholded_counts_event(std=STD, sensitivity=SENSITIVITY)
    assert touched.scale() / SENSITIVITY == event.noise_multiplier
    (((_, size, probability), _),) = untouched.calls
    assert size == SIZE
    assert probability == pytest.approx(ndtr(-1.7 / STD), rel=1e-6)


def test_touched_and_untouched_rows_pass_the_same_border(monkeypatch, stream):
    """The border between two cells, not the threshold itself: a count of zero passes it exactly as often."""
    std, threshold = 1.0, 2.0**-24 * 1000.3
    spy = Spy(monkeypatch, home("thresholded_counts"), "bernoulli_positions")
    mechanisms.thresholded_counts([], [], SIZE, std=std, threshold=threshold, stream=stream)
    lattice = noise_lattice(std)
    lowest = passing_cell(threshold, lattice)
    assert spy.calls[0][0][2] == ndtr(-(lowest - 0.5) * lattice / std)
    assert abs((lowest - 0.5) * lattice - threshold) <= lattice / 2


def test_sparse_vector(monkeypatch, stream):
    scales = {"threshold_scale": 1.3, "query_scale": 2.9}
    noise = Spy(monkeypatch, home("sparse_vector"), "round_laplace")
    gaps = Spy(monkeypatch, home("sparse_vector"), "_geometric_gaps")
    answers = Spy(monkeypatch, home("laplace"), "round_laplace")
    mechanisms.numeric_sparse(
        IDS, VALUES, SIZE, threshold=0.4, positives=3, **scales, answer_scale=0.9, stream=stream
    )
    event = mechanisms.sparse_vector_event(positives=3, sensitivity=SENSITIVITY, **scales, answer_scale=0.9)
    (_, thresholds), (_, queries) = noise.calls
    assert thresholds["scale"] / SENSITIVITY == event.threshold_scale
    assert queries["scale"] / SENSITIVITY == event.query_scale
    assert answers.scale() / SENSITIVITY == event.answer_scale
    assert thresholds["lattice"] == queries["lattice"] <= 2.0**-44 * 2.9
    # Untouched rows: the noisy threshold, in units of their own noise.
    (((borders, _), _),) = gaps.calls
    assert borders.size == 3


def test_untouched_rows_of_a_sparse_vector_have_the_noise_of_the_others(monkeypatch, stream):
    module = importlib.import_module(home("sparse_vector"))
    lattice, _ = module._lattice_and_reach(1.3, 2.9)
    noisy = round(5.5 / lattice)
    monkeypatch.setattr(
        module, "round_laplace", lambda values, **_: np.full(np.shape(values), noisy, dtype=np.int64)
    )
    spy = Spy(monkeypatch, home("sparse_vector"), "_geometric_gaps")
    mechanisms.sparse_vector(
        [], [], SIZE, threshold=2.0, positives=1, threshold_scale=1.3, query_scale=2.9, stream=stream
    )
    assert spy.calls[0][0][0][0] == pytest.approx((2.0 + 5.5) / 2.9, rel=1e-9)


@pytest.mark.parametrize("name", ["round_gaussian", "round_laplace", "round_exponential"])
def test_the_scale_in_cells_reaches_the_arithmetic(name, monkeypatch, stream):
    spy = Spy(monkeypatch, "sparsedp.randomness.rounding", "_round_values")
    scale = {"std": STD} if name == "round_gaussian" else {"scale": STD}
    getattr(rounding, name)(VALUES, **scale, lattice=2.0**-20, stream=stream)
    (((_, _, values, per_cell, factor, _), _),) = spy.calls
    assert np.array_equal(values, VALUES)
    assert (per_cell, factor * 2.0**44) == (2.0**20, STD * 2.0**20)


# Large samples: the statistic of the right scale fits, that of one percent more or less does not.

RUNS = 8_000_000
WRONG = (0.99, 1.01)


def shows_the_scale(seen: float, runs: int, law: Callable[[float], float]) -> None:
    """A share of ``runs`` whose probability is ``law(factor)`` at ``factor`` times the scale."""
    spread = 6.0 * math.sqrt(law(1.0) * (1.0 - law(1.0)) / runs)
    assert abs(seen - law(1.0)) < spread
    for factor in WRONG:
        assert abs(seen - law(factor)) > spread


def test_the_deviation_of_gaussian_and_laplace(stream):
    values = np.full(2_000_000, 1e4)
    noise = mechanisms.gaussian(values, std=STD, stream=stream) - values
    assert abs(noise.std() / STD - 1) < 6 / math.sqrt(2 * values.size) < 0.005
    noise = mechanisms.laplace(values, scale=STD, stream=stream) - values
    assert abs(np.abs(noise).mean() / STD - 1) < 6 / math.sqrt(values.size) < 0.005


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        # P(the worse of two wins), g being their distance in units of the scale.
        ("report_noisy_max", lambda g: 0.5 * math.exp(-g) * (1 + g / 2)),
        ("permute_and_flip", lambda g: 0.5 * math.exp(-g)),
        ("exponential", lambda g: 1 / (1 + math.exp(g))),
    ],
)
def test_how_often_the_worse_of_two_wins(mechanism, law):
    scale, stream, apart = 2 * SENSITIVITY / EPSILON, NoiseSource(seed=1).noise, 1.4
    part, wins = np.tile([apart * scale, 0.0], (RUNS // 16, 1)), 0
    for _ in range(16):
        chosen = getattr(mechanisms, mechanism)(part, epsilon=EPSILON, sensitivity=SENSITIVITY, stream=stream)
        wins += int(np.count_nonzero(chosen))
    shows_the_scale(wins / RUNS, RUNS, lambda factor: law(apart / factor))


@pytest.mark.parametrize("touched", [True, False])
def test_how_many_rows_pass_a_threshold(touched, stream):
    rows = RUNS // 2
    ids = np.arange(rows if touched else 0)
    found = mechanisms.thresholded_counts(
        ids, np.zeros(ids.size), rows, std=STD, threshold=1.2 * STD, stream=stream
    )
    shows_the_scale(found.size / rows, rows, lambda factor: float(ndtr(-1.2 / factor)))


@pytest.mark.parametrize(
    ("largest", "law"),
    [(largest_normals, stats.norm), (largest_laplaces, stats.laplace), (largest_gumbels, stats.gumbel_r)],
)
def test_the_spread_of_untouched_keys(largest, law, stream):
    size = 4_000_000
    draws = largest(size, k=size, stream=stream)
    quarter = size // 4
    spread = draws[quarter] - draws[-quarter]
    truth = law.isf(0.25) - law.ppf(0.25)
    error = math.sqrt(0.25 * 0.75 / size) * (1 / law.pdf(law.isf(0.25)) + 1 / law.pdf(law.ppf(0.25)))
    assert 6 * error < 0.01 * truth
    assert abs(spread - truth) < 6 * error


@pytest.mark.parametrize("form", ["gaussian", "laplace", "gumbel"])
def test_touched_rows_of_count_zero_win_as_often_as_untouched_ones(form, stream):
    """Half of the rows touched: five percent less noise on either half would show."""
    half, k = 200_000, 20_000
    options = {
        "gaussian": {"std": STD},
        "laplace": {"epsilon": EPSILON, "sensitivity": SENSITIVITY},
        "gumbel": {"epsilon": EPSILON},
    }[form]
    top_k = getattr(mechanisms, f"top_k_{form}")
    found = top_k(np.arange(half), np.zeros(half), 2 * half, k=k, **options, stream=stream)
    assert abs(np.count_nonzero(found < half) / k - 0.5) < 6 * 0.5 / math.sqrt(k)


def test_how_many_rows_a_sparse_vector_finds():
    """One round a row, next to no noise on the threshold: five percent less noise on the rows would show."""
    stream: Stream = NoiseSource(seed=3).noise
    rows, scale = 60_000, 2.0
    options = {"threshold": scale, "threshold_scale": scale / 1000, "query_scale": scale, "stream": stream}
    for ids in (np.arange(rows), np.empty(0, np.int64)):
        found = mechanisms.sparse_vector(ids, np.zeros(ids.size), rows, positives=rows, **options)
        truth = 0.5 * math.exp(-1.0)
        spread = 6 * math.sqrt(truth * (1 - truth) / rows)
        assert abs(found.size / rows - truth) < spread
        assert abs(0.5 * math.exp(-1 / 0.95) - truth) > 0.99 * spread
