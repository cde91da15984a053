"""Every study of FEST at its smallest size."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from experiments.common.study import Study
from sparsedp.cli import scripts

QUICKEST = ("fest-knobs", "fest-sparsity")
NAMES = [name for name in scripts.names("experiments") if name.startswith("fest-")]


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_it_runs_and_writes_its_files(name: str, tmp_path: Path) -> None:
    study = Study(name, tmp_path, quick=True)
    found = scripts.load("experiments", name).run(study)
    assert study.files() == ["figure.html", "figure.svg", "results.csv", "results.json", "table.md"]
    assert all(found["tables"].values())
    results = pl.read_csv(tmp_path / "results.csv")
    assert "run" not in results.columns or results["run"].is_unique().all()


def test_sparsity_is_that_of_the_generated_clicks(tmp_path: Path) -> None:
    found = scripts.load("experiments", "fest-sparsity").run(Study("fest-sparsity", tmp_path, quick=True))
    (lines,) = found["tables"].values()
    assert (lines[0]["feature"], lines[0]["vocabulary"]) == ("C3", 82741)
    assert lines[-1]["feature"] == "all"
    assert 0.9 < lines[-1]["sparsity"] < 1.0
