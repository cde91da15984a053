"""The folder being prepared: parts written whole or not at all, and a manifest of those that are done.

A part appears under its name only when it is complete (written aside, flushed, renamed), and its line in the
manifest only after that. Whatever stops the work (an interrupt, a kill, a full disk, a power cut), running
the same command again reuses every part in the manifest and continues after the last of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import polars as pl

from sparsedp.core.durable import write_file
from sparsedp.data import schema as schemas
from sparsedp.data.schema import MANIFEST, Part, Schema

_OWN = ("vocabulary.parquet", "counting")
"""What a vocabulary leaves in a folder before its first part."""


class PreparedFolder:
    """A folder under preparation. The schema, without its parts, decides its content; another is refused."""

    def __init__(self, path: Path, schema: Schema, manifest: IO[bytes], parts: list[Part]) -> None:
        self.path = path
        self.schema = schema
        self.parts = parts
        self._manifest = manifest
        self._check = ""

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, schema: Schema) -> Iterator[PreparedFolder]:
        """Begin a folder or take up one that was interrupted; only one process at a time may."""
        with actionable_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            with (path / MANIFEST).open("a+b") as manifest:
                _lock(manifest, path)
                begun, parts, check = _read_manifest(manifest)
                folder = cls(path, schema, manifest, parts)
                folder._check = check
                if parts:
                    _require_same(path, begun, _settings(schema))
                    for part in parts:
                        read_part(path, part)  # changed since it was committed?
                else:
                    folder._begin(stale=bool(begun))
                yield folder

    def write(self, number: int, frame: pl.DataFrame) -> tuple[str, str]:
        """Write part `number` whole and return its name and hash. Safe to call from several threads."""
        packed = io.BytesIO()
        frame.write_parquet(packed, compression="zstd", compression_level=1, statistics=False)
        name = f"part-{number:05d}.parquet"
        write_file(self.path / name, packed.getvalue())
        return name, hashlib.sha256(packed.getbuffer()).hexdigest()

    def commit(self, part: Part) -> None:
        """Record a written part; parts are recorded in the order of the input."""
        self._append(dataclasses.asdict(part))
        self.parts.append(part)

    def finish(self) -> Schema:
        """Write the schema, which makes the folder a prepared one."""
        complete = dataclasses.replace(self.schema, parts=tuple(self.parts))
        write_file(self.path / schemas.FILE, complete.to_json().encode())
        (self.path / MANIFEST).unlink()
        return complete

    def _begin(self, *, stale: bool) -> None:
        """Start the manifest; of an earlier attempt that got no part into it, no part may be left lying."""
        for part in self.path.glob("part-*.parquet*") if stale else ():
            part.unlink()
        self._manifest.truncate(0)
        self._check = ""
        self._append(_settings(self.schema))

    def _append(self, record: dict[str, Any]) -> None:
        body = json.dumps(record)
        self._check = _next_check(self._check, body)
        self._manifest.write(f"{self._check} {body}\n".encode())
        self._manifest.flush()
        os.fsync(self._manifest.fileno())


def refuse_other_things(path: Path) -> None:
    """Refuse a folder with files that no preparation wrote: a wrong path would mix the two."""
    if not path.exists() or (path / schemas.FILE).exists() or (path / MANIFEST).exists():
        return
    if not path.is_dir():
        raise ValueError(f"out: {path} is not a folder")
    others = sorted(each.name for each in path.iterdir() if not each.name.startswith(_OWN))
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise ValueError(f"out: {path} holds other things ({shown}): give a new or an empty folder")


def finished(path: Path, schema: Schema) -> Schema | None:
    """Return the schema of a folder that already holds exactly this; refuse one that holds something else."""
    if not (path / schemas.FILE).exists():
        return None
    there = Schema.read(path)
    _require_same(path, _settings(there), _settings(schema))
    (path / MANIFEST).unlink(missing_ok=True)
    return there


@contextlib.contextmanager
def actionable_disk_errors(path: Path) -> Iterator[None]:
    """Say what to do when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        advice = "free some space and run the same command again: finished parts are reused"
        raise OSError(error.errno, f"no space left in {path}: {advice}") from error


def _settings(schema: Schema) -> dict[str, Any]:
    """Return what must be equal for two preparations to write the same folder, in its JSON form."""
    settings: dict[str, Any] = json.loads(
        json.dumps(dataclasses.asdict(dataclasses.replace(schema, parts=())))
    )
    return settings


def _require_same(path: Path, begun: dict[str, Any], settings: dict[str, Any]) -> None:
    changed = [name for name in settings if begun.get(name) != settings[name]]
    if changed:
        raise ValueError(
            f"out: {path} was made with other {', '.join(changed)}: give another folder, or remove it"
        )


def _lock(manifest: IO[bytes], path: Path) -> None:
    try:
        fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"out: another process is preparing {path}") from error


def read_part(folder: Path, part: Part) -> bytes:
    """The bytes of a part; refused if they are not those that the preparation wrote."""
    try:
        packed = (folder / part.file).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"data: {folder} has lost its part {part.file}: prepare it again") from None
    if hashlib.sha256(packed).hexdigest() != part.sha256:
        raise ValueError(f"data: {folder / part.file} was changed after it was prepared: prepare it again")
    return packed


def _next_check(check: str, body: str) -> str:
    """A checksum over a line of the manifest and all before it."""
    return hashlib.sha256(f"{check} {body}".encode()).hexdigest()[:16]


def _read_manifest(manifest: IO[bytes]) -> tuple[dict[str, Any], list[Part], str]:
    """Read the settings, the parts and the last checksum, and cut off a last line that a kill left half-written."""
    manifest.seek(0)
    lines = manifest.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        manifest.truncate(sum(map(len, lines[:-1])))
        lines.pop()
    check, records = "", []
    for number, line in enumerate(lines, 1):
        written, _, body = line.decode(errors="replace").rstrip("\n").partition(" ")
        check = _next_check(check, body)
        if written != check:
            raise ValueError(
                f"out: line {number} of {manifest.name} is damaged, or of an earlier version: remove the folder, and prepare "
                "it again"
            )
        records.append(json.loads(body))
    if not records:
        return {}, [], check
    settings, *parts = records
    return settings, [schemas.part_from_dict(part) for part in parts], check
