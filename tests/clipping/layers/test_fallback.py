from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError
from sparsedp.clipping.layers import fallback


class Scaled(nn.Module):
    """Parameters of its own beside children that have rules."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))
        self.shifts = nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor, *, double: bool = False) -> Tensor:
        h = self.first(x) * self.scale + self.shifts[0]
        h = torch.tanh(h) * self.scale.exp() - self.shifts[1]
        return self.last(h)


class Scale(nn.Module):
    """A linear map and a scale, in the precision of the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.dtype)


def test_parameters_of_a_custom_module(check):
    capture = check(Scaled(), torch.randn(5, 4))
    assert {"scale", "shifts.0", "shifts.1", "first.weight"} <= set(capture.dense)


def test_within_another_model_and_in_place_after_it(check):
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    check(nn.Sequential(First(), nn.ReLU(inplace=True), Scaled()), torch.randn(5, 3, 4))


class ClassToken(nn.Module):
    """Prepends a learned vector and adds learned positions, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(1, 7, 4))
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.layer(x + self.places)[:, 0]


def test_learned_tokens_and_positions(check):
    check(ClassToken(), torch.randn(5, 6, 4), tolerance=3e-5)


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (nn.PReLU(), [(5, 3)]),
        (nn.Conv3d(2, 3, 2), [(5, 2, 3, 3, 3)]),
        (nn.ConvTranspose2d(2, 3, 2, stride=2), [(5, 2, 3, 3)]),
        (nn.ConvTranspose1d(2, 3, 2), [(5, 2, 4)]),
    ],
    ids=["prelu", "conv3d", "transposed2d", "transposed1d"],
)
def test_torch_layers_without_a_rule(check, layer, shapes):
    check(layer, *(torch.randn(shape) for shape in shapes))


def test_outputs_that_feed_each_other(check):
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            first = x * self.scale
            return {"first": first, "second": (first * self.scale).sin(), "given": x}

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(4, 4)
            self.chain = Chain()

        def forward(self, x: Tensor) -> Tensor:
            found = self.chain(self.before(x))
            return found["first"] + 2 * found["second"] + found["given"]

    check(Both(), torch.randn(5, 4))


def test_an_output_that_is_a_view_of_something_saved_may_be_changed_in_place(reference, agree):
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x * self.scale).view(-1, 2, 2)

    model, x = nn.Sequential(nn.Linear(4, 4), Squashed(), nn.Hardtanh(0, 0.5)), torch.randn(5, 4)
    expected = reference(model, (x,), 5, lambda out: out.square().sum((1, 2)))
    model[2].inplace = True
    capture = Capture(model, loss_reduction="sum")
    model(x).square().sum().backward()
    agree(capture.take()[0], capture, expected)


def test_a_module_called_several_times(check):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()
            self.back = nn.Linear(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.back(self.inner(x)))

    check(Twice(), torch.randn(5, 4))


def test_an_empty_batch(check):
    check(Scaled(), torch.randn(0, 4), reduction="sum")


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad])
def test_take_works_in_any_grad_mode(grad_mode):
    model = Scaled()
    capture = Capture(model, loss_reduction="sum")
    model(torch.randn(3, 4)).sum().backward()
    with grad_mode():
        [captured] = capture.take()
        squares = captured.dense["scale"].squared_norms()
    assert not squares.requires_grad
    assert (squares > 0).all()


def test_half_precision_outputs_are_compared_as_such():
    model = nn.Sequential(nn.Linear(4, 64), Scale(64))
    capture = Capture(model, loss_reduction="sum")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(8, 4))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert capture.take()[0].dense["1.scale"].squared_norms().dtype == torch.float64


def test_an_example_that_is_not_finite_stays_by_itself():
    model = Scaled()
    capture = Capture(model, loss_reduction="sum")
    x = torch.randn(4, 4)
    x[2] = float("nan")
    model(x).sum().backward()
    finite = capture.take()[0].dense["scale"].squared_norms().isfinite()
    assert finite.tolist() == [True, True, False, True]


def layer_call(model: nn.Module, x: Tensor) -> None:
    capture = Capture(nn.Sequential(model), loss_reduction="mean")
    model(x).square().mean().backward()
    capture.take()


class Mixing(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.share * x.mean(0)) * self.scale


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x) * self.scale


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale if x.sum().item() > 0 else x - self.scale


@pytest.mark.parametrize("share", [1.0, 0.03])
def test_a_module_that_mixes_examples_is_refused(share):
    with pytest.raises(UnsupportedLayerError, match=r"module '0' \(Mixing\): .*mixes the examples.*'scale'"):
        layer_call(Mixing(share), torch.randn(5, 4))


def test_a_random_module_is_refused():
    with pytest.raises(UnsupportedLayerError, match=r"module '0' \(Random\): .*'scale'"):
        layer_call(Random(), torch.randn(5, 4))


def test_a_module_that_vmap_cannot_run_is_refused():
    with pytest.raises(
        UnsupportedLayerError, match=r"module '0' \(Branching\): .*one example at a time.*'scale'"
    ):
        layer_call(Branching(), torch.randn(5, 4))


def test_a_module_without_a_forward_is_refused():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

    with pytest.raises(UnsupportedLayerError, match=r"module '0' \(Holder\): .*no forward"):
        Capture(nn.Sequential(Holder()), loss_reduction="mean")


def test_a_module_that_returns_no_tensor_is_refused():
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor) -> None:
            return None

    model = Silent()
    Capture(model, loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="returns no tensor"):
        model(torch.randn(3, 4))
    assert model.scale.requires_grad


def test_gradients_that_would_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(fallback, "MOST", 50)
    with pytest.raises(
        UnsupportedLayerError, match=r"module '0' \(Scaled\): .*18 parameters for each of 4 examples"
    ):
        layer_call(Scaled(), torch.randn(4, 4))
