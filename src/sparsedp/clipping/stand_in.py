"""Takes the place of one module's ``forward``, and gives it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn


class StandIn(ABC):
    """Called instead of ``module.forward`` while attached.

    The module's class, parameters and state_dict keys stay as they are, and hooks of the user's run around
    the stand-in as around the module's own forward: what it sees is what the layer itself computes with.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own: Callable[..., Any] = module.forward
        self._shadows = False

    def attach(self) -> None:
        """Take the place of the module's forward, which may be another stand-in."""
        self._shadows = "forward" in vars(self.module)
        self.own = self.module.forward
        self.module.forward = self

    def detach(self) -> None:
        """Give the module its forward back; stand-ins of one module are detached in reverse order."""
        if vars(self.module).get("forward") is self:
            del self.module.forward
            if self._shadows:
                self.module.forward = self.own

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the module's forward does."""

    def __reduce__(self) -> tuple[Any, ...]:
        # What a copy or a pickle of the module gets in our place: a forward of its own.
        return _itself, (self.own,)


def _itself(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward
