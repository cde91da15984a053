"""The site builds without a warning, needs no network, and its reference has every public name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = sorted(path.parent.name for path in (ROOT / "src" / "sparsedp").glob("*/__init__.py"))
PUBLIC = [
    (room, name)
    for room in ROOMS
    for name in getattr(importlib.import_module(f"sparsedp.{room}"), "__all__", ())
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        capture_output=True,
    )
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    assert len(PUBLIC) > 150
    anchors = {
        room: set(re.findall(r'id="([\w.]+)"', (site / "api" / room / "index.html").read_text()))
        for room in {room for room, _ in PUBLIC}
    }
    missing = [
        f"sparsedp.{room}.{name}" for room, name in PUBLIC if not _addresses(room, name) & anchors[room]
    ]
    assert not missing


def test_the_reference_links_every_room_and_every_name_of_the_package(site: Path) -> None:
    index = (site / "api" / "index.html").read_text()
    assert {f'href="{room}/"' for room, _ in PUBLIC} <= set(re.findall(r'href="\w+/"', index))
    names = set(importlib.import_module("sparsedp").__all__) - {"__version__"}
    assert names <= {name for _, name in PUBLIC}
    assert not [name for name in names if f"<code>{name}</code>" not in index]


def test_overriding_methods_inherit_their_docstrings(site: Path) -> None:
    accounting = importlib.import_module("sparsedp.accounting")
    assert accounting.ZCDPFilter.admits.__doc__ is None
    sentence = accounting.Filter.admits.__doc__.split(".")[0]
    page = (site / "api" / "accounting" / "index.html").read_text()
    own = page[page.index('id="sparsedp.accounting.ZCDPFilter.admits"') :]
    assert sentence in own[: own.index('id="sparsedp.accounting.ZCDPFilter.spend"')]


def test_parameters_become_lists() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference_parameters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = """Solve.

Parameters
----------
epsilon, delta
    The budget,
    in all.
lam : float, default=1
    Positive.
radius : a bound
    on weights.

Guarantee: yes."""
    assert module.parameters_as_list(written) == (
        "Solve.\n\nParameters:\n\n- ``epsilon``, ``delta``: The budget, in all.\n"
        "- ``lam``: float, default=1. Positive.\n- ``radius``: a bound on weights.\n\nGuarantee: yes."
    )


def test_notebooks_are_pages(site: Path) -> None:
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / notebook.stem / "index.html").read_text()
        assert "<h1" in page
        assert f"{notebook.name}" in page


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="?(https?:[^" >]*)')
    for page in site.rglob("*.html"):
        foreign = [address for address in loads.findall(page.read_text()) if "readthedocs" not in address]
        assert not foreign, page


@pytest.mark.parametrize(("room", "name"), PUBLIC)
def test_a_public_name_has_a_docstring(room: str, name: str) -> None:
    thing = getattr(importlib.import_module(f"sparsedp.{room}"), name)
    if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
        text = thing.__doc__ or ""
        assert len(text) > 10
        assert not text.startswith(f"{name}("), "made by dataclass"


def _addresses(room: str, name: str) -> set[str]:
    """Where the reference may have a name: in its room, or where it is defined."""
    thing = getattr(importlib.import_module(f"sparsedp.{room}"), name)
    home = thing.__name__ if isinstance(thing, ModuleType) else f"{getattr(thing, '__module__', '')}.{name}"
    return {f"sparsedp.{room}.{name}", home}
