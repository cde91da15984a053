from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.cli import scripts

STUDY = """
import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from experiments.paper.neighbour import ANSWER, DataSet

DATA_SETS = (DataSet("cats"), DataSet("dogs"))


def run(study: Study):
    names = [each.name for each in study.choose(DATA_SETS)]
    for name in names:
        study.find(name, ["animals.csv"])
    table = pl.DataFrame({"answer": [ANSWER] * len(names), "set": names})
    return study.write("Answers", "One for each.", {"Answers": table}, {"Picture": go.Figure()})
"""
NEIGHBOUR = """
from dataclasses import dataclass

ANSWER = 42

@dataclass
class DataSet:
    name: str
"""


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with one study, a neighbour, and the real writer; its data sets are there."""
    common = scripts.folder("experiments") / "common"
    folder = tmp_path / "checkout" / "experiments"
    shutil.copytree(common, folder / "common", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "__init__.py").touch()
    (folder / "paper").mkdir()
    (folder / "paper" / "my_study.py").write_text(STUDY)
    (folder / "paper" / "neighbour.py").write_text(NEIGHBOUR)
    for name in ("cats", "dogs"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "animals.csv").touch()
    monkeypatch.setattr(scripts, "PACKAGE", tmp_path / "checkout" / "src" / "sparsedp")
    monkeypatch.delenv("SPARSEDP_DATA", raising=False)
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "experiments"}
    yield tmp_path / "data"
    for name in [name for name in sys.modules if name.split(".")[0] == "experiments"]:
        del sys.modules[name]
    sys.modules.update(real)


def test_a_study_is_run_into_its_folder(studies: Path, tmp_path: Path) -> None:
    assert (
        invoke("reproduce").stdout.split()
        == invoke("reproduce", "--list").stdout.split()
        == ["paper-my-study"]
    )
    arguments = ("reproduce", "paper-my-study", "--data", studies, "--out", tmp_path / "out")
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert found["tables"]["Answers"] == [{"answer": 42, "set": "cats"}, {"answer": 42, "set": "dogs"}]
    assert found["command"] == "sparsedp reproduce paper-my-study"
    assert json.loads((tmp_path / "out" / "paper-my-study" / "results.json").read_text()) == found
    assert "results.csv" in invoke(*arguments).stdout


def test_only_the_data_sets_asked_for(studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(studies / "cats")
    monkeypatch.setenv("SPARSEDP_DATA", str(studies))
    arguments = ("reproduce", "paper-my-study", "--out", tmp_path / "out", "--json")
    found = json.loads(invoke(*arguments, "--dataset", "dogs").stdout)
    assert [line["set"] for line in found["tables"]["Answers"]] == ["dogs"]
    assert found["command"] == "sparsedp reproduce paper-my-study --dataset dogs"
    assert_refused(invoke(*arguments), "data set cats", "cats/animals.csv", "docs/data-sets.md")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["data set cats", "--data DIR or SPARSEDP_DATA", "cats/animals.csv", "docs/data-sets.md"]),
        (["--dataset", "birds"], ["does not run on 'birds'", "its data sets are cats, dogs"]),
        (["--dataset", "cats", "--quick"], ["dataset: with --quick"]),
    ],
)
def test_what_is_absent_is_one_line(
    options: list[str], words: list[str], studies: Path, tmp_path: Path
) -> None:
    assert_refused(invoke("reproduce", "paper-my-study", "--out", tmp_path / "out", *options), *words)
    assert not (tmp_path / "out").exists()


def test_an_unknown_name_is_one_line(tmp_path: Path) -> None:
    assert_refused(invoke("reproduce", "nothing", "--out", tmp_path / "out"), "'nothing' is not one of the")
    assert not (tmp_path / "out").exists()


def test_a_study_without_data_sets_has_none_to_choose(tmp_path: Path) -> None:
    found = invoke("reproduce", "fest-knobs", "--dataset", "flights", "--out", tmp_path / "out")
    assert_refused(found, "fest-knobs does not run on 'flights'; it has none to choose from")


def test_a_real_study_says_which_data_it_lacks(tmp_path: Path) -> None:
    found = invoke("reproduce", "fest-utility", "--data", tmp_path, "--out", tmp_path / "out")
    assert_refused(found, "data set flights-3m", "flights-3m.parquet", "docs/data-sets.md")


def test_the_real_studies_are_listed() -> None:
    names = json.loads(invoke("reproduce", "--json").stdout)
    assert {"fest-utility", "fest-streaming", "sgo-table1", "sgo-lower-bounds"} <= set(names)
    assert not [name for name in names if name.startswith("common")]
