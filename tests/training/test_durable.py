"""A file is replaced whole, or stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsedp.training.durable import replace_file


def test_the_new_contents_are_in_place_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("first", "second"):
        replace_file(path, lambda partial, text=text: partial.write_text(text))  # type: ignore[misc]
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 64")])
def test_a_write_that_fails_leaves_the_old_contents(error: Exception, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fails(partial: Path) -> None:
        partial.write_text("half")
        raise error

    with pytest.raises(OSError, match=r"file could not be written: .*(No space|unexpected)"):
        replace_file(path, fails)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_sync_that_fails_leaves_the_old_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(path, lambda partial: partial.write_text("new") and None)
    assert path.read_text() == "old"
