"""Opacus's names, accepted where they mean the same, so that a script ports by changing its import."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from sparsedp.training.engine import PrivacyEngine

_Make = TypeVar("_Make", bound=Callable[..., Any])


def accept_opacus_names(make: _Make) -> _Make:
    """Let ``make`` also take ``poisson_sampling`` (poisson), ``batch_first``, ``grad_sample_mode`` and ``clipping``."""

    @wraps(make)
    def accepting(self: Any, **arguments: Any) -> Any:
        if "poisson_sampling" in arguments:
            if "poisson" in arguments:
                raise ValueError("poisson and poisson_sampling are the same: give one of them")
            arguments["poisson"] = arguments.pop("poisson_sampling")
        if not arguments.pop("batch_first", True):
            raise ValueError(
                "batch_first=False: examples must lie along dimension 0 of a module's inputs and outputs; "
                "transpose sequences inside the module"
            )
        _check_mode(arguments.pop("grad_sample_mode", "hooks"))
        if (clipping := arguments.pop("clipping", "flat")) != "flat":
            raise ValueError(
                f"clipping={clipping!r}: an example's gradient is clipped as a whole here (clipping='flat'), which needs less "
                "noise than a norm for each layer; leave it out"
            )
        return make(self, **arguments)

    return cast(_Make, accepting)


def _check_mode(mode: str) -> None:
    """Modes of Opacus that differ in how gradients are computed, not in what a script does, stand for the one here."""
    if mode not in ("hooks", "functorch", "ew"):
        raise ValueError(
            f"grad_sample_mode={mode!r}: leave it out. Clipping here is by norms that need no per-example gradients, so "
            "make_private returns (module, optimizer, data_loader) without a wrapped criterion: use your own, and "
            "loss.backward()"
        )


def secure_by(secure: bool, secure_mode: bool | None, seed: int | None) -> bool:
    """``secure_mode=False`` requests less than the default, so only ``True`` with a seed is refused."""
    if secure_mode and seed is not None:
        raise ValueError("secure_mode=True and seed exclude each other: a seeded run is not private")
    return secure


class EpsilonReader:
    """What ``engine.accountant`` returns: it has ``get_epsilon``."""

    def __init__(self, engine: PrivacyEngine) -> None:
        self._engine = engine

    def get_epsilon(self, delta: float) -> float:
        """``engine.epsilon(delta)``."""
        return self._engine.epsilon(delta)
