"""Captures the gradient of a layer's output, independent of the operations before and after the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Receive = Callable[[Tensor], None]


class _LeafOutput(torch.autograd.Function):
    """For an output that does not require a gradient.

    The output itself is returned, marked as changed in place: nothing is copied, and an in-place activation may
    follow, as after an ordinary layer.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, sentinel: Tensor, receive: Receive) -> Tensor:
        ctx.mark_dirty(output)
        ctx.receive = receive
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.receive(grad)
        return None, None, None


class _ViewOutput(torch.autograd.Function):
    """For an output that is a view: a linear layer with a bias returns one for a sequence.

    An in-place operation on a view gives its base a new history, which a hook on the view does not see: the
    gradient would be lost silently. The returned tensor shares the memory but is not a view.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, receive: Receive) -> Tensor:
        ctx.receive = receive
        return output.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.receive(grad)
        return grad, None


class _WithSentinel(torch.autograd.Function):
    """Connects a layer's input to the sentinel: a full backward pass reaches it, a restricted one does not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sentinel: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _CopyWithSentinel(_WithSentinel):
    """The same for a tensor that may be changed in place afterwards."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sentinel: Tensor) -> Tensor:
        return values.clone()


_SENTINEL = torch.zeros((), requires_grad=True)
_SENTINEL_NODE = torch.autograd.graph.get_gradient_edge(_SENTINEL).node


def with_sentinel(values: Tensor) -> Tensor:
    """The same values; every full backward pass through them also reaches the sentinel."""
    return _WithSentinel.apply(values, _SENTINEL)  # type: ignore[no-any-return, no-untyped-call]


def copy_with_sentinel(values: Tensor) -> Tensor:
    """The same for a tensor that may be changed in place afterwards."""
    return _CopyWithSentinel.apply(values, _SENTINEL)  # type: ignore[no-any-return, no-untyped-call]


def refuse_gradient(values: Tensor, message: str) -> Tensor:
    """The same values; a backward pass that reaches them raises ``RuntimeError(message)``."""

    def refuse(grad: Tensor) -> None:
        if not is_restricted():
            raise RuntimeError(message)

    return on_gradient(copy_with_sentinel(values), refuse)


def is_restricted() -> bool:
    """Is the running backward pass restricted to some inputs (``autograd.grad``, ``backward(inputs=...)``)?"""
    return not torch._C._will_engine_execute_node(_SENTINEL_NODE)


def on_gradient(output: Tensor, receive: Receive) -> Tensor:
    """A replacement of ``output`` that passes its gradient to ``receive`` in every backward pass.

    A view that requires a gradient must not be the saved result of the operation that made it, since that
    operation would not see a later in-place change.
    """
    traced: Tensor
    if not output.requires_grad:
        # ``data``: a module may return a tensor that it does not own.
        traced = _LeafOutput.apply(output.data, _SENTINEL, receive)  # type: ignore[no-untyped-call]
    elif output._is_view():
        traced = _ViewOutput.apply(output, receive)  # type: ignore[no-untyped-call]
    else:
        output.register_hook(receive)  # type: ignore[no-untyped-call]
        traced = output
    return traced
