"""Files that are no text, or no JSON, are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsedp.core.text_files import parse_json, read_json, read_json_object, read_text


def test_what_is_there_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"a": "é\\u00e9\\ud83d\\ude00"}', encoding="utf-8")
    assert read_text(path).startswith('{"a"')
    assert read_json(path) == read_json_object(path) == {"a": "éé\U0001f600"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", r"file is not UTF-8 text \(byte 0\)"),
        (b"{", r"file is not JSON \("),
        (b"[" * 100_000, r"file is not JSON \("),
        (b"9" * 10_000, r"file is not JSON \("),
        (b'{"a": "\\ud800"}', r"file is not JSON \(.*surrogates"),
        (b"[1]", r"file must hold a JSON object, not a list"),
    ],
)
def test_anything_else_is_refused_with_its_name(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_json_object(path)


def test_the_place_of_a_text_is_named() -> None:
    with pytest.raises(ValueError, match=r"^grid: 'x' is not JSON"):
        parse_json("x", "grid: 'x'")
