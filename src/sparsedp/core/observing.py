"""Where data meets noise, and where a step is charged, an audit can look on (see ``sparsedp.audit.recording``).

A function marked as a *draw* takes private values and returns them with noise, or chooses by them. Without a
observer a draw costs one look-up. An observer sees the arguments of every draw and decides what it returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Observer(Protocol):
    """Is told of draws and charges, in their order."""

    def draw(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """A draw with these arguments is due: what it returns is returned; ``run`` makes the real one."""

    def charge(self, event: Any) -> None:
        """The event is charged; what it covers is drawn next."""


_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Within this block the observer sees draws and charges; None: nobody does."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def draw(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function in which data meets noise. Draws within a draw are its own business."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def observed(*args: P.args, **kwargs: P.kwargs) -> R:
        observer = _OBSERVER.get()
        if observer is None:
            return function(*args, **kwargs)

        def run() -> R:
            with observed_by(None):
                return function(*args, **kwargs)

        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        result: R = observer.draw(function.__qualname__, bound.arguments, run)
        return result

    return observed


def note_charge(event: Any) -> None:
    """Say that an event is charged, before what it covers is drawn."""
    observer = _OBSERVER.get()
    if observer is not None:
        observer.charge(event)
