"""The projection mechanism on a sparse vector, without writing down its d coordinates.

In high dimension the projection to the l1 ball is a soft threshold far out in the noise: a coordinate that
nobody touched survives only if its noise alone passes the threshold. So the noise of untouched coordinates
is drawn from the outside inwards, a shell of magnitudes at a time, until the coordinates seen so far fill
the ball; smaller ones are then known to be zero in the answer, for any noise.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.validation import check_positive
from sparsedp.mechanisms import project_l1_ball
from sparsedp.mechanisms.histogram import check_histogram, untouched_ids
from sparsedp.randomness import (
    Stream,
    bernoulli_positions,
    noise_lattice,
    passing_probability,
    round_gaussian,
    rounded_gaussian_tail,
)

_SHELL_FILL = 2.5
"""How many balls the first shell should fill on average: above 1, so that a second shell is seldom needed."""


def project_noisy(vector: SparseCounts, *, std: float, radius: float, stream: Stream) -> SparseCounts:
    """`vector + N(0, std^2)` on every coordinate, projected to the l1 ball of this radius (SGO Algorithm 1).

    Guarantee: the Gaussian mechanism on `vector`, then post-processing: if one example moves `vector` by at
    most Delta in l2, the event is `Gaussian(std / Delta)` under the same adjacency. Released: the projected
    vector.
    Proof: the output has the law of the dense form `project_l1_ball(gaussian(x, std), radius)`. The
    projection subtracts from every magnitude the threshold theta for which the excesses sum to the radius.
    Once the excesses over t of the coordinates seen sum to the radius or more, theta >= t, and coordinates
    within t become zero; these are the ones not drawn. Given that noise lies within t, it passes t' < t with
    the conditional probability used, and then has the law of the rounded Gaussian between the two. All are
    integers of the lattice of `std`, each with its probability to a relative 2^-40.
    Time and memory grow with the coordinates seen.
    """
    ids, values, size = check_histogram(vector.ids, vector.values, vector.size)
    std, radius = check_positive("std", std), check_positive("radius", radius)
    lattice = noise_lattice(std)
    std_cells, radius_cells = std / lattice, radius / lattice
    seen, noisy = ids, round_gaussian(values, std=std, lattice=lattice, stream=stream)
    outer: int | None = None
    while outer != 0:
        inner = _first_edge(size, std_cells, radius_cells) if outer is None else _next_edge(outer, std_cells)
        fresh = untouched_ids(seen, _hits(size - seen.size, inner, outer, std_cells, stream))
        seen, noisy = _merge(seen, noisy, fresh, _shell(fresh.size, inner, outer, std_cells, stream))
        if np.maximum(np.abs(noisy) - inner, 0).sum(dtype=np.float64) >= radius_cells:
            break
        outer = inner
    projected = project_l1_ball(lattice * noisy, radius)
    nonzero = projected != 0.0
    return SparseCounts(seen[nonzero], projected[nonzero], size)


@lru_cache(maxsize=1024)
def _first_edge(size: int, std_cells: float, radius_cells: float) -> int:
    """Where noise alone should fill the ball `_SHELL_FILL` times over; 0 if there is not that much of it."""
    target = _SHELL_FILL * radius_cells / (2.0 * std_cells * size)
    if target >= _excess(0.0):
        return 0
    return round(std_cells * float(optimize.brentq(lambda a: _excess(a) / target - 1.0, 0.0, 40.0)))


def _next_edge(outer: int, std_cells: float) -> int:
    """Half of the way in."""
    return outer // 2 if outer > std_cells / 8.0 else 0


def _excess(a: float) -> float:
    """E max(Z - a, 0) for a standard normal Z."""
    return float(math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) - a * special.ndtr(-a))


def _hits(size: int, inner: int, outer: int | None, std_cells: float, stream: Stream) -> I64:
    """Ranks of the coordinates whose noise, known to lie within `outer`, lies at `inner` or beyond."""
    if inner == 0:
        return np.arange(size, dtype=np.int64)
    beyond = 0.0 if outer is None else passing_probability(outer, std_cells)
    return bernoulli_positions(
        stream, size, (passing_probability(inner, std_cells) - beyond) / (0.5 - beyond)
    )


def _shell(count: int, inner: int, outer: int | None, std_cells: float, stream: Stream) -> I64:
    """Rounded Gaussians given that their magnitude is at least `inner` and less than `outer`."""
    noise = np.empty(count, dtype=np.int64)
    pending = np.arange(count)
    while pending.size:
        if inner == 0:
            drawn = round_gaussian(np.zeros(pending.size), std=std_cells, lattice=1.0, stream=stream)
        else:
            drawn = rounded_gaussian_tail(inner, std_cells, pending.size, stream)
            drawn *= 1 - 2 * stream.integers(2, pending.size)
        noise[pending] = drawn
        pending = pending[:0] if outer is None else pending[np.abs(drawn) >= outer]
    return noise


def _merge(ids: I64, values: I64, more_ids: I64, more_values: I64) -> tuple[I64, I64]:
    """Both, sorted by id; no id is in both."""
    together = np.concatenate([ids, more_ids])
    order = np.argsort(together, kind="stable")
    return together[order], np.concatenate([values, more_values])[order]
