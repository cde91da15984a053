"""Layers that normalise within an example and then scale: layer, RMS, group and instance norm."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sparsedp.clipping.layers.registry import Parts, Rule, Wanted, covers
from sparsedp.clipping.materialised import Materialised
from sparsedp.clipping.vectors import wide


def _scaled(normed: Tensor, grad: Tensor, summed: list[int], wanted: Wanted) -> Parts:
    """Parts of ``y = weight * normed + bias``, where weight and bias are repeated along ``summed``."""
    if "weight" in wanted:
        products = grad * normed
        yield "weight", Materialised(products.sum(summed) if summed else products)
    if "bias" in wanted:
        yield "bias", Materialised(grad.sum(summed) if summed else grad)


@covers(nn.LayerNorm)
class LayerNormRule(Rule):
    """Mean and variance over the last dimensions, a scale for each of their coordinates."""

    def gradients(self, module: nn.Module, kept: Any, grad: Tensor, wanted: Wanted) -> Parts:
        """See the base class."""
        assert isinstance(module, nn.LayerNorm)
        normed = F.layer_norm(wide(kept), module.normalized_shape, eps=module.eps)
        yield from _scaled(normed, wide(grad), _middle(grad, module.normalized_shape), wanted)


@covers(nn.RMSNorm)
class RMSNormRule(Rule):
    """Root mean square over the last dimensions, a scale for each of their coordinates."""

    def gradients(self, module: nn.Module, kept: Any, grad: Tensor, wanted: Wanted) -> Parts:
        """See the base class."""
        assert isinstance(module, nn.RMSNorm)
        normed = F.rms_norm(wide(kept), list(module.normalized_shape), eps=module.eps)
        yield from _scaled(normed, wide(grad), _middle(grad, module.normalized_shape), wanted)


@covers(nn.GroupNorm)
class GroupNormRule(Rule):
    """Mean and variance over groups of channels, a scale for each channel."""

    def gradients(self, module: nn.Module, kept: Any, grad: Tensor, wanted: Wanted) -> Parts:
        """See the base class."""
        assert isinstance(module, nn.GroupNorm)
        normed = F.group_norm(wide(kept), module.num_groups, eps=module.eps)
        yield from _scaled(normed, wide(grad), list(range(2, grad.dim())), wanted)


@covers(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(Rule):
    """Mean and variance over each channel of each example, a scale for each channel."""

    def gradients(self, module: nn.Module, kept: Any, grad: Tensor, wanted: Wanted) -> Parts:
        """See the base class."""
        assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
        normed = F.instance_norm(wide(kept), eps=module.eps)
        yield from _scaled(normed, wide(grad), list(range(2, grad.dim())), wanted)


def _middle(grad: Tensor, normalized_shape: tuple[int, ...]) -> list[int]:
    return list(range(1, grad.dim() - len(normalized_shape)))
