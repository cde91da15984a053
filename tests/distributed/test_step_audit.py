"""A distinguishing audit of a step of several processes, and three faults that it catches.

The pair is the worst one: nobody against one canary that alone touches a row and whose gradient is clipped. Each row
of a step is such a pair, independent of the others, so that a few steps give thousands of runs. Statistics are
computed from what all processes hold. Every audit errs with probability at most 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest
from scipy.stats import norm as normal
from support.distributed_audit import IDLE, RATIO, ROWS, SIGMA, THRESHOLD, steps
from support.processes import Processes

from sparsedp.accounting import analytic_gaussian_epsilon, split_sigma
from sparsedp.audit import AuditResult, audit
from sparsedp.randomness import NoiseSource

OWN_NOISE = "each rank adds its own noise"
OWN_SIZE = "ranks normalise by their own batch size"
TOUCHED_ONLY = "no rank adds noise to rows that nobody touched"

Held = dict[str, NDArray[Any]]
Statistic = Callable[[Held], NDArray[Any]]
"""From what all processes hold (first dimension: the process) to one number per step."""


def run(
    processes: Processes,
    *,
    ranks: int = 2,
    sharded: bool = False,
    pair: tuple[int, int] = (0, ROWS),
    runs: int = 25,
    fault: str | None = None,
    fixed: bool = False,
) -> Held:
    held = processes.run(steps, sharded, pair, runs, fault, fixed, ranks=ranks)
    return {name: np.stack([each[name] for each in held]) for name in held[0]}


def audited(held: Held, statistic: Statistic, delta: float = 0.02) -> AuditResult:
    values = statistic(held)
    claimed = analytic_gaussian_epsilon(delta, 1 / SIGMA)
    halves = {(n, begin): values[n, begin::2] for n in (0, 1) for begin in (0, 1)}
    turns = iter([0, 0, 1, 1])
    return audit(
        lambda number, stream, runs: halves[number, next(turns)][:runs].tolist(),
        (0, 1),
        runs=values.shape[1],
        delta=delta,
        claimed=claimed,
        stream=NoiseSource(0).selection,
    )


def log_likelihood_ratio(held: Held) -> NDArray[Any]:
    """log P(output | canary) / P(output | nobody) under the textbook form; copies are averaged."""
    sigma1, sigma2 = split_sigma(SIGMA, RATIO)
    copies = (~np.isnan(held["rows"])).sum(axis=0)
    mean = np.nansum(held["rows"], axis=0) / np.maximum(copies, 1)
    gone = normal.logcdf((THRESHOLD - 1) / sigma1) - normal.logcdf(THRESHOLD / sigma1)
    here = normal.logsf((THRESHOLD - 1) / sigma1) - normal.logsf(THRESHOLD / sigma1)
    return np.where(copies > 0, here + (mean - 0.5) / sigma2**2, gone)


def survival(held: Held) -> NDArray[Any]:
    return (~np.isnan(held["rows"]).all(axis=0)).astype(float)


def spread(held: Held) -> NDArray[Any]:
    """Of the noise on the coordinates that the last process owns, in groups of 30."""
    idle = held["idle"][0][:, :, 300:]
    return np.square(idle.reshape(2, -1, 30)).mean(axis=-1)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_step_keeps_its_claim(processes: Processes, sharded: bool) -> None:
    held = run(processes, sharded=sharded)
    for statistic in (log_likelihood_ratio, survival):
        result = audited(held, statistic)
        assert not result.refuted, str(result)
    assert audited(held, log_likelihood_ratio).lower_bound > 0.3, "an audit that sees nothing proves nothing"
    if not sharded:
        assert (held["idle"][0] == held["idle"][1]).all()
        assert np.array_equal(held["rows"][0], held["rows"][1], equal_nan=True)


def test_noise_has_its_law_once(processes: Processes) -> None:
    """Of every coordinate, wherever it is owned; twice the noise, or half of it, fails."""
    idle = run(processes, ranks=4, runs=20)["idle"][0].reshape(-1, IDLE)
    _, sigma2 = split_sigma(SIGMA, RATIO)
    assert kstest(idle.ravel() / sigma2, "norm").pvalue > 1e-9
    for wrong in (np.sqrt(2), np.sqrt(0.5)):
        assert kstest(idle.ravel() / sigma2 / wrong, "norm").pvalue < 1e-9
    quarters = idle.reshape(len(idle), 4, -1).transpose(1, 0, 2).reshape(4, -1)
    correlations = np.corrcoef(quarters) - np.eye(4)
    assert np.abs(correlations).max() < 7 / np.sqrt(quarters.shape[1])


def test_noise_of_each_rank_is_caught(processes: Processes) -> None:
    def mean(held: Held) -> NDArray[Any]:
        return held["rows"].mean(axis=0)

    result = audited(run(processes, ranks=4, fixed=True), mean, delta=0.3)
    assert not result.refuted, str(result)
    result = audited(run(processes, ranks=4, fixed=True, fault=OWN_NOISE), mean, delta=0.3)
    assert result.refuted, str(result)


def test_dividing_by_the_batch_size_of_a_rank_is_caught(processes: Processes) -> None:
    assert not audited(run(processes, pair=(1, 2), runs=120), spread).refuted
    result = audited(run(processes, pair=(1, 2), runs=120, fault=OWN_SIZE), spread)
    assert result.refuted, str(result)


def test_noise_only_on_touched_rows_is_caught(processes: Processes) -> None:
    result = audited(run(processes, sharded=True, runs=5, fault=TOUCHED_ONLY), survival)
    assert result.refuted, str(result)
