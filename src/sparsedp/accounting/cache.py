"""Results of calibrations on disk, so that a repeated question is answered at once.

The cache is a fixed number of small files; a result goes to the file its key hashes to, in place of
whatever was there. So it never grows beyond a few megabytes and needs no pruning. It is only ever a
shortcut: whatever is missing, damaged, from another version, or cannot be written is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sparsedp

_SLOTS = 16**3
_RULES = 2
"""Raised whenever the accounting itself changes: what earlier rules answered is not asked for again."""


def cache_directory() -> Path:
    """`$SPARSEDP_CACHE`, or `sparsedp` in `$XDG_CACHE_HOME` or the platform's cache directory."""
    if own := os.environ.get("SPARSEDP_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "sparsedp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sparsedp"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "sparsedp"
    return Path.home() / ".cache" / "sparsedp"


@cache
def _versions() -> str:
    return f"sparsedp {sparsedp.__version__}, rules {_RULES}, dp-accounting {version('dp-accounting')}"


def _slot(key: str) -> Path:
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % _SLOTS
    return cache_directory() / "accounting" / f"{number:03x}.json"


def load(key: str) -> Any:
    """What was stored under `key` by these versions of the libraries, or None."""
    try:
        entry = json.loads(_slot(key).read_text(encoding="utf-8"))
        return entry["value"] if entry["key"] == key and entry["versions"] == _versions() else None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def store(key: str, value: Any) -> None:
    """Keep a JSON value under `key`: written beside its place, then moved there, so never seen by halves."""
    with contextlib.suppress(OSError, RuntimeError):
        place = _slot(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"key": key, "versions": _versions(), "value": value}, file)
            os.replace(name, place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
