from __future__ import annotations

from pathlib import Path

import pytest

from sparsedp.cli.data_sets import find_data_set

FILES = ["a.csv", "b.csv"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPARSEDP_DATA", raising=False)
    (tmp_path / "data" / "ratings").mkdir(parents=True)
    for file in FILES:
        (tmp_path / "data" / "ratings" / file).touch()
    return tmp_path / "data"


def test_the_option_comes_before_the_variable(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEDP_DATA", str(data))
    assert find_data_set("ratings", FILES) == data / "ratings"
    with pytest.raises(
        ValueError, match=r"data set ratings: there is no file elsewhere/ratings/a.csv; see docs"
    ):
        find_data_set("ratings", FILES, Path("elsewhere"))
    monkeypatch.setenv("SPARSEDP_DATA", "elsewhere")
    assert find_data_set("ratings", FILES, data) == data / "ratings"


def test_a_missing_file_is_named(data: Path) -> None:
    (data / "ratings" / "b.csv").unlink()
    with pytest.raises(ValueError, match=r"ratings/b.csv; see docs/data-sets.md"):
        find_data_set("ratings", FILES, data)


def test_it_is_looked_for_nowhere_else(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    wanted = r"data set ratings: give the folder that holds ratings/a.csv, ratings/b.csv as --data DIR or SPARSEDP_DATA"
    with pytest.raises(ValueError, match=wanted):
        find_data_set("ratings", FILES)
