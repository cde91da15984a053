"""Scripts are found in a checkout and where the wheel puts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sparsedp
from sparsedp.cli import scripts

ROOT = Path(__file__).parents[2]
SOURCE = Path(sparsedp.__file__).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on the path with the package as the wheel has it: the scripts inside, no checkout around it."""
    package = tmp_path / "lib" / "site" / "sparsedp"
    package.mkdir(parents=True)
    for child in SOURCE.iterdir():
        (package / child.name).symlink_to(child)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, target in build["force-include"].items():
        (package.parent / target).symlink_to(ROOT / source)
    return package.parent


def command(installed: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    start = [sys.executable, "-m", "sparsedp", *words]
    done = subprocess.run(start, capture_output=True, text=True, env=environment, cwd=installed.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_copy_has_the_studies_and_benchmarks(installed: Path) -> None:
    assert command(installed, "reproduce").split() == scripts.names("experiments")
    assert command(installed, "bench", "--list").split() == scripts.names("benchmarks")


@pytest.mark.slow
def test_an_installed_copy_runs_a_study(installed: Path, tmp_path: Path) -> None:
    command(installed, "reproduce", "fest-knobs", "--quick", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "fest-knobs" / "results.csv").exists()


def test_names_come_from_folders_and_files() -> None:
    assert scripts.find("experiments")["fest-utility"] == ROOT / "experiments" / "fest" / "utility.py"
    assert scripts.find("benchmarks")["pctr-step"] == ROOT / "benchmarks" / "pctr_step.py"


def test_a_script_is_imported_once() -> None:
    for kind, name in (("experiments", "fest-knobs"), ("benchmarks", "ledger")):
        assert scripts.load(kind, name) is scripts.load(kind, name)


def test_an_unknown_script_is_refused() -> None:
    with pytest.raises(ValueError, match="'nothing' is not one of the experiments: fest-"):
        scripts.load("experiments", "nothing")
