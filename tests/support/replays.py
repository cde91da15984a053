"""Short whole trainings for record and replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selection
from sparsedp.training import Private
from sparsedp.training.rowwise_adagrad import RowWiseAdagrad

EXAMPLES, ROWS, SMALL = 40, 2000, 50
EXAMPLE = 17
SelectionOf = Callable[[Any], Selection]

SELECTIONS: dict[str, SelectionOf] = {
    "DPSGD": lambda data: sdp.DPSGD(),
    "lazy": lambda data: sdp.DPSGD(lazy=True),
    "FEST of public rows": lambda data: sdp.FEST({"large": range(0, ROWS, 3)}),
    "FEST": lambda data: sdp.FEST.private_top_k(DataLoader(data, batch_size=20), 100, mu=0.5),
    "AdaFEST": lambda data: sdp.AdaFEST(noise_ratio=1.0, false_positives=20),
    "AdaFEST, clipped map": lambda data: sdp.AdaFEST(contribution_norm=0.5, always_on_rows=0),
    "AdaFEST+": lambda data: sdp.AdaFEST(
        within=sdp.FEST.private_top_k(DataLoader(data, batch_size=20), 300, mu=0.5)
    ),
    "lazy FEST": lambda data: sdp.FEST({"large": range(0, ROWS, 3)}, lazy=True),
    "AdaFEST with memory": lambda data: sdp.AdaFEST(
        noise_ratio=1.0, false_positives=20, memory_steps=5, memory_every=2
    ),
    "exponential": lambda data: sdp.ExponentialSelection(rows=20, selection_epsilon=0.1, score_cap=0.1),
    "exponential coordinates": lambda data: sdp.ExponentialSelection(
        rows=None, coordinates=20, selection_epsilon=0.1, score_cap=0.1
    ),
    "exponential, clipped mean": lambda data: sdp.ExponentialSelection(
        rows=20, selection_epsilon=0.1, score_cap=0.1, batch_clip=0.03
    ),
    "sparse vector": lambda data: sdp.SparseVectorSelection(
        rows=20, selection_epsilon=0.1, score_cap=0.1, threshold=0.01
    ),
    "FEST in turns": lambda data: sdp.FEST.private_top_k(
        DataLoader(data, batch_size=20), 100, mu=0.5, update_every=3
    ),
    "FEST of public rows in turns": lambda data: sdp.FEST({"large": range(0, ROWS, 3)}, update_every=3),
    "random": lambda data: sdp.RandomSelection(rows=100),
}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "sparse adam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "row-wise adagrad": lambda parameters: RowWiseAdagrad(parameters, lr=0.1),
}


class Clicks(nn.Module):
    """A large table, a small one and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Embedding(ROWS, 4, sparse=True)
        self.small = nn.Embedding(SMALL, 4, sparse=True)
        self.hidden, self.out = nn.Linear(8, 3), nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        both = torch.cat([self.large(ids[:, 0]), self.small(ids[:, 1])], dim=1)
        return self.out(torch.tanh(self.hidden(both))).squeeze(1)


def clicks(seed: int = 0) -> TensorDataset:
    """Targets so far away that every example is clipped."""
    random = torch.Generator().manual_seed(seed)
    large = torch.randint(0, ROWS, (EXAMPLES,), generator=random)
    small = torch.randint(0, SMALL, (EXAMPLES,), generator=random)
    return TensorDataset(torch.stack([large, small], 1), 30 * torch.randn(EXAMPLES, generator=random))


def one_pass(private: Private) -> None:
    """An epoch of the usual loop."""
    for ids, target in private.data_loader:
        private.optimizer.zero_grad()
        (private.module(ids) - target).square().mean().backward()
        private.optimizer.step()


@dataclass
class Training:
    """A whole training, as ``replay`` takes it."""

    selection: SelectionOf = SELECTIONS["AdaFEST"]
    optimizer: str = "sgd"
    table_lr: float | None = None
    loop: Callable[[Private], None] = one_pass
    epochs: int = 2
    checkpoint: Path | None = None
    """Save here after the first epoch, and resume in a new engine with new objects."""
    options: dict[str, Any] = field(default_factory=dict)
    flush: bool = False
    """Flush at the end."""
    users: Callable[[], sdp.UserSampler] | None = None
    """Who the rows belong to, where the unit is the user."""

    def __call__(self, data: Any) -> Any:
        engine, private = self._start(data)
        for epoch in range(self.epochs):
            self.loop(private)
            if self.checkpoint is not None and epoch == 0:
                engine.save(self.checkpoint)
                engine.detach()
                engine, private = self._start(data)
                engine.resume(self.checkpoint)
        if self.flush:
            engine.flush()
        statement = engine.statement(delta=1e-5)
        engine.detach()
        return dict(private.module.state_dict()), str(statement)

    def _start(self, data: Any) -> tuple[sdp.PrivacyEngine, Private]:
        torch.manual_seed(0)
        model = Clicks()
        tables = OPTIMIZERS[self.optimizer]([model.large.weight, model.small.weight])
        if self.table_lr is not None:
            tables.param_groups[0]["lr"] = self.table_lr
        dense = torch.optim.SGD([*model.hidden.parameters(), *model.out.parameters()], lr=0.1)
        engine = sdp.PrivacyEngine(seed=7)  # what is drawn without data is then the same in both runs
        chosen = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | self.options
        loader = DataLoader(data, batch_size=10, sampler=None if self.users is None else self.users())
        selection = self.selection(data)
        return engine, engine.make_private(
            module=model, optimizer=[tables, dense], data_loader=loader, selection=selection, **chosen
        )
