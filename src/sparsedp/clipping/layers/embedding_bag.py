"""Embedding tables whose rows are summed or averaged over a bag of ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.layers.embedding import table_refusal
from sparsedp.clipping.layers.registry import (
    LayerCall,
    Parts,
    TableRule,
    Trainable,
    argument,
    register_layer_rule,
)
from sparsedp.rows.lookups import EmbeddingLookups


class Bags(NamedTuple):
    """The arguments of a call."""

    ids: Tensor
    offsets: Tensor | None
    weights: Tensor | None


@register_layer_rule(nn.EmbeddingBag)
class EmbeddingBagRule(TableRule):
    """A bag is an example; its lookups share its gradient, times their weight or 1 / (size of the bag)."""

    @override
    def refusal(self, module: nn.Module) -> str | None:
        assert isinstance(module, nn.EmbeddingBag)
        if module.mode == "max":
            return "mode 'max' sends each coordinate's gradient to another row; use 'sum' or 'mean'"
        return table_refusal(module)

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = layer_call.original_forward(*args, **kwargs)
        weights = argument(args, kwargs, 2, "per_sample_weights")
        bags = Bags(
            argument(args, kwargs, 0, "input"),
            argument(args, kwargs, 1, "offsets"),
            None if weights is None else weights.detach(),
        )
        return layer_call.trace(bags, output)

    @override
    def ids(self, saved: Any) -> Tensor | None:
        assert isinstance(saved, Bags)
        return saved.ids if saved.offsets is None else None

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.EmbeddingBag)
        count = grad.shape[0]
        ids, scales = saved.ids.reshape(-1).long(), saved.weights
        sizes = _sizes(saved, count, module.include_last_offset)
        bags = torch.arange(count, device=ids.device).repeat_interleave(sizes, output_size=ids.numel())
        if scales is not None:
            scales = scales.reshape(-1)
        if module.padding_idx is not None:
            read = ids != module.padding_idx
            ids, bags = ids[read], bags[read]
            scales = None if scales is None else scales[read]
            sizes = torch.bincount(bags, minlength=count)
        if module.mode == "mean":
            scales = sizes.to(grad.dtype).reciprocal_()[bags]
        yield "weight", EmbeddingLookups(ids, bags, grad, sources=bags, scales=scales)


def _sizes(bags: Bags, count: int, include_last_offset: bool) -> Tensor:
    """How many ids each bag holds."""
    if bags.offsets is None:
        return bags.ids.new_full((count,), bags.ids.shape[1], dtype=torch.int64)
    ends = bags.offsets[1:]
    if not include_last_offset:
        ends = torch.cat([ends, ends.new_tensor([bags.ids.numel()])])
    return ends - bags.offsets[:count]
