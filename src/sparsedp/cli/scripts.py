"""Scripts that live beside the package (benchmarks, experiments), found in a checkout or in the wheel."""

from __future__ import annotations

import importlib
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


def find(kind: str) -> dict[str, Path]:
    """Scripts that can be run, by their names on the command line: ``fest/utility.py`` is ``fest-utility``."""
    root = folder(kind)
    found = {
        "-".join(path.relative_to(root).with_suffix("").parts).replace("_", "-"): path
        for path in root.rglob("*.py")
        if "\ndef run(" in path.read_text(encoding="utf-8")
    }
    return dict(sorted(found.items()))


def names(kind: str) -> list[str]:
    """The names of the scripts that can be run."""
    return list(find(kind))


def load(kind: str, name: str) -> ModuleType:
    """Import a script by its name on the command line.

    Scripts in a package import each other by its name (``experiments.common``), others as neighbours.
    """
    known = find(kind)
    if name not in known:
        raise ValueError(f"{name!r} is not one of the {kind}: {', '.join(known)}")
    root, path = folder(kind), known[name]
    if (root / "__init__.py").exists():
        _import_file(kind, root / "__init__.py")
        return importlib.import_module(".".join([kind, *path.relative_to(root).with_suffix("").parts]))
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return _import_file(path.stem, path)


def _import_file(name: str, path: Path) -> ModuleType:
    """The module in a file; one that is already imported under that name from there is reused."""
    loaded = sys.modules.get(name)
    if loaded is not None and Path(loaded.__file__ or "") == path:
        return loaded
    packages = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=packages)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
