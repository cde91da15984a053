from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest

from experiments.common.study import Study

LINE = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], mode="lines"))


@dataclass
class Set:
    name: str


SETS = [Set("cats"), Set("dogs"), Set("birds")]


def test_all_files_have_the_findings_and_the_command(tmp_path: Path) -> None:
    study = Study("fest-test", tmp_path / "out", quick=True)
    table = pl.DataFrame({"rows": [1, 2], "auc": [0.5, None]})
    found = study.write("Title", "What it is.", {"AUC": table}, {"Curve": LINE}, numbers={"best_auc": 0.5})
    assert study.files() == ["figure.html", "figure.svg", "results.csv", "results.json", "table.md"]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    assert found["tables"] == {"AUC": [{"rows": 1, "auc": 0.5}, {"rows": 2, "auc": None}]}
    assert found["numbers"] == {"best_auc": 0.5}
    assert pl.read_csv(tmp_path / "out" / "results.csv").equals(table)
    text, page = ((tmp_path / "out" / name).read_text() for name in ("table.md", "figure.html"))
    for each in (text, page, json.dumps(found)):
        assert "sparsedp reproduce fest-test --quick" in each
        assert "What it is." in each
    assert "| best auc | 0.5 |" in text
    assert 'src="http' not in page


def test_later_findings_are_added_to_those_before(tmp_path: Path) -> None:
    """An interrupted study leaves what it had; the measurements may differ in their columns."""
    study = Study("fest-test", tmp_path)
    study.write("T", "L", {"one": pl.DataFrame({"a": [1]})}, {"1": LINE}, pl.DataFrame({"x": [1.0]}))
    assert list(json.loads((tmp_path / "results.json").read_text())["tables"]) == ["one"]
    study.write("T", "L", {"two": pl.DataFrame({"a": [2]})}, {"2": LINE}, pl.DataFrame({"y": [2.0]}))
    assert list(json.loads((tmp_path / "results.json").read_text())["tables"]) == ["one", "two"]
    assert pl.read_csv(tmp_path / "results.csv").rows() == [(1.0, None), (None, 2.0)]


def test_measurements_keep_every_digit(tmp_path: Path) -> None:
    values = [1 / 3, 1e-300, 0.1 + 0.2]
    Study("a", tmp_path).write("T", "L", {"t": pl.DataFrame({"x": values})}, {"p": LINE})
    assert pl.read_csv(tmp_path / "results.csv")["x"].to_list() == values


def test_data_sets_are_chosen_in_the_order_of_the_study(tmp_path: Path) -> None:
    assert Study("a", tmp_path).choose(SETS) == SETS
    study = Study("a", tmp_path, chosen=("birds", "cats"))
    assert [each.name for each in study.choose(SETS)] == ["cats", "birds"]
    assert study.command == "sparsedp reproduce a --dataset birds --dataset cats"


def test_unknown_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="dataset: a does not run on 'fish'; its data sets are cats, dogs, birds"
    ):
        Study("a", tmp_path, chosen=("cats", "fish")).choose(SETS)


def test_a_data_set_is_found_under_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.csv").touch()
    study = Study("a", tmp_path / "out", data=tmp_path)
    assert study.find("cats", ["a.csv"]) == tmp_path / "cats"
    with pytest.raises(ValueError, match=r"data set cats: there is no file .*b\.csv"):
        study.find("cats", ["b.csv"])
