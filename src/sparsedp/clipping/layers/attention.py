"""Multi-head attention, as four linear layers around a product that has no parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.layers.linear import projection
from sparsedp.clipping.layers.registry import LayerCall, Parts, Rule, Trainable, register_layer_rule


class Projected(NamedTuple):
    """One projection within the layer."""

    inputs: Tensor
    weight: str
    bias: str
    weight_rows: tuple[int, int] | None
    """The rows of the weight that were used; None for all."""
    bias_rows: tuple[int, int] | None


@register_layer_rule(nn.MultiheadAttention)
class AttentionRule(Rule):
    """Computes attention with explicit projections, since torch's fused ones show no intermediate gradients."""

    parameters = None
    recurse = True

    @override
    def refusal(self, module: nn.Module) -> str | None:
        assert isinstance(module, nn.MultiheadAttention)
        if not module.batch_first:
            return "has the batch along dimension 1; make it with batch_first=True"
        if module.bias_k is not None or module.add_zero_attn:
            return "add_bias_kv and add_zero_attn have no rule; leave them out"
        return None

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert isinstance(module, nn.MultiheadAttention)
        return _attend(module, layer_call, *args, **kwargs)

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.MultiheadAttention)
        call: Projected = saved
        if call.weight in trainable:
            padded = _padded(grad, call.weight_rows, 3 * module.embed_dim)
            yield from projection(call.inputs, padded, frozenset({call.weight}), call.weight, call.bias)
        if call.bias in trainable:
            padded = _padded(grad, call.bias_rows, 3 * module.embed_dim)
            yield from projection(call.inputs, padded, frozenset({call.bias}), call.weight, call.bias)


def _padded(grad: Tensor, rows: tuple[int, int] | None, height: int) -> Tensor:
    """The gradient for all rows of the parameter, zero where they were not used."""
    return grad if rows is None else F.pad(grad, (rows[0], height - rows[1]))


def _attend(
    module: nn.MultiheadAttention,
    layer_call: LayerCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    if query.dim() != 3:
        raise RuleError("query: must be (examples, positions, features)")
    if is_causal and attn_mask is None:
        raise RuleError("attn_mask: is_causal is only a hint about attn_mask, which is missing")
    q, k, v = (
        projected.view(*projected.shape[:2], module.num_heads, module.head_dim).transpose(1, 2)
        for projected in _project_inputs(module, layer_call, query, key, value)
    )
    mask = _merged_mask(module, query, key_padding_mask, attn_mask)
    dropout = module.dropout if module.training else 0.0
    if need_weights:
        scores = q @ k.mT / math.sqrt(module.head_dim)
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        weights = F.dropout(weights, dropout)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed, weights = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout), None
    mixed = mixed.transpose(1, 2).flatten(2)
    output = F.linear(mixed, module.out_proj.weight, module.out_proj.bias)
    return layer_call.trace(
        Projected(mixed.detach(), "out_proj.weight", "out_proj.bias", None, None), output
    ), weights


def _project_inputs(
    module: nn.MultiheadAttention, layer_call: LayerCall, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    """Queries, keys and values; equal inputs share one product where the weights are packed."""
    size = module.embed_dim
    packed = module.in_proj_weight is not None
    if packed and query is key and key is value:
        shares = [(query, 0, 3)]
    elif packed and key is value:
        shares = [(query, 0, 1), (key, 1, 3)]
    else:
        shares = [(query, 0, 1), (key, 1, 2), (value, 2, 3)]
    heads: list[Tensor] = []
    for inputs, start, stop in shares:
        rows = (start * size, stop * size)
        name = "in_proj_weight" if packed else f"{'qkv'[start]}_proj_weight"
        weight, bias = getattr(module, name), module.in_proj_bias
        output = F.linear(
            inputs, weight[slice(*rows)] if packed else weight, None if bias is None else bias[slice(*rows)]
        )
        saved = Projected(inputs.detach(), name, "in_proj_bias", rows if packed else None, rows)
        heads += layer_call.trace(saved, output).chunk(stop - start, -1)
    return heads


def _merged_mask(
    module: nn.MultiheadAttention, query: Tensor, padding: Tensor | None, attention: Tensor | None
) -> Tensor | None:
    """What to add to the scores, of a shape that broadcasts to (B, heads, T, S)."""
    mask = None
    if attention is not None:
        mask = _additive(attention, query.dtype)
        if mask.dim() == 3:
            mask = mask.view(query.shape[0], module.num_heads, *mask.shape[1:])
    if padding is not None:
        padding_mask = _additive(padding, query.dtype)[:, None, None, :]
        mask = padding_mask if mask is None else mask + padding_mask
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
