"""What a step is: a model whose examples touch each other is refused, wherever they do."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loops import Net, loss_of, plain, points, refused, setting
from support.misuse import Trainer
from support.neighbours import Setting
from support.zoo import LENGTH, UNSOUND, WIDTH
from torch import Tensor, nn

from sparsedp.training import Private


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


class _Encoder(nn.Module):
    """Its layers drop out by default."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.first, self.layers, self.out = nn.Linear(3, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.first(x).unsqueeze(1).repeat(1, 5, 1))[:, 0])


class _Counted(Net):
    """A step counter is not data."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return super().forward(x)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(3, 2), nn.ModuleList(nn.Linear(3, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        return sum(weights[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts))


SEPARATE: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
    "functional dropout": lambda: nn.Sequential(nn.Linear(3, 4), _Dropout(), nn.Linear(4, 2)),
    "stochastic depth": lambda: nn.Sequential(nn.Linear(3, 4), _DropPath(), nn.Linear(4, 2)),
    "noise, in evaluation too": lambda: Net(lambda _, h: h + torch.randn_like(h)),
    "encoder": _Encoder,
    "counter": _Counted,
    "experts": _Experts,
}


@pytest.mark.parametrize("name", SEPARATE)
def test_models_that_keep_examples_apart_are_not_refused(name: str) -> None:
    outcome = setting(SEPARATE[name]).run(plain)
    assert outcome.error is None
    assert len(outcome.sums) == 3


def test_a_forward_on_other_data_in_training_mode_is_nobodys_business() -> None:
    """Positions of shape (1, T) are repeated for each example of this call, not of the batch in hand."""

    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            where = self.places(torch.arange(5).unsqueeze(0))
            return self.out(torch.tanh(x.unsqueeze(1) + where)).sum(1)

    def looks_around(private: Private) -> None:
        for (x,) in private.data_loader:
            private.module(points()[:5])
            loss_of(private.module(x)).backward()
            private.optimizer.step()

    assert setting(Placed).run(looks_around).error is None
