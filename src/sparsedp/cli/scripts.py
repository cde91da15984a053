"""Scripts that live beside the package (benchmarks, experiments), found in a checkout or in the wheel."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import sparsedp

PACKAGE = Path(sparsedp.__file__).parent


def folder(kind: str) -> Path:
    """Where the scripts of a kind lie."""
    for place in (PACKAGE.parents[1] / kind, PACKAGE / f"_{kind}"):
        if place.is_dir():
            return place
    raise ValueError(f"the {kind} are not installed with this copy of sparsedp")


def names(kind: str) -> list[str]:
    """Scripts that can be run, by their names on the command line."""
    paths = sorted(folder(kind).glob("*.py"))
    return [path.stem.replace("_", "-") for path in paths if "\ndef run(" in path.read_text()]


def load(kind: str, name: str) -> ModuleType:
    """Import a script; its neighbours are importable from it."""
    if name not in names(kind):
        raise ValueError(f"{name!r} is not one of the {kind}: {', '.join(names(kind))}")
    path = folder(kind) / f"{name.replace('-', '_')}.py"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
