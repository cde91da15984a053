"""A file of predictions: a row for every row, in order, whole or not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from support.served import Served, raw_frame

from sparsedp.data.new_rows import NewRows
from sparsedp.runs import TrainedModel, load
from sparsedp.runs.scores import predict_file


@pytest.fixture(scope="module")
def model(served: Served) -> TrainedModel:
    return load(served.run)


def rows_of(model: TrainedModel, path: Path, *copied: str) -> NewRows:
    return NewRows.of(path, model.encoding, copied=copied)


def read(path: Path) -> pl.DataFrame:
    return (
        pl.read_parquet(path)
        if path.suffix == ".parquet"
        else pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    )


@pytest.mark.parametrize("name", ["s.parquet", "s.csv", "s.tsv"])
def test_every_row_in_order_with_its_id(
    model: TrainedModel, served: Served, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsedp.data.new_rows.BLOCK_BYTES", 2000)
    seen: list[int] = []
    scored = predict_file(
        model, rows_of(model, served.raw, "when", "item"), tmp_path / name, progress=seen.append
    )
    found = read(tmp_path / name)
    assert found.columns == ["when", "item", "probability"]
    assert found["when"].cast(pl.Int64).to_list() == [60 * n for n in range(400)]
    np.testing.assert_allclose(found["probability"], model.predict_proba(raw_frame()), atol=1e-7)
    assert (scored.rows, scored.unreadable) == (400, 0)
    assert len(seen) > 3
    assert seen[-1] == served.raw.stat().st_size


def test_rows_that_cannot_be_read_have_no_prediction(model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,item,tags,price\na,1,t1,2\nb,1,t1,dear\nc\nd,1,t1,3\n")
    scored = predict_file(model, rows_of(model, path, "user"), tmp_path / "s.csv")
    found = read(tmp_path / "s.csv")
    assert found["user"].to_list() == ["a", "b", None, "d"]
    assert found["probability"].is_null().to_list() == [False, True, True, False]
    assert scored.examples == ((3, "price is 'dear', which is no number"), (4, "1 columns instead of 4"))
    with pytest.raises(ValueError, match=r"input: a.csv, line 3: price is 'dear'"):
        predict_file(model, rows_of(model, path), tmp_path / "t.csv", strict=True)
    assert {each.name for each in tmp_path.iterdir()} == {"a.csv", "s.csv"}


def test_only_the_first_of_many_bad_rows_are_kept(model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,item,tags,price\n" + "a,1,t1,x\n" * 50)
    scored = predict_file(model, rows_of(model, path), tmp_path / "s.csv")
    assert (scored.rows, scored.unreadable, len(scored.examples)) == (50, 50, 10)


@pytest.mark.parametrize("name", ["s.parquet", "s.csv"])
def test_no_rows_give_a_file_with_columns(model: TrainedModel, tmp_path: Path, name: str) -> None:
    raw_frame().clear().write_csv(tmp_path / "a.csv")
    assert predict_file(model, rows_of(model, tmp_path / "a.csv", "when"), tmp_path / name).rows == 0
    assert read(tmp_path / name).columns == ["when", "probability"]


def test_parquet_ids_keep_their_type(model: TrainedModel, tmp_path: Path) -> None:
    raw_frame(20).write_parquet(tmp_path / "a.parquet")
    predict_file(model, rows_of(model, tmp_path / "a.parquet", "when"), tmp_path / "s.parquet")
    assert read(tmp_path / "s.parquet").schema == {"when": pl.Int64, "probability": pl.Float64}


def test_standard_output(model: TrainedModel, served: Served, capfdbinary: Any, monkeypatch: Any) -> None:
    import io
    import sys

    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer))
    predict_file(model, rows_of(model, served.raw), Path("-"))
    assert pl.read_csv(buffer.getvalue()).shape == (400, 1)


def test_outputs_that_are_refused(model: TrainedModel, served: Served, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("precious")
    rows = rows_of(model, served.raw)
    for out, said in (
        (tmp_path / "there.csv", r"out: .*there.csv exists"),
        (served.raw, r"out: .*clicks.csv is the input"),
        (tmp_path / "s.xlsx", r"out: .*s.xlsx must end in .csv, .tsv, .parquet"),
        (tmp_path / "none" / "s.csv", "out: there is no folder"),
    ):
        with pytest.raises(ValueError, match=said):
            predict_file(model, rows, out)
    assert (tmp_path / "there.csv").read_text() == "precious"
    path = tmp_path / "a.csv"
    raw_frame(2).with_columns(probability=1).write_csv(path)
    with pytest.raises(ValueError, match="id: probability is the name of the predictions"):
        predict_file(model, rows_of(model, path, "probability"), tmp_path / "s.csv")


def test_memory_is_that_of_a_few_blocks(
    model: TrainedModel, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsedp.data.new_rows.BLOCK_BYTES", 1000)
    rows, held = rows_of(model, served.raw), 0
    ahead: list[int] = []
    blocks = rows.blocks

    class Counted(NewRows):
        def blocks(self) -> Any:
            nonlocal held
            for block in blocks():
                held += 1
                yield block

    counted = Counted(rows.path, rows.encoding)
    done = 0

    def progress(_: int) -> None:
        nonlocal done
        done += 1
        ahead.append(held - done)

    predict_file(model, counted, tmp_path / "s.csv", progress=progress)
    import os

    assert done > 10
    assert max(ahead) <= (os.cpu_count() or 1) + 1


def test_threads_of_torch_are_restored(model: TrainedModel, served: Served, tmp_path: Path) -> None:
    assert model.shares_threads
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        predict_file(model, rows_of(model, served.raw), tmp_path / "scores.csv")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
