"""What a draw asks of the data, how far two neighbours' answers are apart, and what an event covers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.core.arrays import F64, I64


@dataclass(frozen=True)
class Loss:
    """A bound on the privacy loss of some draws together, in the measures that add up."""

    squared_shift: float = 0.0
    """Of Gaussian draws: the squared l2 distance in units of their noise."""
    bounded_range: float = 0.0
    """Of exponential draws: the sum of the ranges of their privacy losses."""
    pure: float = 0.0
    """Of other draws: the sum of their epsilons."""

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.squared_shift + other.squared_shift,
            self.bounded_range + other.bounded_range,
            self.pure + other.pure,
        )

    @property
    def _parts(self) -> tuple[float, float, float]:
        return self.squared_shift, self.bounded_range, self.pure

    @property
    def is_positive(self) -> bool:
        """Whether anything differed at all."""
        return any(part > 0 for part in self._parts)

    def is_within(self, claimed: Loss, tolerance: float) -> bool:
        """Each measure is at most the claimed one times ``tolerance``."""
        return all(a <= b * tolerance for a, b in zip(self._parts, claimed._parts, strict=True))

    def share_of(self, claimed: Loss) -> float:
        """The largest used part of a claimed measure, of shifts the distance and not its square."""
        shares = [
            a / b if b else math.inf for a, b in zip(self._parts, claimed._parts, strict=True) if a or b
        ]
        if self.squared_shift and claimed.squared_shift:
            shares[0] = math.sqrt(shares[0])
        return max(shares, default=0.0)

    def __str__(self) -> str:
        parts = [
            f"a shift of {math.sqrt(self.squared_shift):.6g} noise units" if self.squared_shift else "",
            f"a range of {self.bounded_range:.6g}" if self.bounded_range else "",
            f"epsilon {self.pure:.6g}" if self.pure else "",
        ]
        return " and ".join(filter(None, parts)) or "nothing"


@dataclass(frozen=True)
class Query:
    """The arguments of a draw: private values of some rows (all others are zero), and what must be public."""

    rows: I64
    values: F64
    """One row each; the values before noise, on the lattice on which they get it."""
    public: Mapping[str, Any]
    loss: Callable[[F64], Loss]
    """The loss of a difference between the values of two neighbours."""
    output_by_row: bool = field(default=False)
    """The output has one entry for each of ``rows``, and not one for each possible row."""

    def public_differences(self, other: Query) -> list[str]:
        """The names of public arguments that differ."""
        names = sorted(set(self.public) | set(other.public))
        return [name for name in names if self.public.get(name) != other.public.get(name)]

    def aligned(self, other: Query, output: Any) -> Any:
        """The ``output`` of another query in the form that this one's caller expects."""
        if not self.output_by_row:
            return copy.deepcopy(output)
        result = np.zeros((self.rows.size, *output.shape[1:]), dtype=output.dtype)
        at = np.searchsorted(other.rows, self.rows)
        known = np.append(other.rows, -1)[at] == self.rows
        result[known] = output[at[known]]
        return result


def loss_between(query: Query, other: Query) -> Loss:
    """How far two neighbours' answers to the same query are apart."""
    rows = np.union1d(query.rows, other.rows)
    difference = np.zeros((rows.size, *query.values.shape[1:]))
    difference[np.searchsorted(rows, query.rows)] += query.values
    difference[np.searchsorted(rows, other.rows)] -= other.values
    return query.loss(difference)


def query_of(name: str, arguments: Mapping[str, Any]) -> Query:
    """The query of a draw, by the draw's name; refuses a draw that is not known."""
    if name not in _QUERIES:
        raise ValueError(f"draw {name}: how its outputs compare is not known; add it to audit.losses")
    return _QUERIES[name](arguments)


def covered_by(event: DpEvent) -> Loss:
    """How far the draws of an event may be apart; of a sampled event, where the batch holds the example."""
    match event:
        case PoissonSampledDpEvent():
            return covered_by(event.event)
        case ComposedDpEvent():
            return sum((covered_by(part) for part in event.events), Loss())
        case GaussianDpEvent():
            return Loss(squared_shift=event.noise_multiplier**-2)
        case MixtureOfGaussiansDpEvent():
            return Loss(squared_shift=(max(event.sensitivities) / event.standard_deviation) ** 2)
        case BoundedRangeGaussianDpEvent():
            return Loss(event.noise_multiplier**-2, event.draws * event.epsilon)
        case SparseVectorDpEvent():
            return Loss(pure=event.positives * event.round_epsilon)
        case NonPrivateDpEvent():
            return Loss(math.inf, math.inf, math.inf)
    raise ValueError(f"event {type(event).__name__}: what it covers is not known; add it to audit.losses")


def _gaussian(std: float) -> Callable[[F64], Loss]:
    def loss(difference: F64) -> Loss:
        distance = float(np.linalg.norm(difference))
        return Loss(squared_shift=(distance / std) ** 2 if std else math.inf if distance else 0.0)

    return loss


def _on_lattice(sums: F64, lattice: float) -> F64:
    return np.rint(sums / lattice) * lattice if lattice else np.array(sums)


def _noise_of(arguments: Mapping[str, Any]) -> tuple[dict[str, float], Callable[[F64], Loss], float]:
    noise = arguments["self"]
    public = {"std": noise.std, "divisor": noise.divisor, "lattice": noise.lattice}
    return public, _gaussian(noise.std), noise.lattice


def _release(arguments: Mapping[str, Any]) -> Query:
    public, loss, lattice = _noise_of(arguments)
    sums = arguments["sums"]
    return Query(np.arange(sums.size), _on_lattice(sums, lattice), public | {"size": sums.size}, loss)


def _release_rows(arguments: Mapping[str, Any]) -> Query:
    public, loss, lattice = _noise_of(arguments)
    sums = _on_lattice(arguments["sums"], lattice)
    return Query(np.array(arguments["rows"]), sums, public, loss, output_by_row=True)


def _release_table(arguments: Mapping[str, Any]) -> Query:
    public, loss, lattice = _noise_of(arguments)
    public |= {"rows": arguments["rows"], "dim": arguments["dim"]}
    return Query(np.array(arguments["touched"]), _on_lattice(arguments["sums"], lattice), public, loss)


def _histogram(ids: str, values: str, loss: Callable[[Mapping[str, Any]], Callable[[F64], Loss]]) -> Any:
    """A draw from a histogram: everything but its ids and values is public."""

    def query(arguments: Mapping[str, Any]) -> Query:
        public = {
            name: value for name, value in arguments.items() if name not in (ids, values, "stream", "self")
        }
        counts = np.array(arguments[values], dtype=np.float64)
        return Query(np.array(arguments[ids], dtype=np.int64), counts, public, loss(arguments))

    return query


def _exponential(arguments: Mapping[str, Any]) -> Callable[[F64], Loss]:
    def loss(difference: F64) -> Loss:
        spread = float(np.max(difference, initial=0.0) - np.min(difference, initial=0.0))
        per_draw = arguments["epsilon"] * spread / (2.0 * arguments["sensitivity"])
        return Loss(bounded_range=arguments["k"] * per_draw)

    return loss


def _sparse_vector(arguments: Mapping[str, Any]) -> Callable[[F64], Loss]:
    def loss(difference: F64) -> Loss:
        largest = float(np.max(np.abs(difference), initial=0.0))
        one_round = largest / arguments["threshold_scale"] + 2 * largest / arguments["query_scale"]
        return Loss(pure=arguments["positives"] * one_round)

    return loss


def _with_std(arguments: Mapping[str, Any]) -> Callable[[F64], Loss]:
    return _gaussian(arguments["std"])


def _counts_above(arguments: Mapping[str, Any]) -> Query:
    counts = arguments["counts"]
    public = {name: arguments[name] for name in ("std", "threshold")} | {"size": counts.size}
    return Query(np.array(counts.ids), np.array(counts.values), public, _gaussian(arguments["std"]))


def _remembered(arguments: Mapping[str, Any]) -> Query:
    counts, memory = arguments["counts"], arguments["self"]
    public = {name: getattr(memory, name) for name in ("size", "deviations", "steps", "every")}
    public["std"] = arguments["std"]
    return Query(np.array(counts.ids), np.array(counts.values), public, _gaussian(arguments["std"]))


def _turn(arguments: Mapping[str, Any]) -> Query:
    """A step's own sums: each row of a step has its noise in what is released of it, at whatever step that is."""
    noise = arguments["noise"]
    rows, values = [np.empty(0, np.int64)], [np.empty(0)]
    for table_index, (own, sums) in sorted(arguments["touched"].items()):
        coordinates = (own[:, None] * sums.shape[1] + np.arange(sums.shape[1])) << _TABLE_BITS
        rows.append((coordinates + table_index).reshape(-1))
        values.append(noise.on_lattice(sums).reshape(-1))
    order = np.argsort(ids := np.concatenate(rows))
    public = {"std": noise.std, "divisor": noise.divisor, "lattice": noise.lattice}
    return Query(ids[order], np.concatenate(values)[order], public, _gaussian(noise.std))


def _nothing_new(arguments: Mapping[str, Any]) -> Query:
    """Noise on sums whose rows were compared when they were added."""
    return Query(np.empty(0, np.int64), np.empty(0), {"std": arguments["noise"].std}, _gaussian(1.0))


_TABLE_BITS = 16
_QUERIES: dict[str, Callable[[Mapping[str, Any]], Query]] = {
    "Noise.release": _release,
    "Noise.release_rows": _release_rows,
    "Noise.release_table": _release_table,
    "noisy_counts_above": _counts_above,
    "RowMemory.observe": _remembered,
    "PendingSums._turn": _turn,
    "PendingSums.flush": _nothing_new,
    "PendingSums._with_noise": _nothing_new,
    "noisy_histogram": _histogram("ids", "counts", _with_std),
    "draw_survivors": _histogram("touched", "counts", _with_std),
    "top_k_gaussian": _histogram("ids", "counts", _with_std),
    "exponential_top_k": _histogram("ids", "scores", _exponential),
    "sparse_vector": _histogram("ids", "values", _sparse_vector),
}
