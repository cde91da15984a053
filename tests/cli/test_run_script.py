"""A script is run as Python would run it, but for a missing extra or data set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.hidden import run_without

from sparsedp.cli import run_script


def test_a_script_has_its_arguments_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("word = 'hello'\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, neighbour\nprint(__name__, neighbour.word, sys.argv[1:])\n")
    command = [sys.executable, "-m", "sparsedp.cli.run_script", str(script), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ hello ['--json']\n"


@pytest.mark.parametrize(
    ("module", "code", "line"),
    [
        ("zstandard", 2, "sparsedp: zstandard is not installed: run pip install 'sparsedp[data]'\n"),
        ("nothing_such", 1, None),
    ],
)
def test_only_a_missing_extra_is_one_line(module: str, code: int, line: str | None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import {module}\n")
    start = (
        f"import runpy, sys; sys.argv[0] = ''; runpy.run_module({run_script.__name__!r}, run_name='__main__')"
    )
    done = run_without(["zstandard"], start, str(script), cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr == line if line else "Traceback" in done.stderr


def test_a_missing_data_set_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparsedp.cli.run_script"]
    script = Path(__file__).parents[2] / "benchmarks" / "logistic.py"
    done = subprocess.run([*command, str(script), "--data", str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    line = f"sparsedp: data set adult: there is no file {tmp_path}/adult/a9a.zst; see docs/data-sets.md\n"
    assert done.stderr == line
