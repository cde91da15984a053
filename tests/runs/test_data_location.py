"""A run finds its data from any folder, after a move, and refuses other data in its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.command_line import assert_refused, invoke
from support.runs import config

from sparsedp.data import Columns, HashRule, Label, Schema, Table, prepare
from sparsedp.runs import RunConfig, RunFolder
from sparsedp.runs.data_location import data_record, fit_to_data, locate_data, record_data, refuse_among_data
from sparsedp.runs.setup import RunSetup
from sparsedp.runs.text_config import TextConfig

MODEL = {"hidden": [4], "dims": [2, 2]}


def asked(data: str | Path, **changes: Any) -> RunConfig:
    return config(data=str(data), model_options=MODEL, expected_batch_size=100, **changes)


def bags(folder: Path) -> Path:
    """Prepared data with a multi-hot column."""
    generator = np.random.default_rng(0)
    tags = ["|".join(map(str, generator.integers(0, 9, 2))) for _ in range(200)]
    frame = pl.DataFrame({"click": generator.integers(0, 2, 200), "user": range(200), "tags": tags})
    frame.write_csv(folder / "bags.csv")
    columns = Columns(Label.parse("click"), categorical=("user",), multi_hot=("tags",))
    rules = {"user": HashRule(50), "tags": HashRule(20)}
    prepare(Table.of([folder / "bags.csv"], columns), folder / "bags", rules)
    return folder / "bags"


def test_paths_are_stored_absolute(other_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(other_data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    RunSetup.create(asked("data", ledger="data.ledger"), "run")
    stored = RunFolder(tmp_path / "run").config()
    assert stored.data == str(tmp_path / "data")
    assert stored.ledger == str(tmp_path / "data.ledger")


def test_a_run_and_its_data_moved_together_are_found(
    other_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(other_data, old / "data")
    RunSetup.create(asked(old / "data"), old / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    old.rename(new)
    assert locate_data(RunFolder("new/runs/one")).data == str(new / "data")
    assert len(RunSetup.reopen(RunFolder(new / "runs" / "one")).data) == 400


def test_data_that_moved_is_named_and_given_once(other_data: Path, tmp_path: Path) -> None:
    shutil.copytree(other_data, tmp_path / "data")
    RunSetup.create(asked(tmp_path / "data"), tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    folder = RunFolder(tmp_path / "run")
    refused = (
        f"data: the run's data is not at {tmp_path / 'data'}; if it moved, say where it is now: --run-data"
    )
    assert_refused(invoke("resume", tmp_path / "run"), refused)
    (tmp_path / "run" / "model.safetensors").touch()
    assert_refused(invoke("evaluate", tmp_path / "run"), refused)
    locate_data(folder, str(tmp_path / "elsewhere"))
    assert locate_data(folder).data == str(tmp_path / "elsewhere")


def test_other_data_in_its_place_is_refused(other_data: Path, tmp_path: Path) -> None:
    """Resuming on it would charge its examples to the ledger of others."""
    shutil.copytree(other_data, tmp_path / "data")
    RunSetup.create(asked(tmp_path / "data"), tmp_path / "run")
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(bags(tmp_path), tmp_path / "data")
    for run_data in (None, str(tmp_path / "data")):
        with pytest.raises(ValueError, match="holds other data than the run began with"):
            locate_data(RunFolder(tmp_path / "run"), run_data)


@pytest.mark.parametrize("name", ["train.tsv", "."])
def test_other_texts_in_their_place_are_refused(name: str, tmp_path: Path) -> None:
    texts, folder = tmp_path / "texts", RunFolder(tmp_path / "run")
    texts.mkdir()
    (texts / "train.tsv").write_text("sentence\tlabel\nfine\t1\n")
    stated = {"task": "text", "data": str(texts / name), "algorithm": "dp-sgd", "epsilon": 1.0}
    asked_for = TextConfig.parse(stated)
    folder.create(asked_for)
    record_data(folder, asked_for)
    assert locate_data(folder).data == str((texts / name).resolve())
    (texts / "train.tsv").write_text("sentence\tlabel\nfine\t0\n")
    with pytest.raises(ValueError, match="holds other data than the run began with"):
        locate_data(folder)
    folder.write_json("private/data", {"digest": None})  # a run of before
    locate_data(folder)


def test_what_may_be_released_has_no_hash_of_the_data(other_data: Path, tmp_path: Path) -> None:
    folder = RunSetup.create(asked(other_data), tmp_path / "run").folder
    schema = Schema.read(other_data)
    hashes = [
        schema.digest,
        *(part.sha256 for part in schema.parts),
        *(each.sample_sha256 for each in schema.sources),
    ]
    released = [each for each in folder.path.rglob("*") if each.is_file() and each.parent.name != "private"]
    assert {"config.yaml", "data.json", "schema.json"} <= {each.name for each in released}
    for path in released:
        assert not any(each in path.read_text() for each in hashes), path.name
    assert data_record(folder)["digest"] == schema.digest


def test_a_run_of_before_has_the_hash_beside_the_path(other_data: Path, tmp_path: Path) -> None:
    folder = RunSetup.create(asked(other_data), tmp_path / "run").folder
    folder.write_json("data", {**data_record(folder), "digest": "another"})
    (folder.path / "private" / "data.json").unlink()
    with pytest.raises(ValueError, match="holds other data than the run began with"):
        locate_data(folder)


@pytest.mark.parametrize(
    ("data", "out", "words"),
    [
        ("run/data", "run", "run holds the run's data"),
        ("run/a/train.tsv", "run", "run holds the run's data"),
        ("data", "link", "link holds the run's data"),
        ("data", "data/run", "run lies in the folder of the run's data"),
        ("data", "link/a/b", "b lies in the folder of the run's data"),
        ("link", "data/run", "run lies in the folder of the run's data"),
    ],
)
def test_a_run_and_its_data_do_not_lie_in_each_other(data: str, out: str, words: str, tmp_path: Path) -> None:
    """What may be released and what may not would be one folder."""
    for name in ("data", "run/data", "run/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run/a/train.tsv").touch()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(ValueError, match=words):
        refuse_among_data(TextConfig(data=str(tmp_path / data), epsilon=1.0), tmp_path / out)
    for other in ("other", "run/other", "data-2"):
        refuse_among_data(TextConfig(data=str(tmp_path / data), epsilon=1.0), tmp_path / other)


def test_no_command_writes_a_run_among_its_data(other_data: Path, tmp_path: Path) -> None:
    base = ["--data", other_data, "--epsilon", 1]
    (tmp_path / "sweep.yaml").write_text("base: {algorithm: adafest}\ngrid: {seed: [0, 1]}\n")
    before = sorted(other_data.parent.rglob("*"))
    for out, words in (
        (other_data / "a" / "b", "holds prepared data"),
        (other_data.parent, "holds the run's data"),
    ):
        for command in (
            ["train"],
            ["train", "--nproc", 2],
            ["tune", "--grid", "learning_rate=0.1,0.2"],
        ):
            assert_refused(invoke(*command, *base, "--out", out), words)
    swept = invoke("sweep", tmp_path / "sweep.yaml", *base, "--out", other_data / "a", "--json")
    assert_refused(swept, "holds prepared data")
    assert sorted(other_data.parent.rglob("*")) == before


def test_a_ledger_that_is_gone_is_not_begun_again(other_data: Path, tmp_path: Path) -> None:
    RunSetup.create(asked(other_data, ledger=str(tmp_path / "data.ledger")), tmp_path / "run")
    (tmp_path / "data.ledger").unlink()
    with pytest.raises(ValueError, match=r"^ledger: .*is not there: put it back"):
        RunSetup.reopen(RunFolder(tmp_path / "run"))
    assert not (tmp_path / "data.ledger").exists()


def test_generated_data_is_nowhere(tmp_path: Path) -> None:
    RunSetup.create(config(data="generated:300"), tmp_path / "run")
    assert locate_data(RunFolder(tmp_path / "run")).data == "generated:300"
    with pytest.raises(ValueError, match=r"^run_data: "):
        locate_data(RunFolder(tmp_path / "run"), str(tmp_path))


def test_a_model_that_reads_multi_hot_columns_is_picked_and_said(tmp_path: Path) -> None:
    fields = {"data": str(bags(tmp_path)), "algorithm": "adafest", "epsilon": 2.0}
    fitted, notes = fit_to_data(RunConfig.parse(fields))
    assert fitted.model == "dlrm"
    assert notes == [
        "model: dlrm, because the data has multi-hot columns (tags), which pctr does not read",
    ]
    assert fit_to_data(RunConfig.parse({**fields, "model": "pctr"}))[0].model == "pctr"  # as was asked
    with pytest.warns(UserWarning, match="model: dlrm, because"):
        setup = RunSetup.create(RunConfig.parse(fields), tmp_path / "run")
    assert type(setup.model).__name__ == "DLRM"
    assert RunFolder(tmp_path / "run").config().model == "dlrm"


def test_one_hot_data_keeps_the_model(other_data: Path) -> None:
    fields = {"data": str(other_data), "algorithm": "adafest", "epsilon": 2.0}
    assert fit_to_data(RunConfig.parse(fields))[0].model == "pctr"
    assert fit_to_data(RunConfig.parse(fields))[1] == []
