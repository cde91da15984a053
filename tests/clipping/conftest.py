"""The reference that every layer is held against: autograd, one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from sparsedp.clipping import Capture, Captured
from sparsedp.rows.lookups import EmbeddingLookups


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(20231)


def losses_of(output: Any) -> Tensor:
    """One loss per example, of every tensor of the output, different in every coordinate."""
    tensors = [output] if isinstance(output, Tensor) else [o for o in output if isinstance(o, Tensor)]
    total = torch.zeros(())
    for tensor in tensors:
        flat = tensor.flatten(1)
        ramp = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
        total = total + (flat * ramp).sin().sum(1) + 0.1 * (flat * flat).sum(1)
    return total


def one_by_one(
    model: nn.Module, inputs: tuple[Any, ...], losses: Callable[[Any], Tensor], batch: int
) -> dict[str, Tensor]:
    """{parameter name: (B, *shape)}, each gradient from a backward pass of its own."""
    grads: dict[str, list[Tensor]] = {n: [] for n, p in model.named_parameters() if p.requires_grad}
    for i in range(batch):
        model.zero_grad()
        alone = tree_map_only(
            Tensor, lambda x, i=i: x[i : i + 1] if x.dim() and x.shape[0] == batch else x, inputs
        )
        losses(model(*alone)).sum().backward()
        for name in grads:
            parameter = model.get_parameter(name)
            grad = parameter.grad
            grads[name].append(torch.zeros_like(parameter) if grad is None else grad.to_dense().clone())
    model.zero_grad()
    empty = {name: torch.zeros(0, *model.get_parameter(name).shape) for name in grads}
    return {name: torch.stack(each) if each else empty[name] for name, each in grads.items()}


def rows_of(read: EmbeddingLookups, batch: int, shape: torch.Size) -> Tensor:
    """The table gradient of each example, (B, rows, dim), by adding up its lookups."""
    grads = read.output_grads if read.sources is None else read.output_grads[read.sources]
    if read.scales is not None:
        grads = grads * read.scales.unsqueeze(1)
    made = torch.zeros(batch, *shape, dtype=grads.dtype)
    made.index_put_((read.examples, read.ids), grads, accumulate=True)
    return made


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Relative to the largest example's norm."""
    assert found.shape == expected.shape
    if expected.numel():
        size = expected.double().flatten(1).norm(dim=1).max()
        worst = (found.double() - expected.double()).abs().max()
        assert worst <= tolerance * size + 1e-12, f"{worst} > {tolerance} * {size}"


def assert_gradients(
    captured: Captured, capture: Capture, expected: dict[str, Tensor], tolerance: float = 1e-5
) -> None:
    """Norms, made gradients and weighted sums of one backward pass against the reference."""
    batch, scale = captured.batch_size, captured.scale
    reached = {capture.tables[name].parameter_name for name in captured.tables} | set(captured.dense)
    for name in set(expected) - reached:
        assert not expected[name].any(), f"{name} was not captured"
    for name, read in captured.tables.items():
        table = capture.tables[name]
        made = scale * rows_of(read, batch, table.parameter.shape)
        assert_close(made, expected[table.parameter_name], tolerance)
    for name, gradient in captured.dense.items():
        want = expected[name]
        assert_close(scale * gradient.instantiate().reshape(want.shape), want, tolerance)
        squares = want.double().flatten(1).square().sum(1)
        found = scale**2 * gradient.squared_norms().double()
        assert found.shape == (batch,)
        assert torch.allclose(found, squares, rtol=10 * tolerance, atol=1e-10)
        weights = torch.rand(batch, dtype=want.dtype)
        total = torch.einsum("b,b...->...", weights, want) / max(scale, 1)
        start = total.flatten().norm() * torch.randn(want.shape[1:], dtype=want.dtype)
        out = start.clone()
        gradient.accumulate(out, weights)
        assert_close((out - start).unsqueeze(0), total.unsqueeze(0), 10 * tolerance)


@pytest.fixture
def reference() -> Callable[..., dict[str, Tensor]]:
    """reference(model, inputs, batch=..., losses=...): per-example gradients by name, one at a time."""

    def run(
        model: nn.Module, inputs: tuple[Any, ...], batch: int, losses: Callable[[Any], Tensor] = losses_of
    ) -> dict[str, Tensor]:
        return one_by_one(model, inputs, losses, batch)

    return run


@pytest.fixture
def agree() -> Callable[..., None]:
    """agree(captured, capture, expected): see ``assert_gradients``."""
    return assert_gradients


@pytest.fixture
def losses() -> Callable[[Any], Tensor]:
    """One loss per example."""
    return losses_of


@pytest.fixture
def check() -> Callable[..., Capture]:
    """check(model, *inputs): the captured gradients are the reference's, and nothing is left behind."""

    def run(
        model: nn.Module,
        *inputs: Any,
        losses: Callable[[Any], Tensor] = losses_of,
        reduction: str = "mean",
        tolerance: float = 1e-5,
    ) -> Capture:
        batch = inputs[0].shape[0]
        keys, kind = list(model.state_dict()), type(model)
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        expected = one_by_one(model, inputs, losses, batch)
        with torch.no_grad():
            before = losses(model(*inputs))
        capture = Capture(model, loss_reduction=reduction)
        each = losses(model(*inputs))
        assert torch.allclose(each, before, rtol=1e-4, atol=1e-5)
        getattr(each, reduction)().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == trainable
        assert (list(model.state_dict()), type(model)) == (keys, kind)
        [captured] = capture.take()
        assert captured.batch_size == batch
        assert captured.scale == pytest.approx(batch if reduction == "mean" else 1, rel=2.0**-23)
        assert_gradients(captured, capture, expected, tolerance)
        assert capture.take() == []
        capture.detach()
        assert not any("forward" in vars(module) for module in model.modules())
        return capture

    return run
