"""The layer inputs and output gradients of the backward passes that have run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from sparsedp.clipping.watch import Call

    RecordedCall = tuple[Call, Tensor]
    """A call of a layer and the gradient of its output."""


class Recorder:
    """What the watched layers of one model write to: one list of calls and gradients per backward pass."""

    def __init__(self, root: nn.Module) -> None:
        self.arguments: Any = None
        """What the model was called with, while its forward runs."""
        self.is_paused = False
        """Modules run without being recorded."""
        self.piece: int | None = None
        """Which piece of which batch is in hand: forward passes belong to it."""
        self.examples: int | None = None
        """How many examples that piece has, where known."""
        self._root = root
        self._passes: dict[int, list[RecordedCall]] = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Modules run without being recorded."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def listening(self) -> bool:
        """True while the model trains with gradients on."""
        return self._root.training and torch.is_grad_enabled() and not self.is_paused

    def batch_size(self) -> int | None:
        """How many examples a call holds: the size that all tensors among the model's arguments share along
        dimension 0, else that of the piece in hand."""
        tensors = [leaf for leaf in tree_leaves(self.arguments) if isinstance(leaf, Tensor) and leaf.dim()]
        sizes = {tensor.shape[0] for tensor in tensors}
        return sizes.pop() if len(sizes) == 1 else self.examples

    def add(self, task: int, call: Call, grad: Tensor) -> None:
        """A gradient that backward pass number ``task`` brought to a call."""
        self._passes.setdefault(task, []).append((call, grad))

    def take(self) -> list[list[RecordedCall]]:
        """The passes since the last time, in the order in which they began; they are forgotten here."""
        passes, self._passes = self._passes, {}
        return list(passes.values())
