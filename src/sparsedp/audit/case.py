"""A claim that an audit attacks, and what the attack found."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
from sparsedp.audit.coins import OneRunResult
from sparsedp.audit.distinguishing import Statistics, audit
from sparsedp.core.validation import check_probability
from sparsedp.randomness import NoiseSource, Stream

Kind = Literal["mechanism", "step", "training", "user", "floats", "one run"]
"""What is audited; the page has a table for each."""

FAMILY_ERROR = 0.01
"""The probability that any of the bounds of a list of audits is wrong."""
SINGLE_CONFIDENCE = 0.95
"""Of a single training, for comparison with the literature; no verdict rests on it."""
LEAST_RUNS = 100


@dataclass(frozen=True)
class Claim:
    """An epsilon with everything needed to read it."""

    epsilon: float
    delta: float
    released: str
    adjacency: str = ADD_OR_REMOVE_ONE
    unit: str = "example"


@dataclass(frozen=True)
class Finding:
    """What an audit of one claim found. ``lower_bound`` is wrong with probability at most ``1 - confidence``."""

    name: str
    kind: Kind
    is_control: bool
    claim: Claim
    lower_bound: float
    confidence: float
    runs: str
    """How often it was run, in words."""
    seconds: float
    what: str
    """What the attack looks at."""
    attacks: Mapping[str, OneRunResult] = field(default_factory=dict)
    """Of one run: what each attack shows, all of them together at ``SINGLE_CONFIDENCE``."""

    @property
    def is_refuted(self) -> bool:
        """Whether the bound is above the claim."""
        return self.lower_bound > self.claim.epsilon

    @property
    def is_expected(self) -> bool:
        """Whether the claim stands, or for a control, falls."""
        return self.is_refuted == self.is_control

    def __str__(self) -> str:
        verdict = "refuted" if self.is_refuted else "not refuted"
        return (
            f"{self.name}: claimed epsilon {self.claim.epsilon:.3g} at delta {self.claim.delta:g}, {self.claim.adjacency} "
            f"adjacency, unit: {self.claim.unit}, released: {self.claim.released}; audited epsilon >= "
            f"{self.lower_bound:.3g} (confidence 1 - {1.0 - self.confidence:.1g}): {verdict}"
            f"{'' if self.is_expected else ', WHICH IT SHOULD NOT BE' if self.is_refuted else ', THOUGH IT IS WRONG'}"
        )


class Auditable(Protocol):
    """Anything on the list of audits."""

    @property
    def name(self) -> str:
        """Its name, which no other has."""

    @property
    def kind(self) -> Kind:
        """Its table on the page."""

    @property
    def is_control(self) -> bool:
        """Known to be wrong: the audit must refute it."""

    def run(self, stream: Stream, confidence: float, effort: float = 1.0) -> Finding:
        """Attack it; ``effort`` multiplies the number of runs."""


@dataclass(frozen=True)
class Case:
    """A mechanism on two neighbouring data sets, run many times on each (``distinguishing.audit``).

    ``statistics(data, stream, runs)`` returns one number per independent run. ``claim`` is computed when it is needed.
    A control has the claim of the form that it is a broken copy of.
    """

    name: str
    kind: Kind
    claim: Callable[[], Claim]
    statistics: Statistics[Any]
    pair: tuple[Any, Any]
    runs: int
    what: str
    is_control: bool = field(default=False, kw_only=True)

    def run(self, stream: Stream, confidence: float, effort: float = 1.0) -> Finding:
        """Half of the runs on each data set choose the event, the other half bound its odds."""
        began, claim = time.process_time(), self.claim()
        result = audit(
            self.statistics,
            self.pair,
            runs=max(LEAST_RUNS, round(effort * self.runs)),
            delta=claim.delta,
            claimed=claim.epsilon,
            stream=stream,
            confidence=confidence,
        )
        return Finding(
            self.name,
            self.kind,
            self.is_control,
            claim,
            result.lower_bound,
            confidence,
            f"4 x {result.runs:,}",
            time.process_time() - began,
            self.what,
        )


def run_cases(
    cases: Iterable[Auditable], *, seed: int | None = 0, error: float = FAMILY_ERROR, effort: float = 1.0
) -> Iterator[Finding]:
    """Audit all of them; the probability that any bound is wrong is at most ``error`` (Bonferroni).

    Each has a stream of its own, by its name: the others on the list do not change what it finds.
    """
    listed = list(cases)
    names = [case.name for case in listed]
    if len(set(names)) != len(names):
        raise ValueError(f"cases must have different names, got {sorted(names)}")
    confidence = 1.0 - check_probability("error", error) / max(len(listed), 1)
    source = NoiseSource(seed).noise
    for case in listed:
        yield case.run(source.fork(zlib.crc32(case.name.encode())), confidence, effort)


def new_seed(stream: Stream) -> int:
    """A seed for an engine, drawn from a stream."""
    return int(stream.integers(2**62, 1)[0])
