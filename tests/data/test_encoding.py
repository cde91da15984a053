"""The rules of a preparation in files: whole, plain, and refused when they are anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.served import prepare_frame, raw_frame

from sparsedp.data import Columns, Criteo, HashRule, Label, Schema, Table, prepare
from sparsedp.data.criteo import CATEGORIES
from sparsedp.data.encoding import FILE, KEYS_FILE, Encoding, MissingEncoding
from sparsedp.data.generated import GeneratedClicks


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoding")
    prepare_frame(raw_frame(), folder / "clicks.csv", folder / "prepared")
    return folder / "prepared"


def copied(prepared: Path, out: Path, **changes: Any) -> Path:
    """A copy of the two files with some fields replaced."""
    fields = {**json.loads((prepared / FILE).read_text()), **changes}
    (out / FILE).write_text(json.dumps(fields))
    (out / KEYS_FILE).write_bytes((prepared / KEYS_FILE).read_bytes())
    return out


def test_what_a_preparation_writes_is_what_it_was_given(prepared: Path, tmp_path: Path) -> None:
    encoding = Encoding.read(prepared)
    assert encoding.numeric == ("price",)
    assert [(each.name, each.columns, each.rule, each.rows) for each in encoding.features] == [
        ("user", ("user",), "hash", 50),
        ("item", ("item",), "vocabulary", 21),
        ("user*item", ("user", "item"), "hash", 2000),
        ("tags", ("tags",), "hash", 9),
    ]
    assert encoding.multi_hot[0].separator == "|"
    assert encoding.columns == ("price", "user", "item", "tags")
    assert (encoding.label, encoding.time, encoding.nulls) == ("click", "when", ("NA",))
    assert len(encoding.keys["item"]) == 20
    encoding.require_schema(Schema.read(prepared))
    encoding.write(tmp_path)
    assert (tmp_path / FILE).read_bytes() == (prepared / FILE).read_bytes()
    assert (tmp_path / KEYS_FILE).read_bytes() == (prepared / KEYS_FILE).read_bytes()


def test_no_row_of_the_data_is_in_it(prepared: Path) -> None:
    assert "user number" not in (prepared / FILE).read_text()


def test_a_folder_prepared_before_gets_it_from_the_same_command(tmp_path: Path) -> None:
    prepare_frame(raw_frame(), tmp_path / "clicks.csv", tmp_path / "prepared")
    written = (tmp_path / "prepared" / FILE).read_bytes()
    (tmp_path / "prepared" / FILE).unlink()
    prepare_frame(raw_frame(), tmp_path / "clicks.csv", tmp_path / "prepared")
    assert (tmp_path / "prepared" / FILE).read_bytes() == written


def test_types_of_columns_that_are_neither_texts_nor_integers(tmp_path: Path) -> None:
    pl.DataFrame(
        {"y": [0, 1], "whole": [1, 2], "half": [0.5, 1.5], "flag": [True, False], "many": [[0.5], [1.5]]}
    ).write_parquet(tmp_path / "raw.parquet")
    columns = Columns(
        Label.parse("y"),
        categorical=("whole", "half", "flag", "odd"),
        multi_hot=("many",),
        derived={"odd": pl.col("whole") % 2 == 1},
    )
    table = Table.of([tmp_path / "raw.parquet"], columns, nulls=("NA",))
    encoding = table.encoding({name: HashRule(5) for name in (*table.features, "many")})
    assert encoding.types == {"flag": "Boolean", "half": "Float64", "many": "Float64", "odd": "Boolean"}
    assert "whole" in encoding.derived["odd"]
    assert encoding.nulls == ()  # they were texts of text files only


def test_criteo_and_generated_rows_have_theirs(tmp_path: Path, criteo_file: Path, criteo_rules: Any) -> None:
    prepare(Criteo.of([criteo_file]), tmp_path / "out", criteo_rules)
    criteo = Encoding.read(tmp_path / "out")
    assert criteo.header is not None
    assert criteo.header[0] == "label"
    assert set(criteo.types) == set(CATEGORIES)
    generated = GeneratedClicks(10).encoding
    assert {each.rule for each in generated.features} == {"ids"}
    generated.write(tmp_path)
    assert Encoding.read(tmp_path).features == generated.features


def test_a_folder_without_one_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingEncoding, match=r"no encoding.json; run the same `sparsedp prepare` again"):
        Encoding.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "else"}, "another format"),
        ({"numeric_rule": "sqrt(x)"}, "does not know the numeric rule"),
        ({"numeric": "price"}, "is not a list"),
        ({"numeric": [3]}, "is not a text"),
        ({"types": ["a"]}, "is not a mapping"),
        ({"scales": {"price": [0, 1]}}, "are not the bounds of a scale"),
        ({"scales": {"price": {"low": 1, "high": 0}}}, "LOW below HIGH"),
        ({"scales": {"price": {"low": 1}}}, "no 'high'"),
        ({"scales": {"user": {"low": 0, "high": 1}}}, "not numeric"),
        ({"categorical": [], "multi_hot": []}, "no features"),
        ({"categorical": [{"name": "a"}]}, "no 'columns'"),
    ],
)
def test_other_contents_are_refused(prepared: Path, tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match="encoding: .*encoding.json is not a .*" + said):
        Encoding.read(copied(prepared, tmp_path, **changes))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rule", "eval", "no rule 'eval'"),
        ("rows", 2**40, "rows must lie in"),
        ("rows", "50", "rows must lie in"),
        ("rows", True, "rows must lie in"),
        ("rows", 1, "rows must lie in 2"),
        ("columns", [], "cannot be made of 0 columns"),
        ("name", None, "is not a text"),
    ],
)
def test_damaged_features_are_refused(
    prepared: Path, tmp_path: Path, field: str, value: Any, said: str
) -> None:
    feature = {"name": "user", "columns": ["user"], "rule": "hash", "rows": 50, "separator": None}
    with pytest.raises(ValueError, match=said):
        Encoding.read(copied(prepared, tmp_path, categorical=[{**feature, field: value}]))


def test_multi_hot_features_are_one_column_that_is_cut(prepared: Path, tmp_path: Path) -> None:
    feature = {"name": "tags", "columns": ["tags"], "rule": "hash", "rows": 9, "separator": None}
    with pytest.raises(ValueError, match="has a separator"):
        Encoding.read(copied(prepared, tmp_path, multi_hot=[feature]))


def test_missing_and_damaged_vocabularies_are_refused(prepared: Path, tmp_path: Path) -> None:
    copied(prepared, tmp_path)
    (tmp_path / KEYS_FILE).write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"encoding.safetensors cannot be read"):
        Encoding.read(tmp_path)
    (tmp_path / KEYS_FILE).unlink()
    with pytest.raises(ValueError, match="the vocabularies are missing"):
        Encoding.read(tmp_path)
    from safetensors.numpy import save

    for keys in ({}, {"item": np.zeros(5, np.int64)}, {"item": np.zeros(20, np.float32)}):
        (tmp_path / KEYS_FILE).write_bytes(save({"else": np.zeros(1), **keys}))
        with pytest.raises(ValueError, match="no vocabulary of 20 keys for item"):
            Encoding.read(tmp_path)


def test_another_schema_is_refused(prepared: Path, tmp_path: Path) -> None:
    encoding = Encoding.read(copied(prepared, tmp_path, numeric=["weight"]))
    with pytest.raises(ValueError, match="other columns than the schema"):
        encoding.require_schema(Schema.read(prepared))
