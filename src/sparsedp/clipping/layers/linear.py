"""Linear layers, on vectors and on sequences."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.vectors import Vectors
from sparsedp.clipping.layers.registry import Parts, Rule, Trainable, register_layer_rule


@register_layer_rule(nn.Linear)
class LinearRule(Rule):
    """``y = W x + b``: the weight's gradient is ``sum_t g_t x_t^T``, the bias's ``sum_t g_t``."""

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        yield from projection(saved, grad, trainable, "weight", "bias")


@register_layer_rule("transformers.pytorch_utils.Conv1D")
class TransposedLinearRule(Rule):
    """``y = W^T x + b``, as GPT-2 has it."""

    input = "x"

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        for name, part in projection(saved, grad, trainable, "weight", "bias"):
            if isinstance(part, OuterProducts):
                part = OuterProducts(part.output_grads, part.inputs)
            yield name, part


def projection(inputs: Tensor, grad: Tensor, trainable: Trainable, weight: str, bias: str) -> Parts:
    """The per-example gradients of a weight and a bias that project inputs of shape (B, ..., I)."""
    if grad.dim() > 3:
        inputs, grad = inputs.flatten(1, -2), grad.flatten(1, -2)
    vectors = Vectors(grad)
    if weight in trainable:
        yield weight, OuterProducts(inputs, vectors)
    if bias in trainable:
        yield bias, Materialised(vectors) if grad.dim() == 2 else Materialised(grad.sum(1))
