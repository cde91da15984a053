"""Files that are whole, and on disk, or as they were before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file beside ``path``, bring it to disk and give it its name.

    Guarantee: after a crash at any moment ``path`` holds the old contents or the new, whole; when this
    returns, the new ones survive a power cut. An ``OSError`` says what went wrong, and leaves the old.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        _sync(partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's own RuntimeError hides what the disk said
        partial.unlink(missing_ok=True)
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise OSError(f"{path} could not be written: {cause}") from error
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Contents of a file, or names in a folder: a file's own fsync does not cover its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
