"""Atomic file writing: a file is whole, and on disk, or as it was before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_file(path: Path, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8) to ``path``, with the guarantee of ``replace_file``."""
    data = content.encode() if isinstance(content, str) else content
    replace_file(path, lambda partial: _write(partial, data))


def replace_file(path: Path, write: Callable[[Path], object], *, shared_cache: bool = False) -> None:
    """Let ``write`` fill a temporary file beside ``path``, sync it, rename it to ``path``, sync the folder.

    Guarantee: after a crash at any moment ``path`` holds the old contents or the new, whole; when this
    returns, the new ones survive a power cut. An ``OSError`` says what went wrong, and leaves the old.

    The temporary file is ``path`` with ``.partial`` after it: what a kill leaves behind is overwritten by the
    next attempt. So one writer at a time. ``shared_cache`` is for files that many processes write, and whose
    readers check the contents: each writer has a temporary file of its own, and nothing is synced (after a
    power cut the file may be damaged).
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} could not be written: it is a folder, a device or the like")
    partial = _unique_file(path) if shared_cache else path.with_name(path.name + ".partial")
    try:
        write(partial)
        if not shared_cache:
            sync(partial)
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):
            raise _explained(path, error) from error
        raise
    if not shared_cache:
        sync(path.parent)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that appears as ``out`` when the block has filled it, and not at all otherwise."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out: {out} exists; give another folder, or remove it")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if out.exists():
            out.rmdir()
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def keep_previous(path: Path) -> None:
    """Keep what ``path`` holds now as ``previous_of(path)``, before ``path`` is replaced; nothing if there is none.

    A second name for the same contents where the disk has links, a copy otherwise.
    """
    if not path.exists():
        return

    def copy(partial: Path) -> None:
        partial.unlink(missing_ok=True)
        try:
            os.link(path, partial)
        except OSError:
            shutil.copyfile(path, partial)

    replace_file(previous_of(path), copy)


def previous_of(path: Path) -> Path:
    """Where ``keep_previous`` keeps a file."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def sync(path: Path) -> None:
    """Bring a file's contents, or a folder's names, to disk: a file's own fsync does not cover its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _unique_file(path: Path) -> Path:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    os.close(descriptor)
    return Path(name)


def _explained(path: Path, error: OSError | RuntimeError) -> OSError:
    """The error with the file's name, and its errno: torch's own RuntimeError hides what the disk said."""
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    if isinstance(cause, OSError) and cause.errno is not None:
        return OSError(cause.errno, f"{path} could not be written: {cause.strerror}")
    return OSError(f"{path} could not be written: {cause}")
