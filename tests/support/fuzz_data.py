"""The readers of data files, for fuzzing: click logs, tables, texts, vocabularies, prepared folders, rows to predict."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gzip
import io
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import zstandard

from sparsedp.data import ClickData, HashRule
from sparsedp.data.archives import open_archives
from sparsedp.data.criteo import Criteo
from sparsedp.data.label import Label
from sparsedp.data.preparation import encode, prepare
from sparsedp.data.schema import MANIFEST, Schema, SourcePosition
from sparsedp.data.sentences import read_lines, read_tsv
from sparsedp.data.table import Columns, Table
from sparsedp.data.vocabulary import Vocabulary
from support.fuzzing import Reader, mutate_cell, mutate_json, mutate_line


@functools.cache
def workplace() -> Path:
    """A folder for the files of one process, in memory where that can be had."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def place(name: str, data: bytes) -> Path:
    """The input as a file."""
    path = workplace() / name
    path.write_bytes(data)
    return path


def fresh_folder(name: str) -> Path:
    """An empty folder of that name."""
    folder = workplace() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


# Click logs


def read_criteo(name: str, data: bytes) -> None:
    """Every line is an example or named as malformed, however the file is cut into blocks."""
    whole = dataclasses.replace(Criteo.of([place(name, data)]), block_bytes=2**16)
    results = []
    readers = [whole, dataclasses.replace(whole, block_bytes=300)]
    for reader in readers if sum(data) % 8 == 0 else readers[:1]:
        rows, bad = [], []
        for block in reader.blocks(SourcePosition()):
            examples = reader.read(block)
            assert len(examples.plain) + len(examples.malformed) == block.lines
            assert examples.plain["label"].is_in([0.0, 1.0]).all()
            rows.append(examples.plain.with_columns(pl.Series("first hash", examples.hashes[0])))
            bad += [line.line for line in examples.malformed]
        results.append((pl.concat(rows) if rows else pl.DataFrame(), bad))
    (at_once, bad), (in_pieces, bad_in_pieces) = results[0], results[-1]
    assert at_once.equals(in_pieces)
    assert bad == bad_in_pieces
    if name.endswith(".txt") and len(at_once):
        lines = data.split(b"\n")
        for row, label in zip(at_once["row"], at_once["label"], strict=True):
            cells = lines[row].split(b"\t")
            assert len(cells) == 40
            assert float(cells[0]) == label


def criteo_seeds() -> Mapping[str, bytes]:
    lines = []
    for row in range(4):
        numbers = [str(row * 7 + column - 3) if (row + column) % 5 else "" for column in range(13)]
        values = [f"{row * 977 + column:08x}" if (row * column) % 4 != 3 else "" for column in range(26)]
        lines.append("\t".join([str(row % 2), *numbers, *values]))
    text = "\n".join(lines).encode() + b"\n"
    return {"train.txt": text, "train.txt.gz": gzip.compress(text, mtime=0)}


CRITEO = Reader("criteo", read_criteo, criteo_seeds, (mutate_cell, mutate_line))


# Tables

COLUMNS = Columns(
    label=Label.parse("click"),
    numeric=("price",),
    categorical=("site", "app"),
    crosses=(("site", "app"),),
    multi_hot=("tags",),
    time="at",
)
RULES = {name: HashRule(50) for name in (*COLUMNS.features, *COLUMNS.multi_hot)}
TABLE = b"""click,price,site,app,tags,at
0,1.5,a.example,news,x|y,2020-01-01
1,,b.example,"a ""quoted"" app",,2020-01-02
0,-3e2,,news,x,2020-01-03
1,0,a.example,"two
lines",y|y|z,2020-01-04
"""


def read_table(name: str, data: bytes) -> None:
    """Read a table, and now and then prepare it: what was prepared can be opened, and has a label for every row."""
    reader = dataclasses.replace(Table.of(open_archives([place(name, data)]), COLUMNS), block_bytes=2**16)
    read = bad = 0
    for block in reader.blocks(SourcePosition()):
        examples = reader.read(block)
        assert len(encode(examples, reader.schema((), RULES), RULES)) == len(examples.plain)
        assert examples.plain["label"].is_in([0.0, 1.0]).all()
        read, bad = read + len(examples.plain), bad + len(examples.malformed)
    if not read or sum(data) % 8:
        return
    out = workplace() / "prepared"
    shutil.rmtree(out, ignore_errors=True)
    schema = prepare(reader, out, RULES)
    assert (schema.rows, schema.malformed) == (read, bad)
    check_rows(out, schema)


def check_rows(folder: Path, schema: Schema) -> None:
    """Open a prepared folder and read all of its rows."""
    cache = workplace() / "rows"
    shutil.rmtree(cache, ignore_errors=True)
    data = ClickData.open(folder, cache=cache)
    rows = data.take(np.arange(len(data)))
    assert len(data) == schema.rows == len(rows.label) == len(rows.ids) == len(rows.numeric)
    assert set(rows.label.tolist()) <= {0.0, 1.0}
    assert not len(rows.ids) or (rows.ids.min(0) >= 0).all()
    assert not len(rows.ids) or (rows.ids.max(0) < schema.vocabulary_sizes).all()
    for bag, feature in zip(rows.multi_hot, schema.multi_hot, strict=True):
        assert len(bag.offsets) == len(data) + 1
        assert not len(bag.values) or (bag.values.min() >= 0 and bag.values.max() < feature.rows)


def table_seeds() -> Mapping[str, bytes]:
    frame = pl.DataFrame(
        {
            "click": [0, 1, 0],
            "price": [1.5, None, -3.0],
            "site": ["a", None, "b"],
            "app": [7, 8, 9],
            "tags": [["x", "y"], [], ["z"]],
            "at": [10, 20, 30],
        }
    )
    parquet, archive = io.BytesIO(), io.BytesIO()
    frame.write_parquet(parquet, compression="uncompressed")
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(zipfile.ZipInfo("rows.csv"), TABLE)
    return {
        "rows.csv": TABLE,
        "rows.tsv": b"click\tprice\tsite\tapp\ttags\tat\n0\t1\ta\tb\tc\t5\n1\t2\ta\tb\tc|d\t6\n",
        "rows.parquet": parquet.getvalue(),
        "rows.zip": archive.getvalue(),
        "rows.csv.gz": gzip.compress(TABLE, mtime=0),
        "rows.csv.zst": zstandard.ZstdCompressor().compress(TABLE),
    }


TABLES = Reader("table", read_table, table_seeds, (mutate_cell, mutate_line))


# Texts


def read_texts(name: str, data: bytes) -> None:
    """Texts with labels, or plain lines: as many as the file has."""
    path = place(name, data)
    if name.endswith(".txt"):
        sentences = read_lines(path)
        assert len(sentences) == sum(bool(line.strip()) for line in data.decode("utf-8-sig").split("\n"))
        return
    sentences = read_tsv(path)
    assert sentences.labels is not None
    assert len(sentences.labels) == len(sentences.texts)
    if name.endswith(".tsv"):
        assert len(sentences) == data.count(b"\n") - data.endswith(b"\n")


def text_seeds() -> Mapping[str, bytes]:
    table = b"sentence\tlabel\nit 's a charming journey\t1\nunflinchingly bleak\t0\n\xc3\xa9t\xc3\xa9\t1\n"
    return {
        "train.tsv": table,
        "train.tsv.zst": zstandard.ZstdCompressor().compress(table),
        "lines.txt": b"one line\n\nand another\n",
    }


TEXTS = Reader("texts", read_texts, text_seeds, (mutate_cell, mutate_line))


# Vocabularies


def read_vocabulary(name: str, data: bytes) -> None:
    """Every listed value has an id of its own."""
    for rule in Vocabulary.read(place(name, data)).rules.values():
        ids = rule.ids(np.asarray(rule.keys, np.int64).view(np.uint64) << np.uint64(24))
        assert rule.rows == len(rule.keys) + 1
        assert (np.diff(np.sort(ids)) > 0).all()


def vocabulary_seeds() -> Mapping[str, bytes]:
    learned = io.BytesIO()
    keys = {"feature": ["site", "site", "app"], "key": [5, 2**39, 7]}
    pl.DataFrame(keys).write_parquet(learned, compression="uncompressed", metadata={"statement": "public"})
    return {
        "values.csv": b'feature,value\nsite,a\nsite,"b, c"\napp,1\n',
        "values.tsv": b"feature\tvalue\nsite\ta\napp\t1\n",
        "values.parquet": learned.getvalue(),
    }


VOCABULARY = Reader("vocabulary", read_vocabulary, vocabulary_seeds, (mutate_cell, mutate_line))


# Prepared folders


def read_prepared(name: str, data: bytes) -> None:
    """Open a prepared folder of which one file is the input; with a manifest, finish the preparation first."""
    folder = PREPARED.fill(fresh_folder("data"), MANIFEST)
    (folder / name).write_bytes(data)
    if name == MANIFEST:
        expected = (folder / "schema.json").read_bytes()
        (folder / "schema.json").unlink()
        source = place("rows.csv", TABLE)
        prepare(Table.of([source], COLUMNS), folder, RULES)
        assert (folder / "schema.json").read_bytes() == expected
    check_rows(folder, Schema.read(folder))


def prepared_seeds() -> Mapping[str, bytes]:
    folder = fresh_folder("seed")
    source = place("rows.csv", TABLE)
    prepare(Table.of([source], COLUMNS), folder, RULES)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    schema = Schema.read(folder)
    from sparsedp.data.parts import PreparedFolder

    begun = fresh_folder("begun")
    with PreparedFolder.open(begun, dataclasses.replace(schema, parts=())) as opened:
        for part in schema.parts:
            opened.commit(part)
        files[MANIFEST] = (begun / MANIFEST).read_bytes()
    return files


PREPARED = Reader("prepared", read_prepared, prepared_seeds, (mutate_json, mutate_line))

DATA_READERS = (CRITEO, TABLES, TEXTS, VOCABULARY, PREPARED)
