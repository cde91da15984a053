"""A distinguishing audit of the whole step, and the three classic mistakes that it catches.

The pair is the worst one: no example against one canary that alone touches a row and whose gradient is
clipped. The statistic is the exact log-likelihood ratio of what the step releases (the row's survival bit,
and the noised gradient in the canary's direction). Every audit errs with probability at most 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.accounting import analytic_gaussian_epsilon, split_sigma
from sparsedp.audit import EANA, AuditResult, audit
from sparsedp.core.arrays import F32, I64
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows.sorted_lookups import Target
from sparsedp.training import noise as noise_module
from sparsedp.training.batch import LogicalBatch
from sparsedp.training.step import PrivateStep, StepGradient

Targets = Mapping[int, Target]
SIGMA, RATIO, THRESHOLD, DELTA, RUNS, ROWS = 1.0, 1.0, 1.0, 0.02, 3000, 30


class Canary(nn.Module):
    """Row 7 and a dense weight get gradients (1, 1) times 100; thirty more dense coordinates get none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1, sparse=True)
        self.dense = nn.Linear(1, 1, bias=False)
        self.idle = nn.Linear(1, 30, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        ones = torch.ones(len(ids), 1)
        used = self.table(ids).squeeze(1) + self.dense(ones).squeeze(1)
        return 100 * used + self.idle(0 * ones).sum(dim=1)


def step_reserver(selection: sdp.selection.Selection) -> Callable[[int], tuple[bool, float, float, Tensor]]:
    """One step on so many canaries: (does row 7 survive, its gradient, the dense gradient, idle ones)."""
    model, batches = Canary(), list[Tensor]()
    private = sdp.PrivacyEngine(seed=11, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=batches,
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        selection=selection,
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )

    def step(canaries: int) -> tuple[bool, float, float, Tensor]:
        batches[:] = [torch.full((canaries,), 7)]
        for ids in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        grad = model.table.weight.grad
        assert grad is not None
        rows = grad.indices()[0].tolist()
        value = float(grad.values()[rows.index(7)]) if 7 in rows else 0.0
        assert model.dense.weight.grad is not None
        assert model.idle.weight.grad is not None
        return 7 in rows, value, float(model.dense.weight.grad), model.idle.weight.grad

    return step


def log_likelihood_ratio(survives: bool, row: float, dense: float) -> float:
    """log P(output | canary) / P(output | nobody) under the textbook form."""
    sigma1, sigma2 = split_sigma(SIGMA, RATIO)
    if not survives:
        bit = normal.logcdf((THRESHOLD - 1) / sigma1) - normal.logcdf(THRESHOLD / sigma1)
        return float(bit + (dense - 0.5) / sigma2**2)
    bit = normal.logsf((THRESHOLD - 1) / sigma1) - normal.logsf(THRESHOLD / sigma1)
    return float(bit + ((row + dense) / np.sqrt(2) - 0.5) / sigma2**2)


def run_audit(
    step: Callable[[int], tuple[bool, float, float, Tensor]],
    statistic: Callable[[bool, float, float, Tensor], float],
    pair: tuple[int, int] = (0, 1),
    runs: int = RUNS,
    delta: float = DELTA,
) -> AuditResult:
    def mechanism(canaries: int, stream: Stream, runs: int) -> list[float]:
        return [statistic(*step(canaries)) for _ in range(runs)]

    claimed = analytic_gaussian_epsilon(delta, 1 / SIGMA)
    return audit(mechanism, pair, runs=runs, delta=delta, claimed=claimed, stream=NoiseSource(0).selection)


def adafest() -> sdp.AdaFEST:
    return sdp.AdaFEST(noise_ratio=RATIO, threshold=THRESHOLD, always_on_rows=0, contribution_norm=1.0)


def test_the_step_keeps_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def audited(delta: float) -> AuditResult:
        return run_audit(
            step_reserver(adafest()), lambda s, r, d, _: log_likelihood_ratio(s, r, d), delta=delta
        )

    result = audited(DELTA)
    assert not result.refuted, str(result)
    assert result.lower_bound > 0.3, "an audit that sees nothing proves nothing"
    assert not audited(0.3).refuted
    released = noise_module.release_on_lattice

    def a_third(out, sums, *, lattice, std, **options):  # type: ignore[no-untyped-def]
        released(out, sums, lattice=lattice / 4, std=std / 3, **options)

    monkeypatch.setattr(noise_module, "release_on_lattice", a_third)
    result = audited(0.3)
    assert result.refuted, f"a third of the noise is not noticed: {result}"


def test_clipping_tables_and_dense_layers_separately_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_dense, plain_rows = LogicalBatch.accumulate_dense, LogicalBatch.accumulate_rows

    def dense_alone(self: LogicalBatch, name: str, out: Tensor, weights: F32) -> None:
        plain_dense(self, name, out, self.clip_weights(self.dense_squared_norms, 1.0))

    def rows_alone(self: LogicalBatch, survivors: I64, weights: F32, targets: Targets) -> None:
        squares = self.squared_norms(survivors) - self.dense_squared_norms
        plain_rows(self, survivors, self.clip_weights(squares, 1.0), targets)

    monkeypatch.setattr(LogicalBatch, "accumulate_dense", dense_alone)
    monkeypatch.setattr(LogicalBatch, "accumulate_rows", rows_alone)
    # Every row always on: what is left is the gradient, of norm sqrt(2) instead of 1.
    step = step_reserver(sdp.FEST({"table": range(ROWS)}))
    result = run_audit(step, lambda s, row, dense, _: row + dense, runs=9000, delta=0.3)
    assert result.refuted, str(result)
    monkeypatch.undo()
    step = step_reserver(sdp.FEST({"table": range(ROWS)}))
    assert not run_audit(step, lambda s, row, dense, _: row + dense, delta=0.3).refuted


def test_noise_only_on_touched_rows_is_caught() -> None:
    result = run_audit(step_reserver(EANA()), lambda survives, *_: float(survives), runs=400)
    assert result.refuted, str(result)


def test_dividing_by_the_realised_batch_size_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def spread(survives: bool, row: float, dense: float, idle: Tensor) -> float:
        return float(idle.square().mean())

    assert not run_audit(step_reserver(adafest()), spread, pair=(1, 2), runs=1000).refuted

    release = PrivateStep.release

    def realised(self: PrivateStep) -> StepGradient:
        examples = sum(piece.batch_size for piece in self._stored_pieces)
        self._rule = replace(self._rule, expected_batch_size=max(examples, 1))
        return release(self)

    monkeypatch.setattr(PrivateStep, "release", realised)
    result = run_audit(step_reserver(adafest()), spread, pair=(1, 2), runs=1000)
    assert result.refuted, str(result)


def test_one_example_moves_the_released_sum_by_at_most_the_clip() -> None:
    """Sensitivity on adversarial input: huge, tiny and repeated gradients, noise off."""
    for canaries in (0, 1, 2, 3):
        moved = []
        for more in (canaries, canaries + 1):
            step = stepper_without_noise()
            moved.append(step(more))
        distance = torch.linalg.vector_norm(moved[1] - moved[0])
        assert float(distance) <= 1.0


def stepper_without_noise() -> Callable[[int], Tensor]:
    model, batches = Canary(), list[Tensor]()
    private = sdp.PrivacyEngine(seed=1, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=batches,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        selection=sdp.FEST({"table": range(ROWS)}),
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )

    def step(canaries: int) -> Tensor:
        batches[:] = [torch.full((canaries,), 7)]
        for ids in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        grads = [parameter.grad for parameter in model.parameters()]
        return torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in grads if g is not None])

    return step
