"""Random repetition: the law of the number of runs, and what choosing the best of them leaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from sparsedp.accounting import GaussianDpEvent, ZCDpEvent, analytic_gaussian_epsilon, epsilon_of
from sparsedp.audit.distinguishing import audit, exact_epsilon, repeated
from sparsedp.mechanisms import best_of_repetitions, draw_repetitions, repetition_event
from sparsedp.mechanisms.repetition import Law
from sparsedp.randomness import NoiseSource, Stream

DELTA = 1e-6


def probabilities(law: Law, mean: float, most: int) -> np.ndarray:
    """P(1), ..., P(most), and the rest."""
    k = np.arange(1, most + 1)
    if law == "geometric":
        p = (1 / mean) * (1 - 1 / mean) ** (k - 1)
    else:
        grid = np.linspace(1e-6, 0.999, 200_001)
        g = float(np.interp(-mean, -(1 / grid - 1) / np.log(1 / grid), grid))
        p = (1 - g) ** k / (k * math.log(1 / g))
    return np.append(p, 1 - p.sum())


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_the_law_of_the_number_and_a_wrong_mean(
    law: Law, stream: Stream, follows: Callable[..., bool]
) -> None:
    draws = np.array([draw_repetitions(mean=5.0, law=law, stream=stream) for _ in range(8_000)])
    counts = np.bincount(np.minimum(draws, 41), minlength=42)[1:]
    assert follows(counts, probabilities(law, 5.0, 40))
    assert not follows(counts, probabilities(law, 6.5, 40))
    assert draw_repetitions(mean=1.0, law=law, stream=stream) == 1


def test_the_best_run_is_returned(stream: Stream) -> None:
    made: list[int] = []

    def run() -> tuple[int, float]:
        made.append(len(made))
        return made[-1], [3.0, math.nan, 7.0, 7.0, 1.0][made[-1] % 5]

    best = best_of_repetitions(run, mean=50.0, stream=stream)
    assert len(made) > 5
    assert best == 2  # the first of the equal best; NaN is never chosen


def test_a_run_without_a_score_loses_to_any_other() -> None:
    scores: Iterator[tuple[str, float]] = iter([("broken", math.nan), *[("sound", -1e9)] * 10_000])
    assert best_of_repetitions(lambda: next(scores), mean=1000.0, stream=NoiseSource(seed=3).noise) == "sound"


# A base run that is exactly 1-DP (pure): one of three outputs, scored by its place.
LOW, MIDDLE, HIGH = 0, 1, 2
ONE = np.array([0.8, 0.1, 0.1])
OTHER = np.array([1 - 0.1 / math.e - 0.1 * math.e, 0.1 / math.e, 0.1 * math.e])
MEAN = 30.0


def best_output(law: np.ndarray, stream: Stream) -> int:
    """The best of a random number of runs: one draw of uniforms serves many runs."""
    edges, uniforms = np.cumsum(law), iter(())

    def run() -> tuple[int, float]:
        nonlocal uniforms
        try:
            uniform = next(uniforms)
        except StopIteration:
            uniforms = iter(stream.uniform(64).tolist())
            uniform = next(uniforms)
        output = LOW if uniform < edges[0] else MIDDLE if uniform < edges[1] else HIGH
        return output, float(output)

    return best_of_repetitions(run, mean=MEAN, stream=stream)


def test_the_base_run_is_what_it_says() -> None:
    assert exact_epsilon(ONE, OTHER) == pytest.approx(1.0)


def test_an_audit_refutes_the_price_of_the_winner_and_not_that_of_the_search() -> None:
    """The positive control: "the winner is 1-DP" is caught. A pure epsilon is (epsilon^2 / 2)-zCDP."""
    search = epsilon_of([(repetition_event(ZCDpEvent(0.5), mean=MEAN), 1)], DELTA)
    result = audit(
        repeated(best_output, statistic=lambda output: float(output == MIDDLE)),
        (ONE, OTHER),
        runs=8_000,
        delta=DELTA,
        claimed=search,
        stream=NoiseSource(seed=11).noise,
        confidence=1 - 1e-9,
    )
    assert result.lower_bound > 1.0, str(result)
    assert not result.refuted, str(result)


def law_of_best(centre: float, sigma: float, mean: float, law: Law) -> np.ndarray:
    """The best of the noisy counts, on a grid: P(best <= x) is the generating function of the number at F(x)."""
    below = stats.norm.cdf(np.linspace(-25, 25, 4001), centre, sigma)
    if law == "geometric":
        at_most = below / mean / (1 - (1 - 1 / mean) * below)
    else:
        p = probabilities(law, mean, 3000)[:-1]
        powers = np.cumprod(np.broadcast_to(below, (p.size, below.size)), axis=0)
        at_most = p @ powers / p.sum()
    cells = np.maximum(np.diff(at_most, prepend=0.0, append=1.0), 0.0)
    return np.asarray(cells / cells.sum())


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_the_exact_leak_of_the_best_noisy_count_lies_between_the_two_claims(law: Law) -> None:
    sigma, delta, mean = 2.0, 1e-3, 50.0
    exact = exact_epsilon(law_of_best(0.0, sigma, mean, law), law_of_best(1.0, sigma, mean, law), delta=delta)
    winner = analytic_gaussian_epsilon(delta, 1 / sigma)
    search = epsilon_of([(repetition_event(GaussianDpEvent(sigma), mean=mean, law=law), 1)], delta)
    assert 1.1 * winner < exact < search


def test_the_price_hardly_grows_with_the_number_of_runs() -> None:
    prices = [
        epsilon_of([(repetition_event(GaussianDpEvent(5.0), mean=mean), 1)], 1e-6)
        for mean in (1.0, 10.0, 100.0)
    ]
    assert prices == sorted(prices)
    assert prices[2] < 1.4 * prices[1]


@pytest.mark.parametrize("mean", [0.5, 0.0, -1.0, math.nan, math.inf, 1e9])
def test_means_that_make_no_sense_are_refused(mean: float, stream: Stream) -> None:
    with pytest.raises(ValueError, match="mean"):
        draw_repetitions(mean=mean, stream=stream)
    with pytest.raises(ValueError, match="mean"):
        repetition_event(GaussianDpEvent(1.0), mean=mean)


def test_an_unknown_law_is_refused(stream: Stream) -> None:
    with pytest.raises(ValueError, match=r"^law must be one of geometric, logarithmic"):
        draw_repetitions(mean=2.0, law="poisson", stream=stream)  # type: ignore[arg-type]
