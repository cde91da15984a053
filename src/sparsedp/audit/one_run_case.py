"""A whole training that is audited by one run with many canaries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sparsedp.audit.canary_run import CanaryScores, CanaryTraining
from sparsedp.audit.case import Claim, Finding, Kind
from sparsedp.audit.coins import LARGEST_EPSILON, OneRunResult, one_run
from sparsedp.core.arrays import F64
from sparsedp.randomness import Stream

LEAST_CANARIES = 50


@dataclass(frozen=True)
class OneRunCase:
    """One training with canaries: the best bound of all its attacks, whose error rates are shared."""

    name: str
    kind: Kind
    training: Callable[[int], CanaryTraining]
    """(canaries) -> the training."""
    delta: float
    what: str
    canaries: int
    claimed: Callable[[], float] | None = None
    """Of a control: the epsilon of what it is a broken copy of."""
    is_control: bool = field(default=False, kw_only=True)

    def run(self, stream: Stream, confidence: float, effort: float = 1.0) -> Finding:
        """Train once."""
        began = time.perf_counter()
        training = self.training(max(LEAST_CANARIES, round(effort * self.canaries)))
        scores = training.run(stream, self.delta)
        statement = scores.statement
        claim = Claim(
            statement.epsilon if self.claimed is None else self.claimed(),
            self.delta,
            statement.released if training.view == "every step" else "the final model only",
            statement.adjacency,
            statement.unit,
        )
        bound = max(each.lower_bound for each in attacks_on(scores, claim, confidence).values())
        return Finding(
            self.name,
            self.kind,
            self.is_control,
            claim,
            bound,
            confidence,
            f"1, {training.data.count:,} canaries",
            time.perf_counter() - began,
            self.what,
        )


def attacks_on(scores: CanaryScores, claim: Claim, confidence: float) -> dict[str, OneRunResult]:
    """What each attack shows, by its name. Each may err with an equal part of ``1 - confidence``."""
    named: dict[str, F64 | None] = {"gradient": scores.gradient, "loss": scores.loss, "row": scores.moved}
    found = {name: attack for name, attack in named.items() if attack is not None}
    each = 1.0 - (1.0 - confidence) / len(found)
    claimed = min(claim.epsilon, LARGEST_EPSILON)  # infinite where there is no noise
    return {
        name: one_run(attack, scores.included, delta=claim.delta, claimed=claimed, confidence=each)
        for name, attack in found.items()
    }
