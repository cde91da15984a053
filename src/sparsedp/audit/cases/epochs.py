"""One epoch by Poisson sampling, and the same by shuffled batches with the price of Poisson sampling, which is refuted.

Poisson sampling leaves an example out of the whole epoch with probability ``(1 - q)^(1/q)``; shuffling never does. So at a
delta above the chance of being in at all, Poisson sampling costs nothing, and shuffling is caught.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch.utils.data import DataLoader, TensorDataset

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.statement import ZERO_OUT
from sparsedp.audit.canary_run import CanaryEngine
from sparsedp.audit.case import Case, Claim, new_seed
from sparsedp.audit.cases.steps import READ, ROWS, CanaryModel
from sparsedp.randomness import Stream
from sparsedp.selection import FEST
from sparsedp.training import PrivacyEngine

BATCHES, SIGMA, DELTA, RUNS = 4, 0.1, 0.7, 300
_OTHER = 3
"""The row that all other examples read."""


@dataclass(frozen=True)
class Epochs:
    """So many epochs of ``BATCHES`` steps on one canary, or none, and as many other examples."""

    is_shuffled: bool

    def __call__(self, canaries: int, stream: Stream, runs: int) -> NDArray[np.float64]:
        """One score an epoch: the log-likelihood ratio, but for a constant."""
        model = CanaryModel(row=1.0, dense=0.0)
        data = TensorDataset(torch.tensor([_OTHER, *[READ] * canaries, *[_OTHER] * (BATCHES - 2)]))
        shuffled = list[list[torch.Tensor]]()
        engine = (
            PrivacyEngine(secure=False, seed=new_seed(stream))
            if self.is_shuffled
            else CanaryEngine(BATCHES, new_seed(stream))
        )
        private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            data_loader=shuffled if self.is_shuffled else DataLoader(data, batch_size=1),
            noise_multiplier=SIGMA,
            max_grad_norm=1.0,
            selection=FEST({"table": range(ROWS)}),
            expected_batch_size=1,
            poisson=not self.is_shuffled,
            loss_reduction="sum",
        )
        found = np.empty((runs, BATCHES))
        for run in range(runs):
            if self.is_shuffled:
                # Everybody is in one batch; where the canary is missing, its place is empty.
                order = stream.permutation(BATCHES)
                shuffled[:] = [[data.tensors[0][at : at + 1]] for at in order]
            for step, (ids,) in enumerate(private.data_loader):
                private.optimizer.zero_grad()
                private.module(ids).sum().backward()
                private.optimizer.step()
                grad = model.table.weight.grad
                assert grad is not None
                found[run, step] = float(grad.to_dense()[READ])
        engine.detach()
        ratio: NDArray[np.float64] = logsumexp((found - 0.5) / SIGMA**2, axis=1)
        return ratio


def cases() -> list[Case]:
    """The right form and its control."""

    def claim(adjacency: str) -> Claim:
        event = PoissonSampledDpEvent(1 / BATCHES, GaussianDpEvent(SIGMA))
        epsilon = epsilon_of([(event, BATCHES)], DELTA)
        return Claim(epsilon, DELTA, "every step's gradient", adjacency)

    what = "the likelihood that the example was in one of an epoch's four batches"
    return [
        Case(
            "an epoch of Poisson batches",
            "step",
            lambda: claim("add-or-remove-one"),
            Epochs(is_shuffled=False),
            (0, 1),
            RUNS,
            what,
        ),
        Case(
            "an epoch of shuffled batches, priced as Poisson",
            "step",
            lambda: claim(ZERO_OUT),
            Epochs(is_shuffled=True),
            (0, 1),
            RUNS,
            what,
            is_control=True,
        ),
    ]
