"""Layers that normalise within an example and then scale: layer, RMS, group and instance norm."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.layers.registry import Parts, Rule, Trainable, register_layer_rule


def _scaled(normed: Tensor, grad: Tensor, summed: list[int], trainable: Trainable) -> Parts:
    """Per-example gradients of ``y = weight * normed + bias``, with weight and bias broadcast along ``summed``."""
    if "weight" in trainable:
        products = grad * normed
        yield "weight", Materialised(products.sum(summed) if summed else products)
    if "bias" in trainable:
        yield "bias", Materialised(grad.sum(summed) if summed else grad)


@register_layer_rule(nn.LayerNorm)
class LayerNormRule(Rule):
    """Mean and variance over the last dimensions, a scale for each of their coordinates."""

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.LayerNorm)
        normed = F.layer_norm(upcast(saved), module.normalized_shape, eps=module.eps)
        yield from _scaled(normed, upcast(grad), _middle(grad, module.normalized_shape), trainable)


@register_layer_rule(nn.RMSNorm)
class RMSNormRule(Rule):
    """Root mean square over the last dimensions, a scale for each of their coordinates."""

    input = "x"

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.RMSNorm)
        normed = F.rms_norm(upcast(saved), list(module.normalized_shape), eps=module.eps)
        yield from _scaled(normed, upcast(grad), _middle(grad, module.normalized_shape), trainable)


@register_layer_rule(nn.GroupNorm)
class GroupNormRule(Rule):
    """Mean and variance over groups of channels, a scale for each channel."""

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.GroupNorm)
        normed = F.group_norm(upcast(saved), module.num_groups, eps=module.eps)
        yield from _scaled(normed, upcast(grad), list(range(2, grad.dim())), trainable)


@register_layer_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(Rule):
    """Mean and variance over each channel of each example, a scale for each channel."""

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
        normed = F.instance_norm(upcast(saved), eps=module.eps)
        yield from _scaled(normed, upcast(grad), list(range(2, grad.dim())), trainable)


def _middle(grad: Tensor, normalized_shape: tuple[int, ...]) -> list[int]:
    return list(range(1, grad.dim() - len(normalized_shape)))
