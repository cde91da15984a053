"""A whole training that is audited by one run with many canaries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.audit.canary_run import CanaryScores, CanaryTraining
from sparsedp.audit.case import SINGLE_CONFIDENCE, Claim, Finding, Kind
from sparsedp.audit.coins import (
    LARGEST_EPSILON,
    OneRunResult,
    correct_guesses,
    flip_coins,
    guess_counts,
    one_run,
    one_run_epsilon,
)
from sparsedp.mechanisms import gaussian
from sparsedp.randomness import Stream

LEAST_CANARIES = 50
_IDEAL_RUNS = 5


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
        began = time.process_time()
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
        bound = max(each.lower_bound for each in jointly(scores, claim, confidence).values())
        return Finding(
            self.name,
            self.kind,
            self.is_control,
            claim,
            bound,
            confidence,
            f"1, {training.data.count:,} canaries",
            time.process_time() - began,
            self.what,
            jointly(scores, claim, SINGLE_CONFIDENCE),
        )


def jointly(scores: CanaryScores, claim: Claim, confidence: float) -> dict[str, OneRunResult]:
    """What each attack shows, by its name. All hold together: each may err with an equal part of ``1 - confidence``."""
    claimed = min(claim.epsilon, LARGEST_EPSILON)  # infinite where there is no noise
    each = 1.0 - (1.0 - confidence) / len(scores.by_attack)
    return {
        name: one_run(attack, scores.included, delta=claim.delta, claimed=claimed, confidence=each)
        for name, attack in scores.by_attack.items()
    }


def ideal_bound(epsilon: float, delta: float, canaries: int, *, confidence: float, stream: Stream) -> float:
    """The mean bound of an attacker who sees, of each canary, a Gaussian mechanism that spends all of epsilon on it.

    With so many canaries no attack on a Gaussian mechanism shows more, on average; at infinite epsilon every coin is seen.
    """
    mu = 0.0 if math.isinf(epsilon) else 1.0 / analytic_gaussian_sigma(epsilon, delta)
    sizes = guess_counts(canaries)
    each = 1.0 - (1.0 - confidence) / len(sizes)
    bounds = []
    for _ in range(_IDEAL_RUNS):
        coins = flip_coins(canaries, stream)
        scores = (
            coins.astype(np.float64) if math.isinf(epsilon) else gaussian(mu * coins, std=1.0, stream=stream)
        )
        bounds.append(
            max(
                one_run_epsilon(
                    size,
                    correct_guesses(scores, coins, size),
                    canaries=canaries,
                    delta=delta,
                    confidence=each,
                )
                for size in sizes
            )
        )
    return float(np.mean(bounds))
