"""What a step is: a model whose examples touch each other is refused, wherever they do."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loops import Net, plain, points, refused, setting
from support.misuse import Trainer
from support.neighbours import Setting
from support.zoo import LENGTH, UNSOUND, WIDTH
from torch import Tensor, nn


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("physical", [None, 2, 3])
@pytest.mark.parametrize("model", UNSOUND)
def test_models_that_mix_examples_are_refused(model: str, physical: int | None, poisson: bool) -> None:
    if physical and not poisson:
        pytest.skip("pieces need Poisson batches")
    ids, features = torch.randint(0, 9, (LENGTH, LENGTH)), torch.randn(LENGTH, LENGTH, WIDTH)
    loop = Trainer(["plain"] * 3, scale=10.0)
    given = setting(
        UNSOUND[model],
        data=[ids, features],
        batches=[range(LENGTH)] * 3,
        poisson=poisson,
        options={"physical_batch_size": physical},
    )
    assert refused(given, loop)


def test_an_example_that_is_not_finite_does_not_hide_the_others_mixing() -> None:
    x = points()
    x[-1] = float("nan")
    mixing = setting(lambda: Net(lambda _, h: h - h.sum(0)), data=[x], batches=[range(8), range(8), range(7)])
    outcome = mixing.run(plain)
    assert outcome.error is not None
    assert 2 not in outcome.sums


class _Normalised(nn.Module):
    """A batch norm of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, h: Tensor) -> Tensor:
        return F.batch_norm(h, self.mean, self.variance, training=self.training)


class _Dropout(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.1, self.training)


class _DropPath(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (torch.rand(len(h), 1) + 0.5) if self.training else h


class _Swapped(torch.autograd.Function):
    """Only its backward mixes."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad + 5 * grad.flip(0)


class _Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(50, 4, mode="sum"), nn.Linear(4, 2)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        h = self.table(*batch)
        return self.out(h - h.sum(0))


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, batch: UserDict[str, Tensor]) -> Tensor:
        h = self.first(batch["x"])
        return self.out(h - h.sum(0))


def _offsets(items: list[Any]) -> tuple[tuple[Tensor, Tensor]]:
    return ((torch.cat([ids for (ids,) in items]), torch.arange(len(items)) * 3),)


MIXES: dict[str, Callable[[], Setting]] = {
    "own batch norm beside functional dropout": lambda: setting(
        lambda: nn.Sequential(nn.Linear(3, 4), _Normalised(), _Dropout(), nn.Linear(4, 2))
    ),
    "own batch norm beside stochastic depth": lambda: setting(
        lambda: nn.Sequential(nn.Linear(3, 4), _DropPath(), _Normalised(), nn.Linear(4, 2))
    ),
    "in backward only": lambda: setting(lambda: Net(lambda _, h: _Swapped.apply(h))),
    "bags with offsets": lambda: setting(
        _Bags, data=[torch.randint(0, 50, (8, 3))], loader={"collate_fn": _offsets}
    ),
    "a batch of a type of its own": lambda: setting(
        _Named, loader={"collate_fn": lambda items: (UserDict(x=torch.stack([x for (x,) in items])),)}
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_mixing_is_found_where_it_hides(name: str) -> None:
    assert refused(MIXES[name]())
