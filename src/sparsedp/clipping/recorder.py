"""The layer inputs and output gradients of the backward passes that have run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from sparsedp.clipping.watch import Call

BeforeRead = Callable[[str, Tensor], None]


class Recorder:
    """What the watched layers of one model write to: one list of calls and gradients per backward pass."""

    def __init__(self, root: nn.Module) -> None:
        self.before_read: BeforeRead | None = None
        self.arguments: Any = None
        """What the model was called with, while its forward runs."""
        self.is_paused = False
        """Modules run without being recorded."""
        self._root = root
        self._passes: dict[int, list[tuple[Call, Tensor]]] = {}

    def listening(self) -> bool:
        """True while the model trains with gradients on."""
        return self._root.training and torch.is_grad_enabled() and not self.is_paused

    def batch_size(self) -> int | None:
        """The size that all tensors among the model's arguments share along dimension 0, if they do."""
        tensors = [leaf for leaf in tree_leaves(self.arguments) if isinstance(leaf, Tensor) and leaf.dim()]
        sizes = {tensor.shape[0] for tensor in tensors}
        return sizes.pop() if len(sizes) == 1 else None

    def add(self, task: int, call: Call, grad: Tensor) -> None:
        """A gradient that backward pass number ``task`` brought to a call."""
        self._passes.setdefault(task, []).append((call, grad))

    def take(self) -> list[list[tuple[Call, Tensor]]]:
        """The passes since the last time, in the order in which they began; they are forgotten here."""
        passes, self._passes = self._passes, {}
        return list(passes.values())
