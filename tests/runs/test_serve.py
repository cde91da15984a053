"""The script beside an exported model: its rules are those of the package, and it needs nothing of it."""

from __future__ import annotations

import ast
import datetime
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.served import Served, raw_frame

from sparsedp.data import hashing
from sparsedp.data.examples import log_transform
from sparsedp.data.scales import Scale
from sparsedp.runs import load, serve


@pytest.fixture(scope="module")
def script(exported: Path) -> serve.Served:
    return serve.Served(exported)


def test_it_imports_torch_safetensors_and_the_standard_library() -> None:
    tree = ast.parse(Path(serve.__file__).read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    assert found == {
        "__future__", "collections.abc", "csv", "itertools", "json", "math", "pathlib", "re", "safetensors.torch",
        "sys", "torch", "typing",
    }  # fmt: skip


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=20))
def test_hashes_are_those_of_a_preparation(texts: list[str]) -> None:
    hashes = hashing.hash_strings(pl.Series(texts, dtype=pl.String))
    assert [serve.hash_text(text) for text in texts] == hashes.tolist()
    crossed = hashing.cross([hashes, hashes[::-1].copy()])
    pairs = zip(hashes.tolist(), hashes[::-1].tolist(), strict=True)
    assert [serve.cross(pair) for pair in pairs] == crossed.tolist()


@settings(max_examples=30)
@given(st.floats())
def test_numbers_are_those_of_a_preparation(number: float) -> None:
    (expected,) = (pl.select(log_transform(pl.lit(number))).item(),)
    assert np.float32(serve.signed_log(number)) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30)
@given(st.floats(), st.floats(-1e6, 0), st.floats(0.001, 1e6))
def test_scaled_numbers_are_those_of_a_preparation(number: float, low: float, high: float) -> None:
    (expected,) = (pl.select(Scale(low, high).transform(pl.lit(number))).item(),)
    assert np.float32(serve.scaled(number, low, high)) == pytest.approx(expected, rel=1e-6)


def test_an_exported_scale_is_applied(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "model")
    for name, scales in (
        ("encoding", {"price": {"low": -3.0, "high": 3.0}}),
        ("schema", [["price", -3.0, 3.0]]),
    ):
        file = tmp_path / "model" / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "scales": scales}))
    frame = raw_frame().with_columns(user=pl.col("user").fill_null("NA"))
    expected = load(tmp_path / "model").predict_proba(raw_frame())
    assert not np.allclose(expected, load(exported).predict_proba(raw_frame()), atol=1e-4)
    np.testing.assert_allclose(
        serve.Served(tmp_path / "model").predict(frame.to_dicts()), expected, atol=1e-6
    )


def test_predictions_are_those_of_the_package(script: serve.Served, served: Served) -> None:
    frame = raw_frame().with_columns(user=pl.col("user").fill_null("NA"))
    expected = load(served.run).predict_proba(raw_frame())
    for rows in (frame.to_dicts(), list(serve.read_rows(str(served.raw), None))):
        np.testing.assert_allclose(script.predict(rows), expected, atol=1e-6)
    assert script.predict(frame.to_dicts()[:1]) == pytest.approx(expected[:1], abs=1e-6)
    assert script.predict([]) == []
    lists = [{**row, "tags": row["tags"].split("|")} for row in frame.to_dicts()]
    np.testing.assert_allclose(script.predict(lists), expected, atol=1e-6)


def test_unseen_and_missing_values(script: serve.Served, served: Served) -> None:
    rows = [
        {"user": None, "item": None, "tags": None, "price": None},
        {"user": "new", "item": 10**9, "tags": "t99", "price": math.nan},
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    expected = load(served.run).predict_proba(columns)
    np.testing.assert_allclose(script.predict(rows), expected, atol=1e-6)


def test_values_without_one_text_are_refused(script: serve.Served) -> None:
    row = {"user": "a", "item": 1.0, "tags": "", "price": 1}
    with pytest.raises(ValueError, match="item: give a text or an integer"):
        script.predict([row])
    with pytest.raises(ValueError, match="item: a column of this name is needed"):
        script.predict([{"user": "a"}])


@pytest.mark.parametrize("text", ["1_000", " 5 ", "5 ", "0x10", "\u0663", "abc"])
def test_texts_that_a_preparation_refuses_are_no_numbers(script: serve.Served, text: str) -> None:
    row = {"user": "a", "item": 1, "tags": "", "price": text}
    with pytest.raises(ValueError, match=r"price: is .* which is no number"):
        script.predict([row])
    for number in ("5", "+5", "-.5", "5.", "1e3", "1E-3", "inf", "-Infinity", "NaN"):
        assert script.predict([row | {"price": number}]) == script.predict([row | {"price": float(number)}])


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\ty\n1\t2\n3\t4\n5\t6\n")
    rows = list(serve.read_rows(str(tmp_path / "a.tsv"), None))
    assert [row["x"] for row in rows] == ["1", "3", "5"]
    assert rows[0] == {"x": "1", "y": "2"}
    (tmp_path / "b.txt").write_text("1\t2\n3\t4\n")
    assert next(serve.read_rows(str(tmp_path / "b.txt"), ["y", "I1", "C1"])) == {"I1": "1", "C1": "2"}
    (tmp_path / "c.csv").write_text("\ufeffx,y\r\n1,2\r\n", encoding="utf-8")
    assert list(serve.read_rows(str(tmp_path / "c.csv"), None)) == [{"x": "1", "y": "2"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,y\n1,2\n1\n", "line 3: not 2 columns"),
        ("x,y\n1,2,3\n", "line 2: not 2"),
        ("x,y\n1,2\n\n3,4\n", "line 3: not 2"),
        ("x,x\n1,2\n", "two columns"),
        ('x,y\n1,"2\n3,4\n', "line 3: unexpected end of data .is a quote not closed"),
        ('x,"y\n1,2\n', "line 2: unexpected end of data .is a quote not closed"),
    ],
)
def test_lines_that_cannot_be_read_are_not_guessed(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        list(serve.read_rows(str(tmp_path / "a.csv"), None))


@pytest.mark.parametrize(
    "text", ['price,user\n1,"a\n', "price,user\n1\n", "price,user\nx,a\n", "price\n1\n", None]
)
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
) -> None:
    if text is not None:
        (tmp_path / "a.csv").write_text(text)
    monkeypatch.setattr(serve, "__file__", str(exported / "serve.py"))
    monkeypatch.setattr("sys.argv", ["serve.py", str(tmp_path / "a.csv")])
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2  # the first is the privacy statement
    assert said[1].startswith("serve.py: ")


def test_no_file_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["serve.py"])
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("serve.py: give one file")


@pytest.mark.parametrize("rows", [4095, 4096, 4097, 9000])
def test_a_file_of_many_rows_is_read_in_parts(
    exported: Path,
    script: serve.Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: int,
) -> None:
    lines = [f"u{number % 7},{number},t{number % 3},{number % 11}" for number in range(rows)]
    (tmp_path / "a.csv").write_text("\n".join(["user,item,tags,price", *lines, ""]))
    monkeypatch.setattr(serve, "__file__", str(exported / "serve.py"))
    monkeypatch.setattr("sys.argv", ["serve.py", str(tmp_path / "a.csv")])
    serve.main()
    found = [float(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert len(found) == rows
    for at in (0, rows // 2, 4094, rows - 1):
        (row,) = [dict(zip(("user", "item", "tags", "price"), lines[at].split(","), strict=True))]
        assert found[at] == pytest.approx(script.predict([row])[0], abs=1e-6)


@settings(max_examples=100)
@given(st.floats())
def test_the_forms_are_the_texts_of_a_preparation(number: float) -> None:
    for kind in (pl.Float64(), pl.Float32()):
        text = pl.Series([number], dtype=kind, strict=False).cast(pl.String)[0]
        assert re.fullmatch(serve.FORMS[str(kind)], text), text
    for values in ([True, False], [datetime.date(2020, 1, 2)]):
        series = pl.Series(values)
        assert all(re.fullmatch(serve.FORMS[str(series.dtype)], text) for text in series.cast(pl.String))


@pytest.mark.parametrize(
    ("kind", "text"), [("Float64", "3"), ("Float64", "3.0 "), ("Boolean", "True"), ("Date", "2020-1-2")]
)
def test_a_text_that_no_value_of_the_type_has_is_refused(exported: Path, kind: str, text: str) -> None:
    script = serve.Served(exported)
    column = script.encoding["categorical"][0]["columns"][0]
    script.encoding["types"] = {column: kind}
    with pytest.raises(ValueError, match=f"^{column}: is '{text}', which no {kind} is written as"):
        script._text({column: text}, column)
    assert script._text({column: ""}, column) == ""
