"""Row canaries: attacks on selection over a whole training. Each canary alone reads one rare row of a table.

One training (``CanaryTraining``) with half of the rare ids in the data, by coins; the attacker scores each by how often its
row got a gradient, and by the gradients along its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import DpEvent, PoissonSampledDpEvent
from sparsedp.audit.canary_run import CanaryData, CanaryTraining
from sparsedp.audit.eana import EANA
from sparsedp.audit.faulty import RememberedReads
from sparsedp.audit.one_run_case import OneRunCase
from sparsedp.randomness import Stream
from sparsedp.selection import (
    DPSGD,
    FEST,
    AdaFEST,
    ExponentialSelection,
    RandomSelection,
    Selection,
    SparseVectorSelection,
)

CANARIES, FILLERS = 4000, 200
STEPS, RATE, SIGMA, DELTA = 40, 0.25, 2.0, 1e-8


class RareRows(nn.Module):
    """A table of which every example reads one row; its gradient is constant, and clipped."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """100 times the row."""
        read: Tensor = self.table(ids).squeeze(1)
        return 100.0 * read


def _losses(module: nn.Module, batch: Any) -> Tensor:
    found: Tensor = module(batch[0])
    return found


def rare_rows(selection: Selection, canaries: int, **changed: Any) -> CanaryTraining:
    """Canary ``n`` alone reads row ``n``; the fillers read ten rows more, and as many again are read by nobody."""
    fillers = canaries + torch.arange(FILLERS) % 10
    training = CanaryTraining(
        data=CanaryData((fillers,), (torch.arange(canaries),)),
        model=partial(RareRows, canaries + 20),
        losses=_losses,
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=1.0),
        steps=STEPS,
        sampling_rate=RATE,
        max_grad_norm=1.0,
        selection=selection,
        noise_multiplier=SIGMA,
        view="final model" if selection.lazy else "every step",
        canary_rows={"table": np.arange(canaries)},
    )
    return replace(training, **changed)


def cases() -> list[OneRunCase]:
    """Every selection, and the controls that selection's faults are."""
    scored: dict[str, Any] = {"rows": 2000, "selection_epsilon": 0.01, "score_cap": 0.1, "always_on_rows": 0}
    map_: dict[str, Any] = {"noise_ratio": 1.0, "always_on_rows": 0, "contribution_norm": 1.0}
    memory: dict[str, Any] = {"memory_steps": 8, "memory_every": 2}

    def whole(canaries: int, **options: Any) -> CanaryTraining:
        return rare_rows(FEST({"table": range(canaries + 20)}, **options), canaries)

    def of(selection: Selection) -> Callable[[int], CanaryTraining]:
        return partial(rare_rows, selection)

    def plus(canaries: int) -> CanaryTraining:
        within = FEST({"table": range(canaries + 10)})
        return rare_rows(
            AdaFEST(noise_ratio=1.0, contribution_norm=1.0, threshold=1.0, within=within), canaries
        )

    def private_top_k(canaries: int) -> CanaryTraining:
        """Half of the rows, by a noisy count of who reads them, which is a part of the claim."""

        def chosen(loader: Any, _: Stream) -> Selection:
            return FEST.private_top_k(loader, canaries // 2, mu=0.5, always_on_rows=0)

        return replace(rare_rows(DPSGD(), canaries), selection=chosen)

    listed: list[tuple[str, Callable[[int], CanaryTraining]]] = [
        ("DP-SGD", of(DPSGD())),
        ("DP-SGD, lazy noise", of(DPSGD(lazy=True))),
        ("DP-FEST", whole),
        ("DP-FEST, lazy noise", partial(whole, lazy=True)),
        ("DP-FEST, rows in turns", partial(whole, update_every=4)),
        ("DP-FEST, private top-k", private_top_k),
        ("DP-AdaFEST", of(AdaFEST(**map_, threshold=1.0))),
        ("DP-AdaFEST+", plus),
        ("DP-AdaFEST with memory", of(AdaFEST(**map_, **memory, threshold=3.0))),
        ("random selection", of(RandomSelection(rows=2000, always_on_rows=0))),
        ("exponential selection", of(ExponentialSelection(**scored))),
        ("sparse-vector selection", of(SparseVectorSelection(**scored, threshold=-10.0))),
    ]
    what = "how often the row of a rare id was trained, its gradients, its loss"
    right = [
        OneRunCase(f"{name}, rare rows over a training", "training", training, DELTA, what, CANARIES)
        for name, training in listed
    ]
    return [*right, *_controls(map_ | memory)]


def _controls(map_: dict[str, Any]) -> list[OneRunCase]:
    def unflushed(canaries: int) -> CanaryTraining:
        return rare_rows(
            DPSGD(lazy=True), canaries, view="final model, pending noise not applied", noise_multiplier=4.0
        )

    def control(
        name: str, training: Callable[[int], CanaryTraining], what: str, sigma: float = SIGMA
    ) -> OneRunCase:
        claimed = partial(_price, DPSGD().step_event(sigma))
        return OneRunCase(name, "training", training, DELTA, what, CANARIES, claimed, is_control=True)

    return [
        control(
            "EANA, rare rows over a training",
            partial(rare_rows, EANA(), noise_multiplier=4.0),
            "which rows ever got a gradient",
            4.0,
        ),
        control(
            "a memory of reads, rare rows over a training",
            partial(rare_rows, RememberedReads(**map_, threshold=3.0), noise_multiplier=4.0),
            "how often the row of a rare id was trained",
            4.0,
        ),
        control(
            "lazy noise that is not flushed, rare rows over a training",
            unflushed,
            "which rows of the final table moved",
            4.0,
        ),
    ]


def _price(event: DpEvent) -> float:
    return epsilon_of([(PoissonSampledDpEvent(RATE, event), STEPS)], DELTA)
