"""The largest tensor that anything makes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestAllocation(TorchDispatchMode):
    """Remembers the largest tensor that any torch operation makes (the table itself apart)."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.largest = 0
        self._known = known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, Tensor) and made.layout == torch.strided:
                storage = made.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self.largest = max(self.largest, storage.nbytes())
        return result
