"""Layers that are refused, frozen ones too, because they mix the examples of a batch or keep something of them."""

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
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return (
            "max_norm rescales rows in place whenever they are read, which shows without noise what the "
            "batch holds; leave it out"
        )
    return None
