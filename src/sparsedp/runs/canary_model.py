"""Models whose canaries have gradients of the attacker's choice: the worst that clipping lets through."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from sparsedp.models.text_classifier import TextClassifier


class CanaryModel(nn.Module):
    """The losses of examples that end in (label, push_in, push_out); where ``push_out`` is not zero, of canaries.

    A canary's loss is linear: ``scale`` times one random direction of the largest linear layer that is trained, ``push_out .
    layer(push_in)``, and what it reads of tables where it has a row of its own. So its gradient has the same direction at
    every step and a norm of at least ``scale``, is clipped, and hardly overlaps with other canaries'. All other examples
    have the loss of the model.
    """

    def __init__(self, model: nn.Module, scale: float) -> None:
        super().__init__()
        self.model, self.scale = model, scale
        linear = [
            (module.weight.numel(), name)
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        ]
        if not linear:
            raise ValueError("audit: the model has no linear layer that canaries could push")
        self._layer = max(linear)[1]

    @property
    def layer(self) -> nn.Linear:
        """The largest linear layer that is trained."""
        layer = self.model.get_submodule(self._layer)
        assert isinstance(layer, nn.Linear)
        return layer

    def _pushed(self, push_in: Tensor, push_out: Tensor) -> Tensor:
        # Less the layer of zero: the bias, which all canaries would push, has no gradient.
        moved = self.layer(push_in) - self.layer(torch.zeros_like(push_in))
        pushed: Tensor = (moved * push_out).sum(dim=1)
        return pushed


def is_canary(push_out: Tensor) -> Tensor:
    """1 for canaries, 0 for other examples."""
    return (push_out != 0).any(dim=1).to(push_out.dtype)


class CanaryClickModel(CanaryModel):
    """A click model on examples (numeric, ids, bags, label, push_in, push_out).

    Of ``bags`` (examples, multi-hot features, values) each example has as many values a feature. ``columns`` are the
    features, one-hot ones first, in which each canary has a row of its own.
    """

    def __init__(self, model: nn.Module, columns: Sequence[int], scale: float) -> None:
        super().__init__(model, scale)
        self.columns = tuple(columns)

    def table_name(self, column: int) -> str:
        """The table that embeds a column, as ``named_modules`` names it."""
        return f"model.embeddings.{column}"

    def forward(
        self, numeric: Tensor, ids: Tensor, bags: Tensor, label: Tensor, push_in: Tensor, push_out: Tensor
    ) -> Tensor:
        """One loss an example."""
        logits: Tensor = self.model(numeric, ids, *map(_in_a_row, bags.unbind(1)))
        losses = binary_cross_entropy_with_logits(logits, label, reduction="none")
        of_canaries = self.canary_losses(numeric, ids, bags, label, push_in, push_out)
        return (1.0 - is_canary(push_out)) * losses + of_canaries

    def canary_losses(
        self, numeric: Tensor, ids: Tensor, bags: Tensor, label: Tensor, push_in: Tensor, push_out: Tensor
    ) -> Tensor:
        """The same of canaries, without a pass of the model; 0 for other examples."""
        rows = torch.zeros_like(label)
        for column in self.columns:
            table = self.get_submodule(self.table_name(column))
            if column >= ids.shape[1]:
                read = table(*_in_a_row(bags[:, column - ids.shape[1]]))
            else:
                read = table(ids[:, column, None] if isinstance(table, nn.EmbeddingBag) else ids[:, column])
            rows = rows + read.sum(dim=1) / math.sqrt(read.shape[1] * len(self.columns))
        return self.scale * (self._pushed(push_in, push_out) + is_canary(push_out) * rows)


def _in_a_row(bags: Tensor) -> tuple[Tensor, Tensor]:
    """Bags of as many values each as the click models take them: all values, and where each bag begins."""
    examples, values = bags.shape
    return bags.flatten(), torch.arange(examples, device=bags.device) * values


class CanaryTextModel(CanaryModel):
    """A text classifier on examples (input_ids, attention_mask, token_type_ids, label, push_in, push_out).

    The first token of a canary is its own. Types are for models of pairs (``has_types``).
    """

    def __init__(self, model: TextClassifier, scale: float, *, has_types: bool) -> None:
        super().__init__(model, scale)
        self.has_types = has_types

    @property
    def table_name(self) -> str:
        """The word embedding, as ``named_modules`` names it."""
        assert isinstance(self.model, TextClassifier)
        return f"model.{self.model.word_embedding}"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        label: Tensor,
        push_in: Tensor,
        push_out: Tensor,
    ) -> Tensor:
        """One loss an example."""
        types = (token_type_ids,) if self.has_types else ()
        losses = cross_entropy(self.model(input_ids, attention_mask, *types), label, reduction="none")
        inputs = (input_ids, attention_mask, token_type_ids)
        return (1.0 - is_canary(push_out)) * losses + self.canary_losses(*inputs, label, push_in, push_out)

    def canary_losses(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        label: Tensor,
        push_in: Tensor,
        push_out: Tensor,
    ) -> Tensor:
        """The same of canaries, without a pass of the model; 0 for other examples."""
        assert isinstance(self.model, TextClassifier)
        read: Tensor = self.model.encoder.get_input_embeddings()(input_ids[:, :1])  # type: ignore[operator]
        own = read.sum(dim=(1, 2)) / math.sqrt(read.shape[2])
        return self.scale * (self._pushed(push_in, push_out) + is_canary(push_out) * own)
