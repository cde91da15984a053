"""Audits of every mechanism on plain arrays, and of the papers' printed forms, which must be refuted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.accounting import analytic_gaussian_epsilon, epsilon_of
from sparsedp.accounting.events import ZCDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE
from sparsedp.audit.case import Case, Claim
from sparsedp.audit.distinguishing import Statistics, repeated
from sparsedp.core.arrays import I64
from sparsedp.mechanisms import (
    batch_clip_sensitivity,
    best_of_repetitions,
    exponential,
    exponential_top_k,
    gaussian,
    gaussian_std,
    laplace,
    numeric_sparse,
    permute_and_flip,
    repetition_event,
    report_noisy_max,
    sparse_vector,
    thresholded_counts,
    top_k_gaussian,
    top_k_gumbel,
    top_k_laplace,
)
from sparsedp.randomness import Stream

Choose = Callable[..., I64]
MANY, SOME, FEW = 400_000, 100_000, 4_000
"""Runs of a mechanism that runs many times in one call, and of one that runs once a call."""
_DELTA = 0.01


def cases() -> list[Case]:
    """All of them, each right form before its controls."""
    parts = (_noise, _choices, _top_k, _heaviest, _sparse_vector, _numeric_sparse, _maps, _repetition)
    return [case for part in parts for case in part()]


def _case(
    name: str,
    epsilon: float | Callable[[], float],
    statistics: Statistics[Any],
    pair: tuple[Any, Any],
    runs: int,
    what: str,
    *,
    delta: float = 0.0,
    released: str = "the output",
    adjacency: str = ADD_OR_REMOVE_ONE,
    is_control: bool = False,
) -> Case:
    def claim() -> Claim:
        return Claim(epsilon() if callable(epsilon) else epsilon, delta, released, adjacency)

    return Case(name, "mechanism", claim, statistics, pair, runs, what, is_control=is_control)


def _noise() -> list[Case]:
    std = gaussian_std(sensitivity=2.0, epsilon=1.0, delta=_DELTA)
    sampled = math.log1p(0.1 * math.expm1(2.0))

    def gaussians(std: float, value: float, stream: Stream, runs: int) -> NDArray[np.float64]:
        return gaussian(np.full(runs, value), std=std, stream=stream)

    def laplaces(scale: float, value: float, stream: Stream, runs: int) -> NDArray[np.float64]:
        return laplace(np.full(runs, value), scale=scale, stream=stream)

    def sampled_laplaces(value: float, stream: Stream, runs: int) -> NDArray[np.float64]:
        is_in = stream.uniform(runs) < 0.1
        return laplace(np.where(is_in, value, 0.0), scale=0.5, stream=stream)

    moved = "one value, moved by the sensitivity"
    coin = "a value that is in with probability 0.1, at epsilon 2"
    return [
        _case("gaussian", 1.0, partial(gaussians, std), (2.0, 0.0), MANY, moved, delta=_DELTA),
        _case(
            "gaussian, half the noise",
            1.0,
            partial(gaussians, std / 2),
            (2.0, 0.0),
            SOME,
            moved,
            delta=_DELTA,
            is_control=True,
        ),
        _case("laplace", 1.0, partial(laplaces, 1.0), (1.0, 0.0), MANY, moved),
        _case(
            "laplace, half the noise",
            1.0,
            partial(laplaces, 0.5),
            (1.0, 0.0),
            SOME,
            moved,
            is_control=True,
        ),
        _case("laplace on a Poisson sample", sampled, sampled_laplaces, (1.0, 0.0), MANY, coin),
        _case(
            "WIDE, Lemma 1: sampling makes epsilon into q epsilon",
            0.2,
            sampled_laplaces,
            (1.0, 0.0),
            MANY,
            coin,
            is_control=True,
        ),
    ]


def _choices() -> list[Case]:
    """One of a few candidates: which one is the statistic."""

    def chosen(choose: Choose, epsilon: float, scores: Any, stream: Stream, runs: int) -> NDArray[np.float64]:
        tiled = np.tile(np.asarray(scores), (runs, 1))
        return np.asarray(choose(tiled, epsilon=epsilon, sensitivity=1.0, stream=stream) == 0, np.float64)

    pairs: dict[str, tuple[Choose, tuple[Any, Any]]] = {
        "exponential": (exponential, ([-2.0, -1.0, -1.0], [-3.0, 0.0, 0.0])),
        "permute-and-flip": (permute_and_flip, ([-2.0, 0.0], [-1.0, -1.0])),
        "report noisy max": (report_noisy_max, ([1.0, -3.0], [0.0, -2.0])),
    }
    what = "whether the first candidate is chosen; scores move apart by the sensitivity each"
    found = []
    for name, (choose, pair) in pairs.items():
        found.append(_case(name, 1.0, partial(chosen, choose, 1.0), pair, MANY, what, released="the index"))
        wrong = (
            "SGO, Algorithm 7: half the scale" if choose is report_noisy_max else f"{name}, half the scale"
        )
        found.append(
            _case(
                wrong,
                1.0,
                partial(chosen, choose, 2.0),
                pair,
                SOME,
                what,
                released="the index",
                is_control=True,
            )
        )
    return [*found, _inverted_exponent()]


def _inverted_exponent() -> Case:
    r"""Risks of two examples on a net of [0, 1] with the loss \|x - z\|: weights e^(-B F / (eps n)), as printed."""
    net, epsilon, examples = np.linspace(0.0, 1.0, 11), 0.1, 2

    def lowest(data: Any, stream: Stream, runs: int) -> NDArray[np.float64]:
        risks = np.abs(net[:, None] - np.asarray(data)).mean(axis=1)
        weight = 1.0 / (epsilon * examples)
        drawn = exponential(np.tile(-risks, (runs, 1)), epsilon=2.0 * weight, sensitivity=1.0, stream=stream)
        return np.asarray(drawn == 0, np.float64)

    return _case(
        "SGO, Algorithm 4: the exponent inverted",
        epsilon,
        lowest,
        ([0.0, 0.0], [1.0, 0.0]),
        SOME // 5,
        "whether the end of the net is drawn; one of two examples is replaced",
        released="a point of the net",
        adjacency=REPLACE_ONE,
        is_control=True,
    )


def _top_k() -> list[Case]:
    """Of four rows that move together, how many are chosen."""
    rows, others, mu, delta = 4, 60, 1.0, 0.05

    def gaussians(std: float) -> Statistics[float]:
        ids = np.arange(rows)
        return repeated(
            lambda count, stream: top_k_gaussian(
                ids, np.full(rows, count), rows + others, k=rows, std=std, stream=stream
            ),
            lambda found: float((found < rows).sum()),
        )

    what = "how many of four rows that move together are chosen"
    price = partial(analytic_gaussian_epsilon, delta, mu)
    given: dict[str, Any] = {"delta": delta, "released": "the set of ids"}
    return [
        _case("top-k, Gaussian", price, gaussians(2.0), (3.0, 2.0), FEW, what, **given),
        _case(
            "top-k, Gaussian, a quarter of the noise",
            price,
            gaussians(0.5),
            (2.0, 1.0),
            FEW,
            what,
            is_control=True,
            **given,
        ),
    ]


def _heaviest() -> list[Case]:
    """Whether the heaviest row is chosen, by three mechanisms."""

    def heaviest(choose: Choose, size: int, **options: Any) -> Statistics[float]:
        return repeated(
            lambda count, stream: choose([0], [count], size, stream=stream, **options),
            lambda found: float(found[0] == 0),
        )

    laplaces = partial(heaviest, top_k_laplace, 8, k=1, sensitivity=1.0)
    gumbels = heaviest(top_k_gumbel, 201, k=20, epsilon=1.0)
    draws = heaviest(exponential_top_k, 41, k=4, epsilon=1.0, sensitivity=0.5)
    one_more = heaviest(exponential_top_k, 6, k=2, epsilon=1.0, sensitivity=0.5)
    listed: list[tuple[str, float, Statistics[float], tuple[float, float], bool]] = [
        ("top-k, Laplace", 1.0, laplaces(epsilon=1.0), (3.0, 2.0), False),
        ("top-k, Laplace, a quarter of the noise", 1.0, laplaces(epsilon=4.0), (2.0, 1.0), True),
        ("exponential top-k", 4.0, draws, (3.0, 4.0), False),
        ("WIDE, Algorithm 4: one draw more than it accounts for", 1.0, one_more, (2.5, 3.5), True),
        ("top-k, Gumbel (peeling), priced by k", 20.0, gumbels, (3.0, 4.0), False),
        ("FEST, appendix B.1: Gumbel top-k costs epsilon for any k", 1.0, gumbels, (3.0, 4.0), True),
    ]
    return [
        _case(
            name,
            epsilon,
            statistics,
            pair,
            8 * FEW if "Algorithm 4" in name else 3 * FEW,
            "whether the heaviest row is chosen",
            released="the set of ids",
            is_control=is_control,
        )
        for name, epsilon, statistics, pair, is_control in listed
    ]


def _sparse_vector() -> list[Case]:
    def last_row(factor: float) -> Statistics[Any]:
        scales = {"threshold_scale": factor, "query_scale": 2.0 * factor}

        def once(values: Any, stream: Stream) -> I64:
            return sparse_vector(np.arange(4), values, 4, threshold=3.0, positives=1, **scales, stream=stream)

        return repeated(once, lambda found: float(found.size > 0 and found[0] == 3))

    pair = (np.array([1.0, 1.0, 1.0, 3.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    what = "whether the only row that rises is found"
    return [
        _case("sparse vector", 2.0, last_row(1.0), pair, 3 * FEW, what, released="the ids"),
        _case(
            "sparse vector, a tenth of the noise",
            2.0,
            last_row(0.1),
            pair,
            FEW,
            what,
            released="the ids",
            is_control=True,
        ),
    ]


def _numeric_sparse() -> list[Case]:
    """A threshold that everything passes: finding a row costs 0.2 and its answer 1."""
    scales = {"threshold_scale": 10.0, "query_scale": 20.0, "answer_scale": 1.0}

    def smallest_answer(positives: int) -> Statistics[Any]:
        def once(values: Any, stream: Stream) -> float:
            _, answers = numeric_sparse(
                np.arange(3), values, 3, threshold=-1000.0, positives=positives, **scales, stream=stream
            )
            return float(answers.min())

        return repeated(once)

    pair, what = (np.ones(3), np.zeros(3)), "the smallest noisy answer"
    released = "the ids and the noisy values"
    return [
        _case("numeric sparse", 1.2, smallest_answer(1), pair, 3 * FEW, what, released=released),
        _case(
            "WIDE, Algorithm 1: stops after one answer too many",
            1.2,
            smallest_answer(2),
            pair,
            3 * FEW,
            what,
            released=released,
            is_control=True,
        ),
    ]


def _maps() -> list[Case]:
    """Thresholded counts, and the second clipping of WIDE."""
    sigma, moves = 0.5, batch_clip_sensitivity(example_clip=15.0, batch_clip=0.05, batch=20.0)

    def survives(std: float, count: float, stream: Stream, runs: int) -> NDArray[np.float64]:
        """So many rows are so many runs: every row has noise of its own."""
        ids = np.arange(runs) if count else np.empty(0, dtype=np.int64)
        bits = np.zeros(runs)
        bits[
            thresholded_counts(ids, np.full(ids.size, count), runs, std=std, threshold=1.0, stream=stream)
        ] = 1.0
        return bits

    def clipped_mean(std: float, value: float, stream: Stream, runs: int) -> NDArray[np.float64]:
        return gaussian(np.full(runs, value), std=std, stream=stream)

    surviving, across = (
        "whether a row that one example reads survives",
        "a mean that one example carries across",
    )
    map_claim = partial(analytic_gaussian_epsilon, _DELTA, 1 / sigma)
    mean_claim = partial(analytic_gaussian_epsilon, _DELTA, 1.0)
    ids: dict[str, Any] = {"delta": _DELTA, "released": "the surviving ids"}
    return [
        _case("thresholded counts", map_claim, partial(survives, sigma), (1.0, 0.0), MANY, surviving, **ids),
        _case(
            "FEST, appendix B.2: the variance for the standard deviation",
            map_claim,
            partial(survives, sigma**2),
            (1.0, 0.0),
            20 * MANY,
            surviving,
            is_control=True,
            **ids,
        ),
        _case(
            "second clipping",
            mean_claim,
            partial(clipped_mean, moves),
            (0.05, -0.05),
            MANY,
            across,
            delta=_DELTA,
        ),
        _case(
            "WIDE, Algorithm 3: the norm for the distance",
            mean_claim,
            partial(clipped_mean, min(15.0 / 20.0, 0.05)),
            (0.05, -0.05),
            SOME,
            across,
            delta=_DELTA,
            is_control=True,
        ),
    ]


def _repetition() -> list[Case]:
    """The best of about 30 runs, each exactly 1-DP: one of three outputs, scored by its number."""
    one = np.array([0.8, 0.1, 0.1])
    other = np.array([1 - 0.1 / math.e - 0.1 * math.e, 0.1 / math.e, 0.1 * math.e])
    delta, mean = 1e-5, 30.0

    def best(law: NDArray[np.float64], stream: Stream) -> int:
        edges = np.cumsum(law)[:2]

        def draw() -> tuple[int, float]:
            output = int(np.searchsorted(edges, stream.uniform(1)[0], side="right"))
            return output, float(output)

        return best_of_repetitions(draw, mean=mean, stream=stream)

    def price() -> float:
        return epsilon_of([(repetition_event(ZCDpEvent(0.5), mean=mean), 1)], delta)

    statistics: Statistics[Any] = repeated(best, lambda output: float(output == 1))
    what = "whether the middle output wins, of a run that is exactly 1-DP"
    released = "the best run's output"
    return [
        _case(
            "random repetition",
            price,
            statistics,
            (one, other),
            2 * FEW,
            what,
            delta=delta,
            released=released,
        ),
        _case(
            "random repetition, priced as one run",
            1.0,
            statistics,
            (one, other),
            2 * FEW,
            what,
            delta=delta,
            released=released,
            is_control=True,
        ),
    ]
