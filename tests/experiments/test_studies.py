"""The study of users at its smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import users
from experiments.common.study import Study


@pytest.mark.slow
def test_it_runs_and_writes_its_files(tmp_path: Path) -> None:
    study = Study("users", tmp_path, quick=True)
    found = users.run(study)
    assert study.files() == ["figure.html", "figure.svg", "results.csv", "results.json", "table.md"]
    (lines,) = found["tables"].values()
    assert [line["unit"] for line in lines] == list(users.WAYS)
    _, example, drawn, rows = lines
    assert example["epsilon of a user"] > 2 * example["epsilon"]
    for line in (drawn, rows):
        assert line["epsilon of a user"] == line["epsilon"] <= 8.0
