"""A small click model, made private and trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private
from support.models import TwoTables


def clicks(examples: int = 200) -> DataLoader:  # type: ignore[type-arg]
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack(
        [torch.randint(0, high, (examples,), generator=generator) for high in (300, 7)],
        dim=1,
    )
    return DataLoader(TensorDataset(ids, (ids[:, 1] % 2).float()), batch_size=20)


def make(
    model: nn.Module | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    engine: sdp.PrivacyEngine | None = None,
    **options: object,
) -> tuple[sdp.PrivacyEngine, Private]:
    model = model or TwoTables()
    engine = engine or sdp.PrivacyEngine()
    chosen: dict = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "selection": sdp.AdaFEST(always_on_rows=10, false_positives=5),
        "data_loader": clicks(),
    } | options
    return engine, engine.make_private(
        module=model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1), **chosen
    )


def train(private: Private, steps: int) -> None:
    goal = private.optimizer.steps_taken + steps
    while True:
        for ids, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(ids), label).backward()
            private.optimizer.step()
            if private.optimizer.steps_taken == goal:
                return
