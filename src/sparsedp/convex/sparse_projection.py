"""The projection mechanism on a sparse vector, without writing down its d coordinates.

In high dimension the projection to the l1 ball is a soft threshold far out in the noise: a coordinate that
nobody touched survives only if its noise alone passes the threshold. So the noise of untouched coordinates
is drawn from the outside inwards, a shell of magnitudes at a time, until the coordinates seen so far fill
the ball; those further in are then known to be zero in the answer, whatever their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from sparsedp.accounting.validation import check_positive
from sparsedp.mechanisms import project_l1_ball
from sparsedp.mechanisms.histogram import Floats, Ints, check_histogram, untouched_ids
from sparsedp.randomness import Stream, add_gaussian, bernoulli_positions, grid_of

_SHELL_FILL = 2.5
"""How many balls the first shell should fill on average: above 1, so that a second shell is seldom needed."""


@dataclass(frozen=True)
class SparseVector:
    """A vector of `size` coordinates of which only `ids` (sorted, distinct) are not zero."""

    ids: Ints
    values: Floats
    size: int

    def dense(self) -> Floats:
        """All coordinates."""
        x = np.zeros(self.size)
        x[self.ids] = self.values
        return x


def project_noisy(vector: SparseVector, *, std: float, radius: float, stream: Stream) -> SparseVector:
    """`vector + N(0, std^2)` on every coordinate, projected to the l1 ball of this radius (SGO Algorithm 1).

    Guarantee: the Gaussian mechanism on `vector`, then post-processing: if one example moves `vector` by at
    most Delta in l2, the event is `Gaussian(std / Delta)` under the same adjacency. Released: the projected
    vector.
    Proof: the output has the law of the dense form `project_l1_ball(add_gaussian(x, std), radius)`. The
    projection subtracts from every magnitude the threshold theta for which the excesses sum to the radius.
    Once the excesses over t of the coordinates seen sum to the radius or more, theta >= t, and coordinates
    within t become zero; these are the ones not drawn. Given that a normal lies within t, it passes t' < t
    with the conditional probability used, and its magnitude is drawn by inverting the conditional tail.
    Time and memory grow with the coordinates seen.
    """
    ids, values, size = check_histogram(vector.ids, vector.values, vector.size)
    std, radius = check_positive("std", std), check_positive("radius", radius)
    seen, noisy = ids, add_gaussian(values, std, stream)
    outer = math.inf
    while outer > 0.0:
        inner = _first_edge(size, std, radius) if outer == math.inf else _next_edge(outer, std)
        fresh = untouched_ids(seen, _hits(size - seen.size, inner / std, outer / std, stream))
        magnitudes = _shell(fresh.size, inner / std, outer / std, stream)
        drawn = _on_grid(std * magnitudes, std)
        seen, noisy = _merge(seen, noisy, fresh, drawn)
        if np.maximum(np.abs(noisy) - inner, 0.0).sum() >= radius:
            break
        outer = inner
    projected = project_l1_ball(noisy, radius)
    kept = projected != 0.0
    return SparseVector(seen[kept], projected[kept], size)


@lru_cache(maxsize=1024)
def _first_edge(size: int, std: float, radius: float) -> float:
    """Where noise alone should fill the ball `_SHELL_FILL` times over; 0 if there is not that much of it."""
    target = _SHELL_FILL * radius / (2.0 * std * size)
    if target >= _excess(0.0):
        return 0.0
    return _between_grid_points(
        std * float(optimize.brentq(lambda a: _excess(a) / target - 1.0, 0.0, 40.0)), std
    )


def _next_edge(outer: float, std: float) -> float:
    """Half of the way in."""
    return _between_grid_points(outer / 2.0, std) if outer > std / 8.0 else 0.0


def _between_grid_points(edge: float, std: float) -> float:
    """Half-way between two points of the grid, so that rounding carries no magnitude across the edge."""
    grid = grid_of(std)
    return (math.floor(edge / grid) + 0.5) * grid


def _excess(a: float) -> float:
    """E max(Z - a, 0) for a standard normal Z."""
    return float(math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) - a * special.ndtr(-a))


def _hits(size: int, inner: float, outer: float, stream: Stream) -> Ints:
    """Ranks of the coordinates whose noise, known to lie within `outer`, lies beyond `inner`."""
    if inner == 0.0:
        return np.arange(size, dtype=np.int64)
    shell = special.ndtr(-inner) - special.ndtr(-outer)
    return bernoulli_positions(stream, size, float(shell / (0.5 - special.ndtr(-outer))))


def _shell(count: int, inner: float, outer: float, stream: Stream) -> Floats:
    """Standard normals given that their magnitude lies between `inner` and `outer`."""
    low, high = special.ndtr(-outer), special.ndtr(-inner)
    magnitudes = -special.ndtri(low + stream.uniform(count) * (high - low))
    signs = np.frombuffer(stream.bytes(count), dtype=np.uint8) & 1
    return np.where(signs == 1, magnitudes, -magnitudes)


def _on_grid(values: Floats, std: float) -> Floats:
    grid = grid_of(std)
    return np.rint(values / grid) * grid


def _merge(ids: Ints, values: Floats, more_ids: Ints, more_values: Floats) -> tuple[Ints, Floats]:
    """Both, sorted by id; no id is in both."""
    together = np.concatenate([ids, more_ids])
    order = np.argsort(together, kind="stable")
    return together[order], np.concatenate([values, more_values])[order]
