"""The examples and the README run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["loop", "dlrm", "adagrad"])
def test_an_example_runs_and_keeps_its_budget(name: str) -> None:
    statement = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]()
    assert statement.private
    assert 0 < statement.epsilon <= (1.0 if name == "loop" else 3.0) + 1e-6


@pytest.mark.parametrize("number", [0, 1])
def test_the_readme_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    exec(compile(blocks[number], f"README block {number}", "exec"), {})
    assert "-DP" in capsys.readouterr().out
