"""Every worked example of docs/extending.md runs as it stands."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsedp.clipping.layers import registry
from sparsedp.runs import ALGORITHMS
from sparsedp.selection import Selection

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
EXAMPLES = dict(
    re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE)
)


@pytest.fixture(autouse=True)
def _forget_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(Selection, "_kinds", dict(Selection._kinds))
    known = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(known)


def test_every_example_is_run() -> None:
    assert list(EXAMPLES) == [
        "A layer",
        "A selection",
        "An algorithm on the command line",
        "A mechanism",
        "A data set",
    ]
    assert len(EXAMPLES) == PAGE.count("```python")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[name])
    runpy.run_path(str(script), run_name="example")
