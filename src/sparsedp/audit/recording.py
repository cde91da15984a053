"""Record and replay: one training on two neighbouring data sets with the same randomness.

The first run is recorded: every draw in which data meets noise, what went in and what came out. The second run, on
the data without one example, gets the *recorded* outputs. So both runs have released the same so far, and at every
draw the values before noise may differ by the sensitivity that is charged for, and by nothing else. Noise scales,
thresholds, divisors, the number of draws and everything that the training returns must not differ at all.

Deterministic, and cheap: two short trainings find what a statistical audit needs thousands for. It finds errors
of sensitivity and of accounting; errors in the noise itself are for the distinguishing audit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset

from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import DpEvent, MixtureOfGaussiansDpEvent, PoissonSampledDpEvent
from sparsedp.audit.losses import Loss, Query, covered_by, loss_between, query_of
from sparsedp.core.arrays import I64
from sparsedp.core.observing import observed_by
from sparsedp.rows import Units

Train = Callable[[Any], Any]
"""Trains on a data set, from its model's first weights on, and returns what is released at the end."""
_SAMPLES = ("PoissonLoader.indices", "PoissonLoader._draw")
Sample = I64 | tuple[I64, Units | None]
"""The rows of a batch, and where users are drawn whose they are."""
_TOLERANCE = 1.0 + 1e-9


class Neighbour(Dataset[Any]):
    """A data set, or the same without some examples; both have one length: size and sampling rate are public.

    An absent example is never sampled in a replay, and a pass over the whole data set leaves it out.
    """

    def __init__(self, data: Any, absent: Collection[int] = ()) -> None:
        self.data, self.absent = data, frozenset(absent)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index in self.absent:
            raise LookupError(f"example {index} is not in this data set")
        return self.data[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self.data[index] for index in indices if index not in self.absent]


@dataclass(frozen=True)
class ReplayedCharge:
    """What was charged at once, and how far the draws that it covers were apart."""

    event: DpEvent
    claimed: Loss
    observed: Loss
    draws: int


@dataclass(frozen=True)
class ReplayResult:
    """The outcome: no ``faults`` means that no draw and no released value refutes the claim on this pair."""

    charges: tuple[ReplayedCharge, ...]
    samples: int
    """How many batches held the example."""
    faults: tuple[str, ...]

    @property
    def moved(self) -> int:
        """How many charges covered draws that the example moved."""
        return sum(charge.observed.is_positive for charge in self.charges)

    @property
    def largest_share(self) -> float:
        """The largest part of a claim that was used: 1 where the sensitivity is tight."""
        return max((charge.observed.share_of(charge.claimed) for charge in self.charges), default=0.0)

    def __str__(self) -> str:
        passed = "every draw within its claim" if self.moved else "no evidence, as no draw was moved"
        verdict = "; ".join(self.faults) if self.faults else passed
        return (
            f"{len(self.charges)} charges, {self.moved} of them moved by the example, which {self.samples} batches "
            f"held; at most {self.largest_share:.3f} of a claim used: {verdict}"
        )


def replay(train: Train, data: Any, index: int | Sequence[int]) -> ReplayResult:
    """Train on ``data`` and, with the same released values, on ``data`` without example ``index``.

    Where the unit is the user, ``index`` lists all rows of one user.

    ``train`` must start from the same weights in each call, with an engine of the same seed (what is drawn without data
    is then the same), and build its loaders on the data set that it is given.
    It may save, resume, misuse the loop: where one run raises an error, the other must raise the same one.
    Layers that draw random numbers of their own (dropout) differ between the runs for reasons that have nothing to do
    with privacy: switch them off. A private loader reads its first and last example to learn the structure of a batch,
    so ``index`` must be another one.
    """
    absent = np.unique(np.atleast_1d(np.asarray(index, dtype=np.int64)))
    if not absent.size or not 0 < absent[0] <= absent[-1] < len(data) - 1:
        raise ValueError(f"index must lie strictly between 0 and {len(data) - 1}, got {index}")
    record = _Record(absent)
    first = _outcome(train, Neighbour(data), record)
    replayer = _Replayer(record)
    second = _outcome(train, Neighbour(data, absent.tolist()), replayer)
    faults = [*replayer.faults, *_end_faults(record, replayer), *_different_outcomes(first, second)]
    charges = tuple(
        ReplayedCharge(group.event, covered_by(group.event), loss, len(group.draws))
        for group, loss in zip(record.groups, replayer.losses, strict=False)
        if group.event is not None
    )
    faults += _charge_faults(charges, record.samples_with_example)
    return ReplayResult(charges, record.samples_with_example, tuple(faults))


@dataclass
class _Draw:
    name: str
    query: Query
    output: Any


@dataclass
class _Group:
    """A charge and the draws that follow it."""

    event: Any
    draws: list[_Draw] = field(default_factory=list)


class _Record:
    """Writes down charges, draws and samples."""

    def __init__(self, absent: I64) -> None:
        self.absent = absent
        self.groups = [_Group(None)]
        self.samples: list[Sample] = []

    @property
    def samples_with_example(self) -> int:
        return sum(bool(np.isin(self.absent, _rows_of(sample)).any()) for sample in self.samples)

    def charge(self, event: Any) -> None:
        self.groups.append(_Group(event))

    def draw(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        if name in _SAMPLES:
            self.samples.append(run())
            return self.samples[-1]
        query = query_of(name, arguments)
        output = run()
        self.groups[-1].draws.append(_Draw(name, query, copy.deepcopy(output)))
        return output


class _Replayer:
    """Compares each draw with the recorded one, and returns the recorded output."""

    def __init__(self, record: _Record) -> None:
        self._record = record
        self._samples: Iterator[Sample] = iter(record.samples)
        self._group, self._draw = 0, 0
        self.losses = [Loss()] * len(record.groups)
        self.faults: list[str] = []

    def charge(self, event: Any) -> None:
        self._end_group()
        self._group, self._draw = self._group + 1, 0
        if self._group >= len(self._record.groups):
            self._fault("a charge that the recorded run did not make")
        elif event_key(event) != event_key(self._record.groups[self._group].event):
            self._fault("the charged event depends on the example")

    def draw(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        if name in _SAMPLES:
            sample = next(self._samples, None)
            return run() if sample is None else _without(sample, self._record.absent)
        recorded = self._next(name)
        if recorded is None:
            return run()
        query = query_of(name, arguments)
        if differences := query.public_differences(recorded.query):
            self._fault(f"{name}: {', '.join(differences)} depends on the example")
            return run()
        self.losses[self._group] += loss_between(query, recorded.query)
        return query.aligned(recorded.query, recorded.output)

    def end(self) -> None:
        """The run is over."""
        self._end_group()

    def _next(self, name: str) -> _Draw | None:
        draws = self._record.groups[self._group].draws if self._group < len(self._record.groups) else []
        if self._draw >= len(draws) or draws[self._draw].name != name:
            self._fault(f"{name}: a draw that the recorded run did not make")
            return None
        self._draw += 1
        return draws[self._draw - 1]

    def _end_group(self) -> None:
        if self._group < len(self._record.groups):
            missing = len(self._record.groups[self._group].draws) - self._draw
            if missing > 0:
                self._fault(f"{missing} draws of the recorded run were not made")

    def _fault(self, what: str) -> None:
        self.faults.append(f"charge {self._group}: {what}")


def _rows_of(sample: Sample) -> I64:
    return sample[0] if isinstance(sample, tuple) else sample


def _without(sample: Sample, absent: I64) -> Sample:
    """The sample without some rows; where rows belong to users, without the user who has none left."""
    present = ~np.isin(_rows_of(sample), absent)
    if not isinstance(sample, tuple):
        return sample[present]
    rows, units = sample
    if units is None:
        return rows[present], None
    left = np.unique(units.of_example[present], return_inverse=True)[1].reshape(-1)
    return rows[present], Units(left, units.most, units.mean)


@dataclass(frozen=True)
class _Outcome:
    released: Any
    error: str | None


def _outcome(train: Train, data: Any, observer: _Record | _Replayer) -> _Outcome:
    with observed_by(observer):
        try:
            return _Outcome(train(data), None)
        except (ValueError, RuntimeError, LookupError) as error:
            return _Outcome(None, f"{type(error).__name__}: {error}")


def _end_faults(record: _Record, replayer: _Replayer) -> list[str]:
    before = len(replayer.faults)
    replayer.end()
    faults = replayer.faults[before:]
    if record.groups[0].draws:
        faults.append(f"{record.groups[0].draws[0].name}: drawn before anything was charged")
    left = len(record.groups) - 1 - replayer._group
    if left > 0:
        faults.append(f"{left} charges of the recorded run were not made")
    return faults


def _different_outcomes(first: _Outcome, second: _Outcome) -> list[str]:
    if first.error != second.error:
        return [f"with the example the training ended with {first.error}, without it with {second.error}"]
    leaves, structure = tree_flatten(first.released)
    others, other_structure = tree_flatten(second.released)
    if structure != other_structure:
        return ["the structure of what training returns depends on the example"]
    if not all(_equal(leaf, other) for leaf, other in zip(leaves, others, strict=True)):
        return ["what training returns differs although every draw was the same"]
    return []


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape and torch.equal(
            first.nan_to_num(nan=math.inf), second.nan_to_num(nan=math.inf)
        )
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
    return bool(first == second)


def _charge_faults(charges: Sequence[ReplayedCharge], samples: int) -> list[str]:
    faults = [
        f"charge {number}: the example moves its draws by {charge.observed}, charged are {charge.claimed}"
        for number, charge in enumerate(charges, 1)
        if not charge.observed.is_within(charge.claimed, _TOLERANCE)
    ]
    sampled = [
        charge
        for charge in charges
        if isinstance(charge.event, PoissonSampledDpEvent | MixtureOfGaussiansDpEvent)
    ]
    moved = sum(charge.observed.is_positive for charge in sampled)
    if sampled and moved > samples:
        faults.append(f"the example was in {samples} batches and moved the draws of {moved}")
    return faults
