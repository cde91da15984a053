"""Gets hold of the gradient of a layer's output, whatever comes before the layer and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Receive = Callable[[Tensor], None]


class _Anchor(torch.autograd.Function):
    """An output that nothing before it needs a gradient for.

    It is returned as itself, marked as changed in place: nothing is copied, and an in-place activation may
    follow, as it may after an ordinary layer.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, ground: Tensor, receive: Receive) -> Tensor:
        ctx.mark_dirty(output)
        ctx.receive = receive
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.receive(grad)
        return None, None, None


class _Relay(torch.autograd.Function):
    """An output that is a view: a linear layer with a bias returns one for a sequence.

    An in-place operation on a view gives its base a new history that a hook on the view is no part of: the
    gradient would be lost without a word. What is returned shares the memory but is a view of nothing.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, receive: Receive) -> Tensor:
        ctx.receive = receive
        return output.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.receive(grad)
        return grad, None


class _Grounded(torch.autograd.Function):
    """A layer's input, tied to the ground: a whole backward pass reaches the ground, a restricted one does not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ground: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GroundedCopy(_Grounded):
    """The same for a tensor that may be changed in place afterwards."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ground: Tensor) -> Tensor:
        return values.clone()


_GROUND = torch.zeros((), requires_grad=True)
_GROUND_NODE = torch.autograd.graph.get_gradient_edge(_GROUND).node


def ground(values: Tensor) -> Tensor:
    """The same values; every backward pass through them that is a training pass also reaches the ground."""
    return _Grounded.apply(values, _GROUND)  # type: ignore[no-any-return, no-untyped-call]


def grounded_copy(values: Tensor) -> Tensor:
    """The same for a tensor that may be changed in place afterwards."""
    return _GroundedCopy.apply(values, _GROUND)  # type: ignore[no-any-return, no-untyped-call]


def refuse_gradient(values: Tensor, message: str) -> Tensor:
    """The same values; a backward pass that reaches them raises ``RuntimeError(message)``."""

    def refuse(grad: Tensor) -> None:
        if not is_restricted():
            raise RuntimeError(message)

    return on_gradient(grounded_copy(values), refuse)


def is_restricted() -> bool:
    """Whether the running backward pass leaves parameters out: ``autograd.grad``, ``backward(inputs=...)``."""
    return not torch._C._will_engine_execute_node(_GROUND_NODE)


def on_gradient(output: Tensor, receive: Receive) -> Tensor:
    """What takes the place of ``output``, and hands its gradient to ``receive`` in every backward pass.

    A view that requires a gradient must not be the saved result of the operation that made it, since that
    operation would not see an in-place change that follows.
    """
    taken: Tensor
    if not output.requires_grad:
        # ``data``: a module may return a tensor that belongs to somebody else.
        taken = _Anchor.apply(output.data, _GROUND, receive)  # type: ignore[no-untyped-call]
    elif output._is_view():
        taken = _Relay.apply(output, receive)  # type: ignore[no-untyped-call]
    else:
        output.register_hook(receive)  # type: ignore[no-untyped-call]
        taken = output
    return taken
