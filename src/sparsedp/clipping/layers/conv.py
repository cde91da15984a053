"""Convolutions over one and two dimensions, as linear layers on patches."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.layers.registry import Parts, Rule, Trainable, register_layer_rule


@register_layer_rule(nn.Conv1d, nn.Conv2d)
class ConvRule(Rule):
    """Each output position is a linear map of its patch: the weight's gradient is ``sum_t g_t patch_t^T``."""

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        grad = grad.flatten(2)
        if "bias" in trainable:
            yield "bias", Materialised(upcast(grad).sum(2))
        if "weight" not in trainable:
            return
        patches = _patches(module, saved)
        if module.groups == 1:
            yield "weight", OuterProducts(patches.mT, grad.mT)
        else:
            # Grouped kernels are small: each group sees 1 / groups of the channels.
            batch, groups = grad.shape[0], module.groups
            grouped = upcast(grad).reshape(batch, groups, -1, grad.shape[2])
            seen = upcast(patches).reshape(batch, groups, -1, grad.shape[2])
            yield "weight", Materialised((grouped @ seen.mT).reshape(batch, *module.weight.shape))


def _patches(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """(B, channels x kernel, positions), channels outermost as in the weight."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = F.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
    kernel, dilation, stride = module.kernel_size, module.dilation, module.stride
    if isinstance(module, nn.Conv1d):
        padded = padded.unsqueeze(2)
        kernel, dilation, stride = (1, *kernel), (1, *dilation), (1, *stride)
    return F.unfold(padded, kernel, dilation=dilation, stride=stride)
