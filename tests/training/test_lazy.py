"""Lazy noise: the same law as dense DP-SGD, and nothing leaves before its noise is in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp

STEPS, ROWS, SIGMA, CLIP = 5, 400, 1.0, 1.0


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 3, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(dim=1)


def train(
    selection: sdp.selection.Selection, seed: int, schedule: bool = True
) -> tuple[Rows, sdp.PrivacyEngine]:
    model = Rows()
    data = TensorDataset(torch.arange(20) % 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine = sdp.PrivacyEngine(seed=seed, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=20),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=selection,
        loss_reduction="sum",
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(private.optimizer, 0.7 if schedule else 1.0)
    for _ in range(STEPS):
        for (ids,) in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        scheduler.step()
    return model, engine


def test_the_final_model_has_the_law_of_dense_dpsgd() -> None:
    """Untouched rows: N(0, (sigma C / B)^2 sum lr^2) under a schedule; touched rows the same about their mean.

    Each comparison at 1e-8; a wrong sum of learning rates is rejected.
    """
    rates = 0.5 * 0.7 ** np.arange(STEPS)
    std = SIGMA * CLIP / 20 * np.sqrt(np.sum(rates**2))
    drift = -np.sum(rates) * 2 * (1 - 2.0**-10) / np.sqrt(3) / 20
    for selection in (sdp.DPSGD(), sdp.DPSGD(lazy=True)):
        untouched, touched = [], []
        for seed in range(30):
            weight = train(selection, seed)[0].state_dict()["table.weight"].numpy()
            untouched.append(weight[10:])
            touched.append(weight[:10] - drift)
        for values in (np.concatenate(untouched).ravel(), np.concatenate(touched).ravel()):
            assert stats.kstest(values / std, "norm").pvalue > 1e-8
        wrong = np.sqrt(np.sum(rates) ** 2 / np.sum(rates**2))
        assert stats.kstest(np.concatenate(untouched).ravel() / std / wrong, "norm").pvalue < 1e-8


def test_debts_are_paid_before_anything_leaves() -> None:
    model, engine = train(sdp.DPSGD(lazy=True), 0)
    assert float((model.table.weight.detach()[10:] == 0).float().mean()) == 1.0  # still owed
    assert model.table.weight.grad is None  # an un-noised gradient does not stay where somebody may look
    state = model.state_dict()
    assert float((state["table.weight"][10:] == 0).float().mean()) < 0.05
    assert not engine.run.lazy.owes  # type: ignore[union-attr]


def test_evaluation_reads_rows_with_their_noise() -> None:
    model, _ = train(sdp.DPSGD(lazy=True), 0)
    model.eval()
    with torch.no_grad():
        assert float(model(torch.arange(50, 60)).abs().min()) > 0
    assert float(model.table.weight[50:60].abs().min()) > 0


def test_detach_pays_too() -> None:
    model, engine = train(sdp.DPSGD(lazy=True), 0)
    engine.detach()
    assert float((model.table.weight.detach() == 0).float().mean()) < 0.05


def test_the_statement_says_final_model_only() -> None:
    _, engine = train(sdp.DPSGD(lazy=True), 0)
    assert engine.statement(1e-5).released == "the final model only"


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_other_optimisers_are_refused(optimizer: object) -> None:
    model = Rows()
    with pytest.raises(ValueError, match=r"plain SGD|weight_decay"):
        sdp.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer(model.parameters()),  # type: ignore[operator]
            data_loader=DataLoader(TensorDataset(torch.arange(20)), batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=sdp.DPSGD(lazy=True),
        )
