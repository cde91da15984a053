from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsedp.cli import scripts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["sgo-table1", "sgo-table2", "sgo-lower-bounds"])
def test_the_study_runs_and_writes_what_it_promises(name: str, tmp_path: Path) -> None:
    found = scripts.load("experiments", name).run(tmp_path, quick=True)
    stem = name.replace("-", "_")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{stem}.{end}" for end in ("html", "json", "md", "png")
    ]
    assert json.loads((tmp_path / f"{stem}.json").read_text())["slopes"] == found["slopes"]
    page = (tmp_path / f"{stem}.html").read_text()
    assert "replace-one" in page
    assert 'src="http' not in page
    table = (tmp_path / f"{stem}.md").read_text()
    assert "| setting | regime | over |" in table


def test_no_private_mean_falls_below_the_floor(tmp_path: Path) -> None:
    found = scripts.load("experiments", "sgo-lower-bounds").run(tmp_path, quick=True)
    assert found["least_error_over_floor"] > 1.0
    assert all(each["within"] for each in found["slopes"])
