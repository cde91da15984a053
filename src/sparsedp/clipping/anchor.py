"""Makes the gradient reach the output of a layer although nothing before it needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Receive = Callable[[Tensor], None]


class _Anchor(torch.autograd.Function):
    # The output is returned as itself, marked as changed in place: nothing is copied, and an in-place
    # activation may follow, as it may after an ordinary layer.
    @staticmethod
    def forward(ctx: Any, output: Tensor, ground: Tensor, receive: Receive) -> Tensor:
        ctx.mark_dirty(output)
        ctx.receive = receive
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.receive(grad)
        return None, None, None


_GROUND = torch.zeros((), requires_grad=True)


def on_gradient(output: Tensor, receive: Receive) -> Tensor:
    """What takes the place of ``output``, and hands its gradient to ``receive`` in every backward pass."""
    if output.requires_grad:
        output.register_hook(receive)  # type: ignore[no-untyped-call]
        return output
    # ``data`` is no view of anything: marking a view as changed would go through its base, and a module
    # may return a tensor that belongs to somebody else.
    anchored: Tensor = _Anchor.apply(output.data, _GROUND, receive)  # type: ignore[no-untyped-call]
    return anchored
