"""Files of rows to predict: every format, in blocks, each line a row."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from support.served import prepare_frame, raw_frame

from sparsedp.data import Criteo
from sparsedp.data.encoder import Encoder
from sparsedp.data.encoding import EncodedFeature, Encoding
from sparsedp.data.new_rows import NewRows, RawRows


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Encoding:
    folder = tmp_path_factory.mktemp("rows")
    prepare_frame(raw_frame(), folder / "clicks.csv", folder / "prepared")
    return Encoding.read(folder / "prepared")


def read(rows: NewRows) -> list[RawRows]:
    return [rows.read(block) for block in rows.blocks()]


def written(path: Path, frame: pl.DataFrame) -> Path:
    text = frame.write_csv(separator="\t" if ".tsv" in path.suffixes else ",").encode()
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(text))
    else:
        path.write_bytes(text)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.tsv.zst", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, encoding: Encoding, name: str) -> None:
    frame = raw_frame().drop("click").with_columns(more=pl.lit("x, y"))
    rows = NewRows.of(written(tmp_path / name, frame), encoding, copied=("when",))
    assert rows.ignored == ["more"]
    (raw,) = read(rows)
    expected = frame.select("user", "item", "tags", "price", "when")
    assert raw.frame.cast(pl.String).equals(expected.cast(pl.String))
    assert not raw.reasons
    assert rows.copied_schema == {"when": pl.Int64 if name == "a.parquet" else pl.String}


def test_criteo_lines_with_and_without_label_and_with_names(
    tmp_path: Path, criteo_file: Path, criteo_rules: Any
) -> None:
    encoding = Criteo.of([criteo_file]).encoding(criteo_rules)
    (whole,) = read(NewRows.of(criteo_file, encoding))
    unlabelled = tmp_path / "new.txt"
    lines = criteo_file.read_text().splitlines(keepends=True)
    unlabelled.write_text("".join(line.partition("\t")[2] for line in lines))
    (bare,) = read(NewRows.of(unlabelled, encoding))
    named = written(tmp_path / "named.csv", whole.frame)
    (other,) = read(NewRows.of(named, encoding))
    expected, _ = Encoder(encoding).encode(whole.frame)
    for raw in (bare, other):
        found, reasons = Encoder(encoding).encode(raw.frame)
        np.testing.assert_array_equal(found.numeric, expected.numeric)
        np.testing.assert_array_equal(found.ids, expected.ids)
        assert not reasons
    assert len(whole.frame) == len(lines)
    assert (whole.lines[0], other.lines[0]) == (1, 2)


def test_blocks_are_small_and_keep_the_order(
    tmp_path: Path, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsedp.data.new_rows.BLOCK_BYTES", 1000)
    path = written(tmp_path / "a.csv", raw_frame())
    found = read(NewRows.of(path, encoding, copied=("when",)))
    assert len(found) > 10
    assert pl.concat([raw.frame for raw in found])["when"].cast(pl.Int64).to_list() == [
        60 * n for n in range(400)
    ]
    assert np.concatenate([raw.lines for raw in found]).tolist() == list(range(2, 402))


def test_ragged_and_blank_lines_are_rows_with_a_reason(tmp_path: Path, encoding: Encoding) -> None:
    lines = ["user,item,tags,price", "a,1,t,2", "b,1", "", 'c,1,"x\ny",2', "d,1,t,2,3", "e,2,t,4"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (raw,) = read(NewRows.of(tmp_path / "a.csv", encoding))
    assert raw.frame["user"].to_list() == ["a", None, None, "c", None, "e"]
    assert raw.reasons == {
        1: "2 columns instead of 4",
        2: "1 columns instead of 4",
        4: "5 columns instead of 4",
    }
    assert raw.lines.tolist() == [2, 3, 4, 5, 7, 8]
    (tmp_path / "b.csv").write_text("user,item,tags,price\na,1\n")
    (raw,) = read(NewRows.of(tmp_path / "b.csv", encoding))
    assert raw.frame["user"].to_list() == [None]


def test_a_line_too_long_and_one_too_short_do_not_cancel(tmp_path: Path, encoding: Encoding) -> None:
    (tmp_path / "a.csv").write_text("user,item,tags,price\na,1,t\nb,1,t,2,3\nc,1,t,2\n")
    (raw,) = read(NewRows.of(tmp_path / "a.csv", encoding))
    assert raw.frame["user"].to_list() == [None, None, "c"]
    assert set(raw.reasons) == {0, 1}


def test_bytes_that_are_not_utf_8_and_windows_line_ends(tmp_path: Path, encoding: Encoding) -> None:
    (tmp_path / "a.csv").write_bytes(b"user,item,tags,price\r\ncaf\xe9,1,t,2\r\n\xff\xfe,2,t,1\r\n")
    (raw,) = read(NewRows.of(tmp_path / "a.csv", encoding))
    assert raw.frame["user"].to_list() == ["caf�", "��"]
    assert raw.frame["price"].to_list() == ["2", "1"]


def test_a_header_alone_has_no_rows(tmp_path: Path, encoding: Encoding) -> None:
    (tmp_path / "a.csv").write_text("user,item,tags,price\n")
    assert read(NewRows.of(tmp_path / "a.csv", encoding)) == []
    written(tmp_path / "a.parquet", raw_frame().clear())
    assert sum(len(raw.frame) for raw in read(NewRows.of(tmp_path / "a.parquet", encoding))) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "a.csv is empty"),
        (b"\n\n", "a.csv is empty"),
        (b"user,item,tags\na,1,t\n", "input: no column 'price' in a.csv, which has user, item, tags"),
        (b"user,item,tags,price,user\n", "input: a.csv has two columns 'user'"),
        (b"\x00\x01\x02\x03", "input: no column 'price'"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, encoding: Encoding, text: bytes, said: str) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(ValueError, match=said):
        NewRows.of(tmp_path / "a.csv", encoding)


def test_further_refusals(tmp_path: Path, encoding: Encoding) -> None:
    path = written(tmp_path / "a.csv", raw_frame())
    with pytest.raises(ValueError, match=r"id: no column 'key' in a.csv"):
        NewRows.of(path, encoding, copied=("key",))
    with pytest.raises(ValueError, match="separator must be one byte"):
        NewRows.of(path, encoding, separator=";;")
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"input: .*a.parquet is not Parquet"):
        NewRows.of(tmp_path / "a.parquet", encoding)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(path.read_bytes())[:200])
    with pytest.raises((ValueError, OSError)):
        read(NewRows.of(tmp_path / "a.csv.gz", encoding))


def test_a_derived_column_says_how_it_was_made(tmp_path: Path) -> None:
    encoding = Encoding(("hour",), (), derived={"hour": "date.hour()"})
    (tmp_path / "a.csv").write_text("date\n2020-01-01\n")
    with pytest.raises(ValueError, match=r"no column 'hour' .*\(the preparation derived it as date.hour\(\)"):
        NewRows.of(tmp_path / "a.csv", encoding)


def test_an_archive_is_refused_by_name(encoding: Encoding, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.writestr("rows.csv", raw_frame(3).write_csv())
    with pytest.raises(ValueError, match=r"^input: rows.zip is a zip archive; unpack it"):
        NewRows.of(tmp_path / "rows.zip", encoding)


NUMBERS = ["5", "", "-0.25", "+7", "1e3", "1e400", "nan", "inf", "9" * 40, "0.1000000000000000055"]
ODD = [" 5", "\t5", " ", "5 ", "NA", "1_0", "0x1F", "\xa05", "dear"]


@pytest.mark.parametrize("odd", [None, *ODD])
def test_numbers_are_read_as_the_rule_reads_texts(tmp_path: Path, odd: str | None) -> None:
    """Whatever the parser makes of a number itself, the rule for texts decides."""
    written = NUMBERS if odd is None else [*NUMBERS, odd]
    values = [f"v{number}" for number in range(len(written))]
    lines = [f"{number},{value}" for number, value in zip(written, values, strict=True)]
    (tmp_path / "a.csv").write_bytes("\n".join(["n,v", *lines, ""]).encode())
    encoding = Encoding(("n",), (EncodedFeature("v", ("v",), "hash", 50),))
    (raw,) = read(NewRows.of(tmp_path / "a.csv", encoding))
    assert raw.frame["n"].dtype == (pl.Float64 if odd is None else pl.String)
    found, reasons = Encoder(encoding).encode(raw.frame)
    texts, expected = Encoder(encoding).encode(pl.DataFrame({"n": written, "v": values}))
    assert reasons == expected
    assert bool(reasons) == (odd is not None)
    np.testing.assert_array_equal(found.numeric, texts.numeric)
    np.testing.assert_array_equal(found.ids, texts.ids)


def test_a_copied_value_that_is_missing_stays_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,v,id\n1,x,\n2,,b\n")
    encoding = Encoding(("n",), (EncodedFeature("v", ("v",), "hash", 50),))
    (raw,) = read(NewRows.of(tmp_path / "a.csv", encoding, copied=("id",)))
    assert raw.frame["id"].to_list() == [None, "b"]


def test_a_stray_quote_costs_no_row(tmp_path: Path, encoding: Encoding) -> None:
    path = tmp_path / "new.csv"
    path.write_text('user,item,tags,price\n5" pipe,1,a,2\n"open,2,a,3\nu3,3,"a|b",4\n"a"b,4,a,5\n')
    (raw,) = read(NewRows.of(path, encoding))
    assert not raw.reasons
    assert raw.frame["user"].to_list() == ['5" pipe', '"open', "u3", '"a"b']
    assert raw.frame["price"].to_list() == ["2", "3", "4", "5"]
