"""FEST with lazy noise: the law of FEST, on the chosen rows alone, and nothing leaves before its noise is in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.audit import AuditResult, audit
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.training import Private
from sparsedp.training.batch import clip_share

STEPS, ROWS, SIGMA, CLIP = 5, 400, 1.0, 1.0
CHOSEN = [*range(5), *range(10, 400, 2)]
"""Half of the ten rows that the examples read, and half of the others."""
F64 = NDArray[np.float64]


class Rows(nn.Module):
    """A table of which every example reads one row, and a small one that is always on."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self.table, self.small = nn.Embedding(rows, 3, sparse=True), nn.Embedding(7, 3, sparse=True)
        for table in (self.table, self.small):
            nn.init.zeros_(table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.table(ids) + self.small(ids % 2)).sum(dim=1)


def fest(lazy: bool, rows: Sequence[int] = CHOSEN) -> sdp.FEST:
    return sdp.FEST({"table": rows}, always_on_rows=10, lazy=lazy)


def start(selection: sdp.selection.Selection, seed: int = 0) -> tuple[sdp.PrivacyEngine, Private]:
    model, engine = Rows(), sdp.PrivacyEngine(seed=seed, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(torch.arange(20) % 10), batch_size=20),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=selection,
        loss_reduction="sum",
    )
    return engine, private


def train(selection: sdp.selection.Selection, seed: int = 0) -> tuple[sdp.PrivacyEngine, Private]:
    engine, private = start(selection, seed)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(private.optimizer, 0.7)
    for _ in range(STEPS):
        for (ids,) in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        scheduler.step()
    return engine, private


def final(selection: sdp.selection.Selection, seed: int = 0) -> dict[str, F64]:
    state = train(selection, seed)[1].module.state_dict()
    return {name: values.double().numpy() for name, values in state.items()}


def test_the_final_model_has_the_law_of_fest() -> None:
    """Untouched rows: N(0, (sigma C / B)^2 sum lr^2) under a schedule; touched rows the same about their mean.

    An example's joint norm is over the chosen rows and the small table: sqrt(6) in, sqrt(3) outside the set.
    Each comparison at 1e-8; a wrong sum of learning rates is rejected, and so is 15% more or less noise.
    """
    rates = 0.5 * 0.7 ** np.arange(STEPS)
    std = SIGMA * CLIP / 20 * np.sqrt(np.sum(rates**2))
    drift = -np.sum(rates) * 2 * clip_share(20) / np.sqrt(6) / 20
    wrong = np.sqrt(np.sum(rates) ** 2 / np.sum(rates**2))
    for lazy in (False, True):
        parts: dict[str, list[F64]] = {"touched": [], "untouched": [], "small": []}
        for seed in range(12):
            found = final(fest(lazy), seed)
            table = found["table.weight"]
            outside = np.setdiff1d(np.arange(ROWS), CHOSEN)
            assert not table[outside].any()
            parts["touched"].append(table[:5] - drift)
            parts["untouched"].append(table[CHOSEN[5:]])
            parts["small"].append(found["small.weight"][2:])
        for values in parts.values():
            assert stats.kstest(np.concatenate(values).ravel() / std, "norm").pvalue > 1e-8
        untouched = np.concatenate(parts["untouched"]).ravel() / std
        for factor in (1 / wrong, 0.85, 1 / 0.85):
            assert stats.kstest(untouched * factor, "norm").pvalue < 1e-8


def test_with_every_row_chosen_it_is_lazy_dpsgd_to_the_last_bit() -> None:
    every = sdp.FEST({"table": range(ROWS), "small": range(7)}, lazy=True)
    first, second = final(every, seed=3), final(sdp.DPSGD(lazy=True), seed=3)
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name


def test_without_noise_it_is_fest_to_the_rounding() -> None:
    """The same gradients reach the same rows."""
    ends = []
    for lazy in (False, True):
        model, engine = Rows(), sdp.PrivacyEngine(seed=1, secure=False)
        private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(TensorDataset(torch.arange(60) % 30), batch_size=20),
            noise_multiplier=0.0,
            max_grad_norm=CLIP,
            selection=fest(lazy),
            physical_batch_size=8,
        )
        for (ids,) in private.data_loader:
            private.module(ids).square().sum().backward()
            private.optimizer.step()
        ends.append(model.state_dict())
    for name, values in ends[0].items():
        assert torch.allclose(values, ends[1][name], rtol=1e-6, atol=1e-9), name


def standing(engine: sdp.PrivacyEngine) -> Tensor:
    """The table as it stands, its pending noise not applied."""
    with engine.session.without_pending_noise():
        return engine.session.module.table.weight.detach().clone()  # type: ignore[union-attr, operator]


def test_chosen_rows_owe_and_are_paid_before_anything_leaves() -> None:
    engine, private = train(fest(lazy=True))
    unpaid = standing(engine)
    assert unpaid[:5].all()  # touched at every step, noise and all
    assert not unpaid[5:].any()  # still owed, or never trained
    assert private.module.table.weight.grad is None
    assert engine.statement(1e-5).released == "the final model only"
    with torch.no_grad():
        private.module.eval()
        private.module(torch.tensor([10, 11, 12]))
    paid = standing(engine)
    assert paid[[10, 12]].all()
    assert not paid[11].any()
    weight = private.module.state_dict()["table.weight"]
    assert np.array_equal(np.flatnonzero(weight.any(dim=1)), CHOSEN)
    assert engine.session.lazy is not None
    assert not engine.session.lazy.has_pending_noise


def test_a_step_counts_the_chosen_rows_as_its_gradient() -> None:
    """Their noise is pending, which is not free of privacy; the same size as without lazy noise."""
    for lazy in (False, True):
        _, private = train(fest(lazy))
        last = private.optimizer.last_step
        assert last is not None
        assert last.rows_per_table == {"table": len(CHOSEN), "small": 7}
        assert last.gradient_size == 3 * (len(CHOSEN) + 7)


def test_state_is_of_the_chosen_rows_alone_and_only_once_they_are_known() -> None:
    counts = {"table": np.arange(ROWS, 0, -1.0)}
    selection = sdp.FEST.private_top_k(counts, 50, mu=1.0, always_on_rows=10, lazy=True)
    engine, private = start(selection)
    assert engine.session.lazy is not None
    assert all(not pending["applied"].numel() for pending in engine.session.lazy.state_dict().values())
    next(iter(private.data_loader))
    state = engine.session.lazy.state_dict()
    assert {name: pending["applied"].numel() for name, pending in state.items()} == {"table": 50, "small": 7}
    assert engine.session.selection.lazy


def test_public_counts_may_be_lazy_and_adafest_plus_may_not() -> None:
    chosen = sdp.FEST.from_public_counts({"table": np.arange(9.0)}, 3, lazy=True)
    assert chosen.lazy
    assert chosen.sorted_rows["table"].tolist() == [6, 7, 8]
    for within in (chosen, sdp.FEST.private_top_k({}, 5, lazy=True)):
        with pytest.raises(ValueError, match=r"within: .*without lazy=True"):
            sdp.AdaFEST(within=within)


@pytest.mark.parametrize("option", ["momentum", "weight_decay"])
def test_anything_but_plain_sgd_is_refused(option: str) -> None:
    model = Rows()
    with pytest.raises(ValueError, match=r"plain SGD|weight_decay"):
        sdp.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5, **{option: 0.1}),
            data_loader=DataLoader(TensorDataset(torch.arange(20)), batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=fest(lazy=True),
        )


def run_audit(flushed: bool, runs: int, noise_multiplier: float) -> AuditResult:
    """One step: nobody, or one example that alone reads row 7 of the chosen ones.

    Released is the table; the statistic looks for the row itself, and for its gradient. Error rate at most 1e-9.
    """
    model, batches = Rows(rows=30), list[Tensor]()
    engine = sdp.PrivacyEngine(seed=5, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=batches,
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        selection=fest(lazy=True, rows=range(5, 25)),
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )
    before: list[F64] = []

    def released() -> F64:
        table = model.state_dict()["table.weight"] if flushed else standing(engine)
        return np.concatenate([table.numpy().copy(), model.small.weight.detach().numpy().copy()])

    def one_run(canaries: int) -> float:
        batches[:] = [torch.full((canaries,), 7)]
        before.append(released())
        for ids in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        moved = released() - before.pop()
        return float(-moved[[7, 31]].sum() + 100.0 * (moved[7].any() and not moved[8].any()))

    def mechanism(canaries: int, stream: Stream, runs: int) -> list[float]:
        return [one_run(canaries) for _ in range(runs)]

    claimed = analytic_gaussian_epsilon(0.02, 1 / noise_multiplier)
    return audit(mechanism, (0, 1), runs=runs, delta=0.02, claimed=claimed, stream=NoiseSource(0).selection)


def test_audit_and_a_table_that_is_not_flushed_as_positive_control() -> None:
    kept = run_audit(flushed=True, runs=300, noise_multiplier=0.5)
    assert not kept.refuted, str(kept)
    assert kept.lower_bound > 0.2, "an audit that sees nothing proves nothing"
    control = run_audit(flushed=False, runs=150, noise_multiplier=2.0)
    assert control.refuted, str(control)
