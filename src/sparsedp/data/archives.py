"""Tables inside zip archives: read member by member, never unpacked to disk."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

TABLES = ("*.csv", "*.tsv", "*.tab")
"""Which members hold tables, unless a pattern says which."""
MAGIC = b"PK\x03\x04"
MOST_MEMBERS = 10_000
LARGEST_RATIO = 200
"""Text packs to a tenth or so; an archive made to swell packs to a thousandth."""
SMALL_BYTES = 2**26
"""Below this size any ratio is harmless."""
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_ENCRYPTED = 1


@dataclass(frozen=True)
class ZipMember:
    """A member of a zip archive, with the names that a path has for a file."""

    archive: Path
    member: str

    @property
    def name(self) -> str:
        """Archive and member."""
        return f"{self.archive.name}/{self.member}"

    def __str__(self) -> str:
        return f"{self.archive}/{self.member}"

    @property
    def suffix(self) -> str:
        """The last suffix of the member's name."""
        return PurePosixPath(self.member).suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the member's name."""
        return PurePosixPath(self.member).suffixes

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The unpacked bytes: at most as many as the archive's list says, checked by their checksum at the end."""
        assert mode == "rb"
        with zipfile.ZipFile(self.archive) as archive:
            return archive.open(self.member)

    @property
    def size(self) -> int:
        """Unpacked bytes."""
        return self._info.file_size

    @property
    def checksum(self) -> str:
        """A hash of what the archive's list says of the member: enough to notice that it was exchanged."""
        said = f"{self.member} {self._info.file_size} {self._info.CRC}"
        return hashlib.sha256(said.encode()).hexdigest()

    @cached_property
    def _info(self) -> zipfile.ZipInfo:
        with zipfile.ZipFile(self.archive) as archive:
            return archive.getinfo(self.member)


InputFile: TypeAlias = Path | ZipMember
"""A file that a table is read from."""


def size_of(file: InputFile) -> int:
    """The bytes of a file, or the unpacked bytes of a member."""
    return file.size if isinstance(file, ZipMember) else file.stat().st_size


def open_archives(files: Sequence[Path], pattern: str | None = None) -> tuple[InputFile, ...]:
    """The files, with each zip archive replaced by its tables, in the order of their names.

    Refused: archives with names that lead out of a folder, encrypted tables, and tables that swell more than
    any text does. Members that are no tables (a README) are passed over. `pattern` chooses members by name.
    """
    opened: list[InputFile] = []
    for path in files:
        opened += _members(path, pattern) if is_archive(path) else [path]
    if pattern is not None and not any(isinstance(file, ZipMember) for file in opened):
        raise ValueError("member: is for zip archives, and none of the files is one")
    return tuple(opened)


def refuse_repeats(files: Sequence[InputFile]) -> None:
    """Refuse a file that is given twice, by whatever name: each of its examples would be two, while a guarantee is for
    one. A copy is another file."""
    seen = set[tuple[object, str]]()
    for file in files:
        path, member = (file.archive, file.member) if isinstance(file, ZipMember) else (file, "")
        place = (_identity(path), member)
        if place in seen:
            raise ValueError(f"files: {file.name} is given twice, so that each of its rows would be")
        seen.add(place)


def _identity(path: Path) -> object:
    """What all names of a file share: device and number, or the path of one that is not there."""
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return found.st_dev, found.st_ino


def is_archive(path: Path) -> bool:
    """Whether a file is a zip archive, by its first bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _members(path: Path, pattern: str | None) -> list[ZipMember]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        ValueError,
        EOFError,
        LookupError,
        struct.error,
    ) as error:
        raise ValueError(f"files: {path} is a damaged zip archive ({error})") from None
    if len(infos) > MOST_MEMBERS:
        raise ValueError(f"files: {path} has {len(infos):,} members, more than {MOST_MEMBERS:,}")
    names = Counter(info.filename for info in infos)
    if "" in names:
        raise ValueError(f"files: {path} has a member without a name")
    for name, count in names.items():
        if count > 1:
            raise ValueError(
                f"files: {path} has two members named {name!r}, of which one would be read twice"
            )
    for info in infos:
        parts = PurePosixPath(info.filename.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(
                f"files: {path} has a member with the path {info.filename!r}, which leads out of it"
            )
    patterns = TABLES if pattern is None else (pattern,)
    hidden = ("__MACOSX/", ".")
    chosen = [
        info
        for info in sorted(infos, key=lambda info: info.filename)
        if not info.is_dir()
        and not info.filename.startswith(hidden)
        and any(fnmatchcase(info.filename if pattern else info.filename.lower(), each) for each in patterns)
    ]
    if not chosen:
        raise ValueError(f"files: {path} has no member that matches {' or '.join(patterns)}")
    for info in chosen:
        _check_member(path, info)
    return [ZipMember(path, info.filename) for info in chosen]


def _check_member(path: Path, info: zipfile.ZipInfo) -> None:
    where = f"files: {path}, member {info.filename}"
    if info.flag_bits & _ENCRYPTED:
        raise ValueError(f"{where} is encrypted: unpack it first")
    if info.compress_type not in _PACKINGS:
        raise ValueError(f"{where} is packed in a way that is not supported: unpack it first")
    if info.file_size > max(SMALL_BYTES, LARGEST_RATIO * info.compress_size):
        raise ValueError(
            f"{where} would unpack {info.compress_size:,} bytes to {info.file_size:,}, as no table does: refused"
        )
