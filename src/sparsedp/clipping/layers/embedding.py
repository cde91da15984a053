"""Embedding tables, read one row per id."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from sparsedp.clipping.layers.registry import (
    LayerCall,
    Parts,
    TableRule,
    Trainable,
    argument,
    register_layer_rule,
)
from sparsedp.rows.lookups import EmbeddingLookups


def table_refusal(table: nn.Embedding | nn.EmbeddingBag) -> str | None:
    """Why a trainable table is refused: options that make its gradients depend on more than one example."""
    if table.scale_grad_by_freq:
        return (
            "scale_grad_by_freq divides by how often the batch holds an id, which ties its examples "
            "together; leave it out"
        )
    return None


@register_layer_rule(nn.Embedding)
class EmbeddingRule(TableRule):
    """Each lookup has one row of the output gradient and belongs to an example along dimension 0."""

    @override
    def refusal(self, module: nn.Module) -> str | None:
        assert isinstance(module, nn.Embedding)
        return table_refusal(module)

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        ids = argument(args, kwargs, 0, "input")
        ids = expand_shared_ids(layer_call, ids)
        return layer_call.trace(ids, layer_call.original_forward(ids))

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.Embedding)
        yield "weight", lookups(module, saved, grad)


def lookups(table: nn.Embedding, ids: Tensor, grad: Tensor) -> EmbeddingLookups:
    """The lookups of a call with ``ids``."""
    example_of = np.arange(ids.shape[0])
    flat, rows = ids.flatten().long(), grad.flatten(0, -2)
    if flat.shape[0] != example_of.size:
        example_of = example_of.repeat(ids.shape[1:].numel())
    examples = torch.from_numpy(example_of).to(ids.device)
    if table.padding_idx is not None:
        read = flat != table.padding_idx
        if not bool(read.all()):
            flat, examples, rows = flat[read], examples[read], rows[read]
    return EmbeddingLookups(flat, examples, rows)


def expand_shared_ids(layer_call: LayerCall, ids: Any) -> Any:
    """Ids that all examples share (positions, of shape (1, T)), expanded to one row per example.

    Otherwise their gradient would arrive summed over the batch.
    """
    if isinstance(ids, Tensor) and ids.dim() > 1 and ids.shape[0] == 1:
        batch = layer_call.batch_size()
        if batch is not None:
            return ids.expand(batch, *ids.shape[1:])
    return ids
