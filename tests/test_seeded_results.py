"""What a seed gives, bit for bit, for each algorithm: a change of names or structure must not change it.

Gradients are powers of two, so that every processor computes the same sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.convex import private_sparse_mean
from sparsedp.selection import Selection


class Tables(nn.Module):
    """A large table, a small one and a dense parameter; the output is linear in all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Embedding(400, 4, sparse=True)
        self.small = nn.Embedding(8, 4, sparse=True)
        self.scale = nn.Linear(1, 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        return (4 * self.large(ids) + 2 * self.small(ids % 8)).sum(1) + self.scale(
            ids[:, None].float() * 0
        ).sum(1)


SELECTIONS: dict[str, tuple[Callable[[], Selection], str]] = {
    "DPSGD": (sdp.DPSGD, "37cefd67e1ad1ad7"),
    "DPSGD, lazy": (lambda: sdp.DPSGD(lazy=True), "b1b220651a1211d4"),
    "FEST": (lambda: sdp.FEST({"large": range(0, 400, 3)}, always_on_rows=10), "040efca00f117306"),
    "AdaFEST": (lambda: sdp.AdaFEST(always_on_rows=10), "74a4b6565e2e3f22"),
    "AdaFEST, threshold": (
        lambda: sdp.AdaFEST(noise_ratio=2.0, threshold=1.0, always_on_rows=0),
        "1441ef89bdf4ffc0",
    ),
    "AdaFEST within FEST": (
        lambda: sdp.AdaFEST(always_on_rows=10, within=sdp.FEST({"large": range(200)}, always_on_rows=10)),
        "368a6cf5d5b3485c",
    ),
    "ExponentialSelection": (
        lambda: sdp.ExponentialSelection(rows=5, selection_epsilon=1.0, score_cap=0.05, always_on_rows=10),
        "9dfeca5989e6b21e",
    ),
    "SparseVectorSelection": (
        lambda: sdp.SparseVectorSelection(
            rows=5, selection_epsilon=1.0, threshold=0.01, score_cap=0.05, always_on_rows=10
        ),
        "c3fa8e4c6077ac36",
    ),
    "RandomSelection": (lambda: sdp.RandomSelection(rows=20, always_on_rows=10), "dd269e95871b02aa"),
}


def digest(*arrays: np.ndarray) -> str:
    together = hashlib.sha256()
    for array in arrays:
        together.update(np.ascontiguousarray(array).tobytes())
    return together.hexdigest()[:16]


def trained(selection: Selection) -> str:
    model = Tables()
    engine = sdp.PrivacyEngine(seed=3, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset((torch.arange(256) ** 2) % 400), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
        loss_reduction="sum",
    )
    for (ids,) in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()
    return digest(*[value.numpy() for value in model.state_dict().values()])


@pytest.mark.parametrize("name", SELECTIONS)
def test_training(name: str) -> None:
    selection, expected = SELECTIONS[name]
    assert trained(selection()) == expected


MEANS = {"gaussian": "c7b3576467060e53", "projection": "b3e1420b7f35ef25", "auto": "38943711f1171964"}


@pytest.mark.parametrize("method", MEANS)
def test_means(method: str) -> None:
    """Rounded: the projections use the processor's own products."""
    rows = sparse.csr_array(np.eye(8, 64)[np.arange(200) % 8])
    found = private_sparse_mean(
        rows, epsilon=8.0, delta=1e-6, sparsity=1, l2_bound=1.0, method=method, source=sdp.NoiseSource(5)
    )
    assert digest(np.round(found.estimate, 6) + 0.0) == MEANS[method]
