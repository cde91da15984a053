"""Every kind of layer with every part of it frozen, called in every way: the gradients of the reference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(3))


def reals(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


LAYERS: dict[str, tuple[Callable[[], nn.Module], str, Tensor]] = {
    "linear": (lambda: nn.Linear(4, 3), "input", reals(5, 4)),
    "linear on a sequence": (lambda: nn.Linear(4, 3), "input", reals(5, 6, 4)),
    "linear on a grid": (lambda: nn.Linear(4, 3), "input", reals(5, 2, 3, 4)),
    "long linear": (lambda: nn.Linear(3, 2), "input", reals(4, 40, 3)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), "input", reals(3, 4, 11)),
    "conv2d": (lambda: nn.Conv2d(2, 4, (2, 3), stride=(1, 2), padding=(1, 0)), "input", reals(3, 2, 5, 6)),
    "grouped conv": (lambda: nn.Conv2d(4, 8, 2, groups=2, dilation=(2, 1)), "input", reals(3, 4, 5, 6)),
    "layer norm": (lambda: nn.LayerNorm((3, 4), eps=0.1), "input", reals(5, 2, 3, 4)),
    "rms norm": (lambda: nn.RMSNorm((3, 4), eps=0.1), "x", reals(5, 2, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4, eps=0.1), "input", reals(5, 4, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, eps=0.1, affine=True), "input", reals(5, 4, 3, 2)),
    "embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), "input", ids(6)),
    "embedding of words": (lambda: nn.Embedding(7, 3, padding_idx=2), "input", ids(6, 5)),
    "embedding on a grid": (lambda: nn.Embedding(7, 3), "input", ids(4, 3, 2)),
    "bag, mean": (lambda: nn.EmbeddingBag(7, 3, mode="mean", padding_idx=2), "input", ids(6, 5)),
    "bag, sum": (lambda: nn.EmbeddingBag(7, 3, mode="sum"), "input", ids(6, 5)),
    "lstm": (lambda: nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), "input", reals(3, 5, 4)),
    "gru": (lambda: nn.GRU(4, 3, bidirectional=True, batch_first=True), "input", reals(3, 5, 4)),
    "rnn": (lambda: nn.RNN(4, 3, 2, nonlinearity="relu", batch_first=True), "input", reals(3, 5, 4)),
    "rnn without bias": (lambda: nn.RNN(4, 3, bias=False, batch_first=True), "input", reals(3, 5, 4)),
    "lstm cell": (lambda: nn.LSTMCell(4, 3), "input", reals(5, 4)),
    "gru cell": (lambda: nn.GRUCell(4, 3), "input", reals(5, 4)),
    "rnn cell": (lambda: nn.RNNCell(4, 3), "input", reals(5, 4)),
    "attention": (lambda: Attention(), "x", reals(3, 5, 4)),
    "attention to others": (lambda: Attention(kdim=3, vdim=2), "x", reals(3, 5, 4)),
    "own parameters": (lambda: Own(), "x", reals(5, 4)),
}


class Attention(nn.Module):
    """Queries, keys and values that are three different tensors, with a mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True, **options)
        nn.init.normal_(self.inner.in_proj_bias)
        self.sizes = (options.get("kdim", 4), options.get("vdim", 4))

    def forward(self, x: Tensor) -> Tensor:
        key, value = x.flip(1)[..., : self.sizes[0]], (2 * x)[..., : self.sizes[1]]
        mask = torch.ones(5, 5).triu(1).bool()
        return self.inner(x, key, value, attn_mask=mask)[0]


class Own(nn.Module):
    """A layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(reals(4)), nn.Parameter(reals(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.a) @ self.b.T


class Called(nn.Module):
    """The layer between other operations, called by position or by name, once or twice."""

    def __init__(self, layer: nn.Module, name: str, how: str) -> None:
        super().__init__()
        self.layer, self.name, self.how = layer, name, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "by name":
            return self._first(self.layer(**{self.name: x}))
        if self.how == "twice":
            return (
                self._first(self.layer(x))
                + self._first(self.layer(x.flip(0).flip(0) if x.is_floating_point() else x)).sin()
            )
        if self.how == "on a view" and x.is_floating_point():
            return self._first(
                self.layer(x.mT.contiguous().mT if x.dim() > 2 else torch.stack([x, x], -1)[..., 0])
            )
        return self._first(self.layer(x))

    @staticmethod
    def _first(output: Any) -> Tensor:
        return output if isinstance(output, Tensor) else output[0]


HOWS = ("by position", "by name", "twice", "on a view")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", LAYERS)
def test_called_in_every_way(check: Any, name: str, how: str) -> None:
    make, argument, x = LAYERS[name]
    check(Called(make(), argument, how), x, tolerance=3e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_with_every_part_frozen_or_alone(check: Any, name: str) -> None:
    """Each parameter frozen by itself, and each by itself trained."""
    make, argument, x = LAYERS[name]
    names = [each for each, _ in make().named_parameters()]
    if len(names) == 1:
        return
    for one, alone in product(names, (False, True)):
        model = Called(make(), argument, "by position")
        for each, parameter in model.layer.named_parameters():
            parameter.requires_grad_((each == one) == alone)
        capture = check(model, x, tolerance=3e-5)
        trained = {each for each in names if (each == one) == alone}
        found = {each.removeprefix("layer.") for each in capture.dense}
        found |= {table.parameter_name.removeprefix("layer.") for table in capture.tables.values()}
        assert found == trained


@pytest.mark.parametrize("name", LAYERS)
def test_in_double_precision_and_for_one_example(check: Any, name: str) -> None:
    make, argument, x = LAYERS[name]
    check(Called(make(), argument, "by position"), x[:1], tolerance=3e-5)
    if x.is_floating_point():
        check(Called(make().double(), argument, "by position"), x.double(), reduction="sum", tolerance=1e-9)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm 1d": (lambda: nn.BatchNorm1d(3), "BatchNorm"),
    "batch norm 2d": (lambda: nn.BatchNorm2d(3), "BatchNorm"),
    "batch norm 3d": (lambda: nn.BatchNorm3d(3), "BatchNorm"),
    "synced batch norm": (lambda: nn.SyncBatchNorm(3), "BatchNorm"),
    "batch norm without parameters": (lambda: nn.BatchNorm1d(3, affine=False), "BatchNorm"),
    "instance norm that tracks": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        "running",
    ),
    "lstm, time first": (lambda: nn.LSTM(3, 3), "batch_first"),
    "gru, time first": (lambda: nn.GRU(3, 3), "batch_first"),
    "lstm with proj_size": (lambda: nn.LSTM(3, 3, batch_first=True, proj_size=2), "proj_size"),
    "attention, time first": (lambda: nn.MultiheadAttention(4, 2), "batch_first"),
    "attention with bias_kv": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True),
        "add_bias_kv",
    ),
    "attention with a zero": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True),
        "add_zero",
    ),
    "embedding with max_norm": (lambda: nn.Embedding(4, 2, max_norm=1.0), "max_norm"),
    "embedding by frequency": (lambda: nn.Embedding(4, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "bag with max": (lambda: nn.EmbeddingBag(4, 2, mode="max"), "mode 'max'"),
    "bag with max_norm": (lambda: nn.EmbeddingBag(4, 2, max_norm=1.0), "max_norm"),
    "bag by frequency": (lambda: nn.EmbeddingBag(4, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "parametrization"),
    "lazy linear": (lambda: nn.LazyLinear(2), "no shape yet"),
    "scripted": (lambda: torch.jit.script(nn.Linear(2, 2)), "torch.jit"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedLayerError, match=message):
        Capture(nn.Sequential(make(), nn.Linear(2, 2)), loss_reduction="mean")
