"""A file is replaced whole, or stays as it was."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
from pathlib import Path

import pytest

import sparsedp
from sparsedp.core.durable import keep_previous, new_folder, previous_of, replace_file, write_file


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


@pytest.mark.parametrize("content", [b"\xff\n", "d\u00e9j\u00e0\n"])
def test_bytes_and_text_are_written_as_they_are(content: bytes | str, tmp_path: Path) -> None:
    write_file(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_a_full_disk_keeps_its_errno_and_a_second_attempt_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_file(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="file could not be written: No space left") as refused:
            write_file(path, "new and longer")
    assert refused.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    write_file(path, "new")
    assert path.read_text() == "new"


def test_an_interrupt_leaves_the_old_contents_and_no_partial_file(tmp_path: Path) -> None:
    def interrupted(partial: Path) -> None:
        partial.write_text("half")
        raise KeyboardInterrupt

    write_file(tmp_path / "file", "old")
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "file", interrupted)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_contents_are_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def spied_fsync(descriptor: int) -> None:
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def spied_replace(source: Path, target: Path) -> None:
        done.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spied_fsync)
    monkeypatch.setattr(os, "replace", spied_replace)
    write_file(tmp_path / "file", "text")
    assert done == [("fsync", "file.partial"), ("replace", "file"), ("fsync", tmp_path.name)]
    done.clear()
    replace_file(tmp_path / "file", lambda partial: partial.write_text("entry"), shared_cache=True)
    assert done == [("replace", "file")]


def test_writers_of_a_shared_cache_do_not_meet(tmp_path: Path) -> None:
    """A second writer starts and ends while the first is half-way: the first still leaves a whole file."""
    path = tmp_path / "entry"

    def first(partial: Path) -> None:
        partial.write_text("fir")
        replace_file(path, lambda other: other.write_text("second"), shared_cache=True)
        with partial.open("a") as file:
            file.write("st")

    replace_file(path, first, shared_cache=True)
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["entry"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    write_file(tmp_path / "file", "text")
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def renames(source: str) -> bool:
    """Whether the code renames files: ``os.replace``, any ``rename``, or ``Path.replace``, which takes one path."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    named = [(call, call.func) for call in calls if isinstance(call.func, ast.Attribute)]
    return any(
        name.attr in ("rename", "renames")
        or (name.attr == "replace" and ast.unparse(name.value) == "os")
        or (name.attr == "replace" and len(call.args) == 1 and not call.keywords)
        for call, name in named
    )


def test_no_other_file_of_the_library_renames() -> None:
    """One atomic writer. The ledger, which must never replace a file, links instead."""
    for control in ("os.replace(a, b)", "a.replace(b)", "a.rename(b)"):
        assert renames(control)
    assert not renames("text.replace('a', 'b')")
    root = Path(sparsedp.__file__).parent
    found = [path.relative_to(root).as_posix() for path in root.rglob("*.py") if renames(path.read_text())]
    assert found == ["core/durable.py"]


def test_a_new_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("whole")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "whole"
    with contextlib.suppress(ZeroDivisionError), new_folder(tmp_path / "other") as folder:
        (folder / "file").write_text("half")
        raise ZeroDivisionError
    with pytest.raises(ValueError, match=r"^out: .* exists"), new_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_previous_contents_stay_beside_the_new(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    keep_previous(path)
    assert not previous_of(path).exists()
    for content in ("first", "second", "third"):
        keep_previous(path)
        write_file(path, content)
    assert (path.read_text(), previous_of(path).read_text()) == ("third", "second")
    assert previous_of(path).name == "checkpoint.previous.pt"


def test_without_links_the_previous_contents_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_file(tmp_path / "file", "old")
    keep_previous(tmp_path / "file")
    write_file(tmp_path / "file", "new")
    assert previous_of(tmp_path / "file").read_text() == "old"
