"""Privacy events: those of dp-accounting, and the ones it lacks.

An event says what a mechanism did, in noise multipliers (noise scale over sensitivity), never on which
data. Any event may be nested in `PoissonSampledDpEvent(q, event)`, `ComposedDpEvent` and
`SelfComposedDpEvent`. Releases that read the *same* Poisson batch belong inside one
`PoissonSampledDpEvent(q, ComposedDpEvent([...]))`: sampling each separately would be accounted as if every
release had drawn a fresh batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import attr
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    ZCDpEvent,
)

from sparsedp.core.validation import check_count, check_non_negative, check_number

Events: TypeAlias = Sequence[tuple[DpEvent, int]]
"""What a run did: pairs (event, how many times)."""

__all__ = [
    "BoundedRangeGaussianDpEvent",
    "ComposedDpEvent",
    "DiscreteLaplaceDpEvent",
    "DpEvent",
    "Events",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "MixtureOfGaussiansDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "PureDpEvent",
    "RandomizedResponseDpEvent",
    "RepeatAndSelectDpEvent",
    "SelfComposedDpEvent",
    "SparseVectorDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
    "WorstOfDpEvent",
    "ZCDpEvent",
]


def _positive_or_infinite(name: str, value: float) -> None:
    if check_number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]
    """A generic epsilon-DP mechanism, for instance permute-and-flip.

    Dominated by randomised response: loss `epsilon` with probability e^epsilon / (1 + e^epsilon), else
    `-epsilon` (Kairouz, Oh and Viswanath 2015).
    """

    epsilon: float

    def __attrs_post_init__(self) -> None:
        check_non_negative("epsilon", self.epsilon)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class BoundedRangeGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """`draws` epsilon-bounded-range draws and one Gaussian release, all on the same data.

    A mechanism is epsilon-bounded-range when its privacy loss stays within some interval of length epsilon:
    the exponential mechanism with weights exp(epsilon score / (2 sensitivity)) is, and so is each draw of
    its peeling form. `noise_multiplier` is that of the Gaussian; infinite (the default) means that there
    was none.
    """

    draws: int
    epsilon: float
    noise_multiplier: float = math.inf

    def __attrs_post_init__(self) -> None:
        check_count("draws", self.draws, minimum=0)
        check_non_negative("epsilon", self.epsilon)
        _positive_or_infinite("noise_multiplier", self.noise_multiplier)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SparseVectorDpEvent(DpEvent):  # type: ignore[misc]
    """The sparse vector technique (NumericSparse), stopped at `positives` answers above the threshold.

    Scales are those of the Laplace noises over the sensitivity of one query: `threshold_scale` of the noise
    on the threshold, drawn afresh after every positive; `query_scale` of the noise on every query;
    `answer_scale` of the noise on the value published with a positive (infinite, the default: only the
    position is published).

    Cost: each round up to and including a positive is an AboveThreshold run, which is (1/threshold_scale +
    2/query_scale)-DP for any number of preceding negatives: shift the threshold's noise by one sensitivity
    (first term), and the positive's noise by at most two (second term); every negative then only
    becomes likelier (Dwork and Roth 2014, theorem 3.23, with two separate scales). `positives` rounds
    compose, and so do as many Laplace answers. Reusing one threshold noise for all rounds is another mechanism:
    account for it as `PureDpEvent(1/threshold_scale + 2 positives/query_scale)`.
    """

    positives: int
    threshold_scale: float
    query_scale: float
    answer_scale: float = math.inf

    def __attrs_post_init__(self) -> None:
        check_count("positives", self.positives)
        for name in ("threshold_scale", "query_scale", "answer_scale"):
            _positive_or_infinite(name, getattr(self, name))

    @property
    def round_epsilon(self) -> float:
        """The pure epsilon of one round, without its published answer."""
        return 1 / self.threshold_scale + 2 / self.query_scale


@attr.s(frozen=True, slots=True, auto_attribs=True)
class WorstOfDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism that, for any two neighbours, is one of these events; which one is not known.

    Two cases: parts of the data that no example is in both of, each with its event; and a choice among mechanisms
    by randomness that does not look at the data. Accounted by Renyi divergences, the largest at each order. Proof:
    in the first case one of the parts is equal on both neighbours. In the second, with the choice published,
    exp((a - 1) D_a) is the mean over the choices of each one's, which is at most the largest.
    """

    events: tuple[DpEvent, ...] = attr.ib(converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not self.events:
            raise ValueError("events must not be empty")
