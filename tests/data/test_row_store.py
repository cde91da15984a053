import dataclasses
import errno
import mmap

import numpy as np
import polars as pl
import pytest

from sparsedp.data import HashRule, Label, prepare
from sparsedp.data.row_store import STAMP, open_rows
from sparsedp.data.schema import Schema
from sparsedp.data.table import Columns, Table


@pytest.fixture
def folder(tmp_path):
    frame = pl.DataFrame(
        {
            "click": [n % 2 for n in range(100)],
            "price": [float(n) for n in range(100)],
            "word": [str(n) for n in range(100)],
            "tags": ["|".join(str(k) for k in range(n % 4)) for n in range(100)],
            "when": list(range(100)),
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    columns = Columns(Label.parse("click"), ("price",), ("word",), multi_hot=("tags",), time="when")
    table = Table((tmp_path / "t.csv",), columns, block_bytes=300)
    prepare(table, tmp_path / "out", {"word": HashRule(1000), "tags": HashRule(1000)})
    return tmp_path / "out"


def test_rows_are_those_of_the_parts(folder):
    schema = Schema.read(folder)
    assert len(schema.parts) > 3
    frame = pl.concat([pl.read_parquet(folder / part.file) for part in schema.parts])
    rows = open_rows(folder, schema)
    assert rows.numeric[:, 0].tolist() == frame["price"].to_list()
    assert rows.ids[:, 0].tolist() == frame["word"].to_list()
    assert rows.label.tolist() == frame["label"].to_list()
    assert rows.time.tolist() == frame["time"].to_list()
    bags = rows.multi_hot[0]
    assert [
        bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)
    ] == frame["tags"].to_list()


def test_rows_are_mapped_not_loaded_and_contiguous(folder):
    rows = open_rows(folder, Schema.read(folder))
    for array in (rows.numeric, rows.ids, rows.label, rows.time):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable
        assert array.flags.c_contiguous


def test_the_layout_is_made_once_and_again_when_the_folder_changed(folder):
    schema = Schema.read(folder)
    open_rows(folder, schema)
    (folder / "rows" / "label.npy").unlink()
    with pytest.raises(ValueError, match=r"label.npy is damaged .* remove .*rows, which is made again"):
        open_rows(folder, schema)
    (folder / "rows" / STAMP).write_text("another schema")
    assert len(open_rows(folder, schema)) == 100


@pytest.mark.parametrize(("pages", "advice"), [(2**40, mmap.MADV_WILLNEED), (1, mmap.MADV_RANDOM)])
def test_rows_that_fit_the_memory_are_read_ahead_and_others_are_not(folder, monkeypatch, pages, advice):
    monkeypatch.setattr("os.sysconf", lambda name: pages)
    given = []
    monkeypatch.setattr(
        "sparsedp.data.row_store._load", lambda path, told: given.append(told) or np.load(path)
    )
    open_rows(folder, Schema.read(folder))
    assert set(given) == {advice}


def test_the_layout_can_lie_elsewhere(folder, tmp_path):
    open_rows(folder, Schema.read(folder), tmp_path / "fast disk")
    assert not (folder / "rows").exists()
    assert (tmp_path / "fast disk" / "ids.npy").exists()


def test_a_full_disk_is_an_error_and_leaves_nothing_that_looks_finished(folder, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sparsedp.data.row_store._row_major", full)
        with pytest.raises(OSError, match=r"no space left in"):
            open_rows(folder, Schema.read(folder))
    assert len(open_rows(folder, Schema.read(folder))) == 100


def test_a_finished_layout_needs_no_writing(folder):
    schema = Schema.read(folder)
    open_rows(folder, schema)
    (folder / "rows" / "lock").unlink()
    open_rows(folder, schema)
    assert not (folder / "rows" / "lock").exists(), "so that data can lie on a disk that is read-only"


def test_a_part_that_was_changed_is_refused(folder):
    part = min(folder.glob("part-*.parquet"))
    frame = pl.read_parquet(part)
    frame.with_columns(pl.lit(1.0).alias("label").cast(frame["label"].dtype)).write_parquet(part)
    with pytest.raises(ValueError, match=r"data: .*part-00000.parquet was changed after it was prepared"):
        open_rows(folder, Schema.read(folder))
    part.unlink()
    with pytest.raises(ValueError, match=r"data: .* has lost its part part-00000.parquet"):
        open_rows(folder, Schema.read(folder))


@pytest.mark.parametrize("rows", [1, 2])
def test_ids_outside_their_table_are_refused(folder, rows):
    schema = Schema.read(folder)
    small = dataclasses.replace(
        schema, categorical=tuple(dataclasses.replace(f, rows=rows) for f in schema.categorical)
    )
    with pytest.raises(ValueError, match="is not as the schema says"):
        open_rows(folder, small)
