"""Auditing a run's own configuration by small copies of it, trained with canaries on made-up examples.

A copy has the run's model, algorithm, clipping norm, noise multiplier and sampling rate. It has few examples, tables cut to
few rows, and at most so many steps, so it spends at most what the run spent, and a lower bound for it speaks of the run's
configuration. Where a step chooses a number of rows, that is cut in proportion; a threshold stays what it was.
Nothing of the run's data is read: all examples are made up from its schema (of texts: from its model's vocabulary), so an
audit costs no privacy.

A stream claims its epsilon for every example, and an example is in one period: the copy is of the period whose own records
cost most, as if it had been the whole run, and its bound is compared with the claim of the stream. Of a stream that protects
users it is of the period with the most steps: these are a part of what the stream spends on a user.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsedp.accounting import PrivacyStatement
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.audit.canary_run import CanaryScores, CanaryTraining
from sparsedp.audit.case import Claim
from sparsedp.audit.one_run_case import jointly
from sparsedp.core.validation import check_count
from sparsedp.data.schema import Schema
from sparsedp.randomness import NoiseSource
from sparsedp.runs.click_copy import click_copy
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import AUDIT, RunFolder
from sparsedp.runs.recorded_cost import period_epsilons, period_result, recorded_epsilon
from sparsedp.runs.result import finished_result
from sparsedp.runs.text_config import TextConfig
from sparsedp.runs.text_copy import text_copy

CANARIES, STEPS, CONFIDENCE = 1_000, 200, 0.95


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """What ``audit.json`` holds: the run's claim, and what its copy let through."""

    claimed: dict[str, Any]
    """The run's own statement."""
    copy: dict[str, Any]
    """The statement of the audited copy, which spends at most as much."""
    steps: int
    """Of the copy."""
    lower_bound: float
    """Epsilon is at least this, at the copy's delta, except with probability ``1 - confidence``."""
    gaussian_lower_bound: float
    """The same if the training is Gaussian DP."""
    confidence: float
    canaries: int
    rows_per_canary: int
    attack: str
    """Which score the bound comes from (``CanaryScores``)."""
    seconds: float
    recorded_epsilon: float | None = None
    """What the run's own noise, sampling rate, steps and one-off events cost at its delta (``recorded_epsilon``)."""
    period: int | None = None
    """Of a stream: which of its training periods, from 0, was copied (``why_period``)."""

    @property
    def refutation(self) -> str | None:
        """Why the claim is refuted; None if it is not."""
        return refutation(asdict(self))


def refutation(audit: Mapping[str, Any]) -> str | None:
    """Why what ``audit.json`` holds refutes the claim; None if it does not.

    A copy spends at most what its run spent, so its bound is for both. A claim is as wrong if it is below what the run's
    records cost by more than the accountant's tolerance, whatever an attack can see.
    """
    claimed, of_copy = (float(audit[part]["epsilon"]) for part in ("claimed", "copy"))
    recorded, bound = audit.get("recorded_epsilon"), float(audit["lower_bound"])
    if recorded is not None and float(recorded) > claimed + 2.0 * tolerance(claimed):
        return (
            f"the run claims epsilon {claimed:.4g}, and its own noise, sampling rate, steps and one-off events cost "
            f"epsilon {float(recorded):.4g} at the same delta, adjacency, unit and release"
        )
    if bound > min(claimed, of_copy):
        whose = "the run claims" if bound > claimed else "it should have spent"
        return (
            f"the copy let through epsilon {bound:.4g} or more, and {whose} {min(claimed, of_copy):.4g} at the same delta, "
            "adjacency and unit"
        )
    return None


def audit_run(
    folder: RunFolder,
    *,
    canaries: int = CANARIES,
    steps: int = STEPS,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
) -> RunAudit:
    """Audit a finished run's configuration and write ``audit.json`` into its folder."""
    began = time.perf_counter()
    config, result = folder.config(), asdict(finished_result(folder))
    claimed = _claim(folder, config, result)
    canaries, steps = check_count("canaries", canaries), check_count("steps", steps)
    period = _copied_period(folder, config, result, claimed.delta)
    training = copy_of(folder, result if period is None else period_result(result, period), canaries, steps)
    scores = training.run(NoiseSource(seed).noise, claimed.delta)
    found = replace(
        _audit(training, scores, claimed, confidence, time.perf_counter() - began),
        recorded_epsilon=recorded_epsilon(folder, config, result, claimed.delta),
        period=period,
    )
    folder.write_json(AUDIT, asdict(found))
    return found


def _audit(
    training: CanaryTraining,
    scores: CanaryScores,
    claimed: PrivacyStatement,
    confidence: float,
    seconds: float,
) -> RunAudit:
    claim = Claim(scores.statement.epsilon, claimed.delta, scores.statement.released)
    by_attack = jointly(scores, claim, confidence)
    attack = max(by_attack, key=lambda name: by_attack[name].lower_bound)
    return RunAudit(
        claimed=claimed.to_dict(),
        copy=scores.statement.to_dict(),
        steps=training.steps,
        lower_bound=by_attack[attack].lower_bound,
        gaussian_lower_bound=max(each.gaussian_lower_bound for each in by_attack.values()),
        confidence=confidence,
        canaries=training.data.count,
        rows_per_canary=training.data.rows_per_canary,
        attack=attack,
        seconds=seconds,
    )


def _claim(folder: RunFolder, config: RunConfig, result: dict[str, Any]) -> PrivacyStatement:
    """What the run claims; a run whose claim cannot be audited is refused."""
    if not config.method.private or result["statement"] is None:
        raise ValueError("audit: the run is not private, there is no claim to audit")
    claimed = PrivacyStatement.from_dict(result["statement"], "its statement")
    if claimed.unit != config.unit:
        raise ValueError(
            f"audit: {folder.path} is damaged: its settings protect one {config.unit}, its result one {claimed.unit}"
        )
    periods = [result] if config.period is None else result["period_figures"] or [{}]
    if any(figures.get("noise_multiplier") is None for figures in periods):
        raise ValueError(
            "audit: the result does not have the noise of its steps, an earlier version wrote it; train the run again"
        )
    if not any(figures.get("steps") for figures in periods):
        raise ValueError("audit: the run took no step, there is nothing to audit")
    return claimed


def _copied_period(folder: RunFolder, config: RunConfig, result: dict[str, Any], delta: float) -> int | None:
    """Of a stream, the period with steps whose own records cost most at the delta of the claim; of users, with most steps."""
    if config.period is None:
        return None
    if config.unit == "user":
        return int(np.argmax([figures["steps"] for figures in result["period_figures"]]))
    costs = period_epsilons(folder, config, result, delta)
    has_steps = [figures["steps"] > 0 for figures in result["period_figures"]]
    return int(np.argmax(np.where(has_steps, costs, -1.0)))


def why_period(claimed: Mapping[str, Any]) -> str:
    """Why the copied period of a stream with this claim was the one, in words."""
    return "the one of most steps" if claimed["unit"] == "user" else "whose records cost most"


def copy_of(folder: RunFolder, result: dict[str, Any], canaries: int, steps: int) -> CanaryTraining:
    """The small copy of a run with this result."""
    config = folder.config()
    if isinstance(config, TextConfig):
        return text_copy(config, result, canaries, steps)
    return click_copy(config, result, Schema.read(folder.path), canaries, steps)
