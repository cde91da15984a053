"""A disk cache of calibrations and epsilons.

The cache is a fixed number of small files; a result overwrites the file its key hashes to. So it never grows
beyond a few megabytes and needs no pruning. It is only a shortcut: an entry that is missing, damaged or from
another version is computed again. The checksums detect accidents, not forgeries: anyone who can write to the
cache can change what the accounting says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import sparsedp
from sparsedp.core.durable import replace_file

_SLOTS = 16**3
_RULES = 5
"""Raised whenever the accounting itself changes: results of earlier rules are ignored."""


def cache_directory() -> Path:
    """`$SPARSEDP_CACHE`, or `sparsedp` in `$XDG_CACHE_HOME` or the platform's cache directory."""
    if directory := os.environ.get("SPARSEDP_CACHE"):
        return Path(directory)
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


@dataclass(frozen=True)
class Entry:
    """A stored result: a finite number of at least zero, and a note for its reader."""

    number: float
    note: str


def _checksum(key: str, number: float, note: str) -> str:
    fields = json.dumps([_versions(), key, number, note], allow_nan=False)
    return hashlib.sha256(fields.encode()).hexdigest()


def _is_result(number: object) -> bool:
    return type(number) in (int, float) and 0 <= number < math.inf  # type: ignore[operator]


def load(key: str) -> Entry | None:
    """What was stored under `key` by these versions of the libraries, or None.

    Guarantee: exactly what was stored. An entry whose checksum, over key, versions, number and note, does not
    match counts as missing, and so does a number that is negative, infinite or NaN.
    """
    try:
        entry = json.loads(_slot(key).read_text(encoding="utf-8"))
        number, note = entry["number"], entry["note"]
        if entry["key"] != key or not _is_result(number) or type(note) is not str:
            return None
        return Entry(number, note) if entry["checksum"] == _checksum(key, number, note) else None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        return None


def store(key: str, number: float, note: str = "") -> None:
    """Store a number under `key`, atomically: a reader sees a complete entry or none.

    What `load` would reject (an infinite epsilon, say) is not written.
    """
    if not _is_result(number):
        return
    entry = {"key": key, "number": number, "note": note, "checksum": _checksum(key, number, note)}
    with contextlib.suppress(OSError, RuntimeError):
        path = _slot(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(entry, allow_nan=False)
        replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"), shared_cache=True)
