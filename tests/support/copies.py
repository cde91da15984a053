"""Small copies of runs, and audits of them: right ones, and with less noise than their statement says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparsedp.audit.canary_run import CanaryScores, CanaryTraining
from sparsedp.randomness import NoiseSource
from sparsedp.runs import auditing
from sparsedp.runs.auditing import RunAudit

CONFIDENCE, DELTA, SEED = 1 - 1e-4, 1e-9, 1


def result_of(**changes: Any) -> dict[str, Any]:
    """What a copy needs of a run's result."""
    return {"steps": 8, "planned_steps": 8, "training_rows": 2000, "noise_multiplier": 1.5, **changes}


def audited(training: CanaryTraining, noise: float = 1.0, **changes: Any) -> RunAudit:
    """The audit of a copy with ``noise`` times what its statement says, or other ``changes``; it errs with 1e-4."""
    statement = training.run(NoiseSource(SEED).noise, DELTA).statement
    assert training.noise_multiplier is not None
    faulty = replace(training, noise_multiplier=noise * training.noise_multiplier, **changes)
    found = faulty.run(NoiseSource(SEED).noise, DELTA)
    scores = CanaryScores(found.included, found.by_attack, statement)
    return auditing._audit(faulty, scores, statement, CONFIDENCE, 1.0)
