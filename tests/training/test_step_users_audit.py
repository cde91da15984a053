"""Distinguishing audits at the user level, and the mistakes that they catch.

The pair is the worst one: nobody against one user all of whose rows read row 7 of the table and have clipped
gradients. The statistic is the likelihood ratio of what the step releases, or a monotone function of it. Every audit
errs with probability at most 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import analytic_gaussian_epsilon, epsilon_of, split_sigma
from sparsedp.accounting.events import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.users import user_step_event
from sparsedp.audit import AuditResult, audit
from sparsedp.clipping import Captured
from sparsedp.core.counts import SparseCounts
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import Units
from sparsedp.training.batch import LogicalBatch

SIGMA, THRESHOLD, DELTA, RUNS, ROWS = 1.0, 1.0, 0.3, 400, 4
Released = Callable[[bool, float, float], float]


class Canary(nn.Module):
    """Row 7 and a dense weight get gradients (1, 1) times 100 x."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 1, sparse=True)
        self.dense = nn.Linear(1, 1, bias=False)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return 100 * (x * self.table(ids) + self.dense(x)).squeeze(1)


def releases(
    selection: sdp.selection.Selection,
    sampler: sdp.UserSampler,
    x: Tensor,
    runs: int,
    rate: float,
    draw: Any = None,
) -> list[tuple[bool, float, float]]:
    """So many steps: (does row 7 survive, its gradient, the dense gradient), as sums."""
    model = Canary()
    data = TensorDataset(torch.full((len(x),), 7), x[:, None])
    expected = rate * sampler.population
    private = sdp.PrivacyEngine(seed=int(x.sum()) + 3, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(data, batch_size=1, sampler=sampler),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        selection=selection,
        expected_batch_size=expected,
        loss_reduction="sum",
        unit="user",
    )
    private.data_loader.steps_per_epoch = runs
    if draw is not None:
        private.data_loader._draw = draw
    found = []
    for ids, features in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids, features).sum().backward()
        private.optimizer.step()
        grad, dense = model.table.weight.grad, model.dense.weight.grad
        assert grad is not None
        assert dense is not None
        rows = grad.indices()[0].tolist()
        value = float(grad.values()[rows.index(7)]) if 7 in rows else 0.0
        found.append((7 in rows, expected * value, expected * float(dense)))
    return found


def audit_users(
    selection: sdp.selection.Selection, statistic: Released, *, runs: int = RUNS, delta: float = DELTA
) -> AuditResult:
    """Users are drawn: with probability one, so that the claim is the Gaussian's own."""
    sampler = sdp.UserSampler(np.zeros(ROWS, int), rows_per_user=ROWS)

    def mechanism(users: int, stream: Stream, runs: int) -> list[float]:
        rows = np.arange(ROWS * users)
        drawn = rows, Units(np.zeros(rows.size, np.int64), ROWS)
        found = releases(selection, sampler, torch.ones(ROWS), runs, 1.0, lambda users, step: drawn)
        return [statistic(*each) for each in found]

    claimed = analytic_gaussian_epsilon(delta, 1 / SIGMA)
    return audit(mechanism, (0, 1), runs=runs, delta=delta, claimed=claimed, stream=NoiseSource(0).selection)


def adafest() -> sdp.AdaFEST:
    return sdp.AdaFEST(noise_ratio=1.0, threshold=THRESHOLD, always_on_rows=0, contribution_norm=1.0)


def likelihood_ratio(survives: bool, row: float, dense: float) -> float:
    """log P(output | the user) / P(output | nobody) under the textbook form."""
    sigma1, sigma2 = split_sigma(SIGMA, 1.0)
    law = normal.logsf if survives else normal.logcdf
    bit = law((THRESHOLD - 1) / sigma1) - law(THRESHOLD / sigma1)
    moved = (row + dense) / np.sqrt(2) if survives else dense
    return float(bit + (moved - 0.5) / sigma2**2)


def whole(survives: bool, row: float, dense: float) -> float:
    return row + dense


def test_a_user_is_protected_as_one_example_is() -> None:
    assert not audit_users(adafest(), likelihood_ratio).refuted
    assert not audit_users(sdp.FEST({"table": range(30)}), whole).refuted


@pytest.mark.slow
def test_a_user_is_protected_as_one_example_is_by_a_finer_audit() -> None:
    result = audit_users(adafest(), likelihood_ratio, runs=4000, delta=0.02)
    assert not result.refuted, str(result)
    assert result.lower_bound > 0.3, "an audit that sees nothing proves nothing"
    result = audit_users(sdp.FEST({"table": range(30)}), whole, runs=4000, delta=0.02)
    assert not result.refuted, str(result)
    assert result.lower_bound > 0.5, "an audit that sees nothing proves nothing"


def test_clipping_per_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Captured, "grouped", lambda self, units: self)
    result = audit_users(sdp.FEST({"table": range(30)}), whole)
    assert result.refuted, str(result)


def test_counting_rows_instead_of_users_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map alone: each of the user's rows counts, where the user should."""
    grouped, kept = Captured.grouped, list[Captured]()

    def keep(self: Captured, units: Units) -> Captured:
        kept[:] = [self]
        return grouped(self, units)

    def of_rows(self: LogicalBatch, norm: float, domain: Any = None) -> SparseCounts:
        rows = LogicalBatch(kept if self.size else [], self.space)
        return rows._lookups.contributions(norm, rows.finite, domain)

    monkeypatch.setattr(Captured, "grouped", keep)
    monkeypatch.setattr(LogicalBatch, "contributions", of_rows)
    result = audit_users(adafest(), lambda survives, row, dense: float(survives))
    assert result.refuted, str(result)


def audit_rows(event: DpEvent, *, runs: int, delta: float) -> AuditResult:
    """Rows are drawn, of a user with four and of four others that move nothing."""
    sampler = sdp.UserSampler(np.repeat([0, 1], ROWS), rows_per_user=ROWS, sample="rows")

    def mechanism(users: int, stream: Stream, runs: int) -> list[float]:
        x = torch.cat([torch.full((ROWS,), float(users)), torch.zeros(ROWS)])
        found = releases(sdp.FEST({"table": range(30)}), sampler, x, runs, 0.5)
        return [whole(*each) for each in found]

    claimed = epsilon_of([(event, 1)], delta)
    return audit(mechanism, (0, 1), runs=runs, delta=delta, claimed=claimed, stream=NoiseSource(0).selection)


def test_rows_of_a_capped_user_cost_the_mixture_and_not_one_row() -> None:
    result = audit_rows(user_step_event(SIGMA, 0.5, ROWS), runs=800, delta=DELTA)
    assert not result.refuted, str(result)
    one_row = epsilon_of([(PoissonSampledDpEvent(0.5, GaussianDpEvent(SIGMA)), 1)], DELTA)
    assert result.lower_bound > one_row, f"the price of one row would pass: {result}"
