"""``sparsedp predict``: from a raw file to a file of probabilities, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support.command_line import assert_refused, invoke
from support.served import Served, raw_frame

from sparsedp.data import write_criteo_tsv


def test_a_file_is_predicted(served: Served, tmp_path: Path) -> None:
    raw_frame(30).with_columns(more=1).write_csv(tmp_path / "new.csv", null_value="NA")
    out = tmp_path / "scores.parquet"
    result = invoke("predict", served.run, "--input", tmp_path / "new.csv", "--out", out, "--id", "when")
    assert result.exit_code == 0, result.output
    assert "30 rows" in result.stdout
    assert "NOT PRIVATE" in result.stdout
    assert "ignored columns: more" in result.stderr
    assert pl.read_parquet(out).columns == ["when", "probability"]


def test_json_and_rows_that_cannot_be_read(served: Served, tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("user\titem\ttags\tprice\na\t1\tt\t2\nb\t1\n")
    command = ["predict", served.run, "--input", tmp_path / "new.tsv", "--out", tmp_path / "s.csv"]
    result = invoke(*command, "--json")
    assert json.loads(result.stdout)["unreadable"] == 1
    assert "line 3: 2 columns instead of 4" in result.stderr
    assert_refused(invoke(*command[:-1], tmp_path / "t.csv", "--strict"), "new.tsv, line 3: 2 columns")


def test_standard_output_is_the_csv_alone(served: Served, tmp_path: Path) -> None:
    text = raw_frame(5).write_csv(null_value="NA").replace(",", ";")
    (tmp_path / "new.csv").write_text(text)
    command = ["predict", served.run, "--input", tmp_path / "new.csv", "--out", "-", "--separator", ";"]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert pl.read_csv(result.stdout.encode()).shape == (5, 1)
    assert "NOT PRIVATE" in result.stderr


def test_an_exported_folder_and_ones_own_model(own: Served, exported: Path, tmp_path: Path) -> None:
    assert invoke("predict", exported, "--input", own.raw, "--out", tmp_path / "a.csv").exit_code == 0
    assert_refused(
        invoke("predict", own.run, "--input", own.raw, "--out", tmp_path / "b.csv"), "model: ", "--trust"
    )
    result = invoke("predict", own.run, "--input", own.raw, "--out", tmp_path / "b.csv", "--trust")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"user,item\na,1\n", "input: no column 'price'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "input: "),
    ],
)
def test_bad_files_are_one_line(served: Served, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "new.csv").write_bytes(content)
    result = invoke("predict", served.run, "--input", tmp_path / "new.csv", "--out", tmp_path / "s.csv")
    assert_refused(result, said)
    assert not (tmp_path / "s.csv").exists()


def test_other_bad_input_is_one_line(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    assert_refused(
        invoke("predict", served.run, "--input", tmp_path / "no.csv", "--out", out), "there is no file"
    )
    assert_refused(invoke("predict", served.run, "--input", tmp_path, "--out", out), "is not a regular file")
    assert_refused(invoke("predict", tmp_path, "--input", served.raw, "--out", out), "holds neither a run")
    assert_refused(invoke("predict", served.run, "--input", served.raw, "--out", served.raw), "is the input")
    out.write_text("precious")
    assert_refused(invoke("predict", served.run, "--input", served.raw, "--out", out), "exists")
    assert out.read_text() == "precious"
    typed = tmp_path / "typed.parquet"
    raw_frame(3).with_columns(pl.col("item").cast(pl.Float64)).write_parquet(typed)
    result = invoke("predict", served.run, "--input", typed, "--out", tmp_path / "t.csv")
    assert_refused(result, "item: values of type Float64 have no one text")


@pytest.mark.slow
def test_criteo_from_prepare_to_predictions(tmp_path: Path) -> None:
    write_criteo_tsv(tmp_path / "train.txt", 3000)
    write_criteo_tsv(tmp_path / "new.txt.zst", 500, start=3000)
    assert invoke("prepare", "criteo", tmp_path / "train.txt", "--out", tmp_path / "data").exit_code == 0
    options = [
        "--algorithm",
        "non-private",
        "--model-options",
        "{hidden: [8]}",
        "--expected-batch-size",
        "500",
    ]
    result = invoke("train", "--data", tmp_path / "data", *options, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    result = invoke(
        "predict", tmp_path / "run", "--input", tmp_path / "new.txt.zst", "--out", tmp_path / "s.parquet"
    )
    assert result.exit_code == 0, result.output
    assert len(pl.read_parquet(tmp_path / "s.parquet")) == 500
