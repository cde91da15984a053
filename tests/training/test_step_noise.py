"""The standard deviation of a step's noise, measured on every kind of parameter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selection

SIGMA, CLIP, BATCH, EXAMPLES = 0.7, 0.25, 12, 40


NUMBERS = 1 << 20
"""Of so many normals the standard deviation is off by more than 0.45% with probability below 1e-10."""


class Wide(nn.Module):
    """A million numbers of each kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, NUMBERS)
        self.norm = nn.LayerNorm(NUMBERS)
        self.chosen = nn.Embedding(2048, 1024, sparse=True)
        self.small = nn.Embedding(512, 2048, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.chosen(ids % 2048).sum(1) + self.small(ids % 512).sum(1)
        return self.norm(self.linear(rows[:, None] * 1e-3)).sum(1)


def assert_std(values: Tensor | np.ndarray, std: float, what: str) -> None:
    found = np.asarray(values, dtype=np.float64).ravel()
    assert found.size >= NUMBERS
    assert found.std() == pytest.approx(std, rel=0.0045), what
    assert abs(found.mean()) < 6.5 * std / math.sqrt(found.size), what


def wide_step(selection: Selection) -> tuple[sdp.PrivacyEngine, Wide]:
    """One step of noise alone: the loss is constant."""
    torch.manual_seed(0)
    model = Wide()
    engine = sdp.PrivacyEngine(seed=8, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(torch.arange(3)), batch_size=3),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=selection,
    )
    for (ids,) in private.data_loader:
        private.optimizer.zero_grad()
        (0.0 * private.module(ids)).mean().backward()
        private.optimizer.step()
    return engine, model


def test_the_standard_deviation_of_each_kind_of_parameter() -> None:
    """1% is noticed: over ten standard errors. Error rate below 1e-9 for all together."""
    std = SIGMA * CLIP / 3
    _, model = wide_step(sdp.FEST({"chosen": range(0, 2048, 2)}, always_on_rows=512))
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None
        assert_std(grad.coalesce().values() if grad.is_sparse else grad, std, name)


def test_the_standard_deviation_of_a_table_under_dense_dpsgd() -> None:
    std = SIGMA * CLIP / 3
    _, model = wide_step(sdp.DPSGD())
    for table in (model.chosen, model.small):
        assert table.weight.grad is not None
        assert_std(table.weight.grad, std, "dense")


@pytest.mark.parametrize("lazy", [False, True])
def test_the_standard_deviation_of_touched_rows(lazy: bool) -> None:
    """Rows that are read are drawn with their sums."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(600, 2048, sparse=True))
    before = model[0].weight.detach().clone()
    engine = sdp.PrivacyEngine(seed=9, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(torch.arange(512)), batch_size=512),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=sdp.DPSGD(lazy=lazy),
    )
    for (ids,) in private.data_loader:
        (0.0 * private.module(ids)).mean().backward()
        private.optimizer.step()
    engine.flush()
    moved = (model[0].weight.detach().clone() - before)[:512]
    assert_std(moved, 0.5 * SIGMA * CLIP / 512, "touched")


def test_the_standard_deviation_of_a_table_with_lazy_noise() -> None:
    torch.manual_seed(0)
    before = Wide()
    engine, model = wide_step(sdp.DPSGD(lazy=True))
    engine.flush()
    for name in ("chosen", "small"):
        moved = getattr(model, name).weight.detach().clone() - getattr(before, name).weight.detach()
        # Each write is rounded to a lattice near 1/128 of the noise, which adds 1e-5 of the variance.
        assert_std(moved, 0.5 * SIGMA * CLIP / 3, name)


def test_an_error_of_one_percent_is_noticed() -> None:
    draws = np.random.default_rng(0).standard_normal(NUMBERS)
    assert_std(draws, 1.0, "right")
    for wrong in (0.99, 1.01):
        with pytest.raises(AssertionError):
            assert_std(wrong * draws, 1.0, "wrong")
