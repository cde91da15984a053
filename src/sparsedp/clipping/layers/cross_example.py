"""Layers that are refused because they mix the examples of a batch."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm


def cross_example_refusal(module: nn.Module) -> str | None:
    """Why a module is refused in a privately trained model, trainable or not; None if it is not."""
    if isinstance(module, _BatchNorm):
        return (
            "normalises each example by the others of its batch, so that one example moves the gradients of "
            "all; use GroupNorm or LayerNorm, or fold its fixed statistics into the layer before it"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return (
            "keeps running statistics of the data without noise; make it with track_running_stats=False, or "
            "use GroupNorm"
        )
    return None
