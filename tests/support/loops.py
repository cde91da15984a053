"""A small model, its training loop, and how far one example moves its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private
from support.contract import check_refusal
from support.neighbours import Loop, Setting, moves


class Net(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)
        self.between = between or (lambda _, h: h)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.between(self, torch.tanh(self.first(x))))


def points(examples: int = 8) -> Tensor:
    """Example 0 is far away from the others."""
    x = 3 * torch.randn(examples, 3, generator=torch.Generator().manual_seed(1))
    x[0] *= 20
    return x


def setting(model: Callable[[], nn.Module] = Net, **changes: Any) -> Setting:
    chosen = {"model": model, "data": [points()], "batches": [range(8)] * 3} | changes
    return Setting(**chosen)


def loss_of(output: Tensor) -> Tensor:
    output = output.flatten(1)
    return 10 * (output * torch.linspace(1, 3, output.shape[1])).sin().sum(1).mean()


def plain(private: Private) -> None:
    for (x,) in private.data_loader:
        private.optimizer.zero_grad()
        loss_of(private.module(x)).backward()
        private.optimizer.step()


def largest_move(setting: Setting, loop: Loop = plain) -> float:
    """Over all steps, and as the far example or an ordinary one leaves; 0 where the use is refused by us."""
    found = [0.0]
    for example in (0, 3):
        try:
            found += moves(setting, loop, example)
        except (ValueError, RuntimeError) as error:
            check_refusal(error)
    return max(found)


def refused(setting: Setting, loop: Loop = plain) -> str:
    """The message with which every step is refused."""
    outcome = setting.run(loop)
    assert not outcome.sums
    assert outcome.error is not None
    check_refusal(outcome.error)
    return str(outcome.error)


def make(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> Private:
    """A private model, with noise, on ``points()``."""
    chosen: dict[str, Any] = {
        "data_loader": DataLoader(TensorDataset(points()), batch_size=4),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "optimizer": optimizer or torch.optim.SGD(model.parameters(), lr=0.1),
    } | options
    return sdp.PrivacyEngine().make_private(module=model, **chosen)
