"""Subclasses of nn.Embedding that override forward: scaled word embeddings, positions computed from a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.layers.embedding import expand_shared_ids, lookups, table_refusal
from sparsedp.clipping.layers.registry import (
    LayerCall,
    Parts,
    Rule,
    Trainable,
    argument,
    register_derived_layer_rule,
)


@register_derived_layer_rule(nn.Embedding)
class DerivedEmbeddingRule(Rule):
    """Intercepts the layer's lookups in its weight, for any computation around them.

    The weight counts as a dense parameter: the arguments of a call do not tell which rows it will read.
    """

    parameters = frozenset({"weight"})

    @override
    def refusal(self, module: nn.Module) -> str | None:
        assert isinstance(module, nn.Embedding)
        return table_refusal(module)

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert isinstance(module, nn.Embedding)
        with _TracedWeight(module.weight, layer_call):
            return layer_call.original_forward(*args, **kwargs)

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        assert isinstance(module, nn.Embedding)
        yield "weight", lookups(module, saved, grad)


class _TracedWeight(TorchFunctionMode):
    """Traces the lookups of one weight, and refuses any other use of it."""

    def __init__(self, weight: Tensor, layer_call: LayerCall) -> None:
        super().__init__()
        self._weight = weight
        self._layer_call = layer_call

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        uses = any(value is self._weight for value in (*args, *kwargs.values()))
        if not uses or func.__name__ == "__get__":
            return func(*args, **kwargs)
        if func is not F.embedding:
            raise RuleError(
                f"uses its weight in {func.__name__}, where only looking up rows of it has a rule"
            )
        ids = expand_shared_ids(self._layer_call, argument(args, kwargs, 0, "input"))
        kwargs.pop("input", None)
        return self._layer_call.trace(ids, func(ids, *args[1:], **kwargs))
