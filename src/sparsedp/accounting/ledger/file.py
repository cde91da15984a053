"""A ledger's file: created atomically, read under a lock, appended to durably."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsedp.accounting.ledger.format import (
    SEAL_BYTES,
    LedgerDamaged,
    Record,
    Seal,
    decode_head,
    decode_seal,
    encode,
    encode_head,
    encode_seal,
    scan,
)
from sparsedp.core.durable import sync

LOCK_SECONDS = 30.0
_LONGEST_HEAD = 1 << 16


class LedgerBusy(TimeoutError):
    """Another process has held the ledger's lock for longer than any single entry takes."""


class LedgerFile:
    """The committed records of one file, and the only code that writes them.

    The lock is held for one entry at a time: several processes may write in turn, each first reading what the
    others wrote. Nothing stays open between entries, so a fork inherits nothing and a killed process leaves
    no lock behind.

    Guarantee: when `append` returns, the records are on disk; when it raises, they are not in the file, or they
    are there and nothing was released (which over-counts).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.head: Record = {}
        self.position = 0  # bytes that are read, sound and committed
        self.truncated = 0  # bytes after them: an incomplete write
        self.damaged_seals: list[int] = []
        self._chain = ""
        self._first_seal = 0
        self._identity: tuple[int, int] | None = None

    @staticmethod
    def create(path: str | os.PathLike[str], head: Record) -> bool:
        """Make a ledger without records; False if the path exists already.

        The file appears under its name only when its head is on disk, so no crash leaves half a head.
        """
        path = Path(path)
        if path.exists():
            return False
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"{path.parent} is not a folder: the ledger {path.name} cannot be made in it"
            )
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                _write_all(descriptor, encode_head({"id": secrets.token_hex(8), **head}), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.link(draft, path)  # unlike a rename, never replaces a ledger made in the meantime
            except FileExistsError:
                return False
        finally:
            os.unlink(draft)
        sync(path.parent)
        return True

    def reset(self) -> None:
        """Read everything again at the next `refresh`."""
        self.head, self.position, self.truncated = {}, 0, 0

    @contextlib.contextmanager
    def locked(self, *, write: bool) -> Iterator[int]:
        """Open the file and hold its lock: shared for reading, alone for writing."""
        descriptor = _open_regular(self.path, os.O_RDWR if write else os.O_RDONLY)
        try:
            _lock(descriptor, fcntl.LOCK_EX if write else fcntl.LOCK_SH, self.path)
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            if self._identity not in (None, identity):
                raise LedgerDamaged(f"{self.path} was replaced by another file while it was in use")
            self._identity = identity
            yield descriptor
        finally:
            os.close(descriptor)

    def refresh(self, descriptor: int) -> list[Record]:
        """The records committed since the last call, checked against chain and seals."""
        if not self.head:
            self.head, self._first_seal, self._chain = self._read_head(descriptor)
            self.position = self._first_seal + 2 * SEAL_BYTES
        size = os.fstat(descriptor).st_size
        committed = self._committed(descriptor)
        scanned = scan(_read(descriptor, self.position), self.position, self._chain, watch=committed.length)
        if size < committed.length:
            raise LedgerDamaged(
                f"{self.path} is cut off at byte {size}: {committed.length} bytes were committed "
                f"(the sound records end at byte {scanned.end})"
            )
        if scanned.end < committed.length:
            raise LedgerDamaged(f"{self.path} is damaged at byte {scanned.end}: {scanned.fault}")
        if committed.length >= self.position and scanned.chain_at != committed.chain:
            raise LedgerDamaged(f"{self.path} is damaged: its seals do not belong to its records")
        self.position, self._chain, self.truncated = scanned.end, scanned.chain, size - scanned.end
        return scanned.records

    @property
    def mark(self) -> str:
        """Which ledger this is, how far it was read, and the chain value there: see `require_mark`."""
        return f"{self.head['id']}:{self.position}:{self._chain}"

    def require_mark(self, descriptor: int, mark: str) -> None:
        """Refuse a file that does not continue from `mark`: an older copy, or another ledger.

        Comparing lengths is not enough: an older copy may have grown since.
        """
        head, first_seal, chain = self._read_head(descriptor)
        start = first_seal + 2 * SEAL_BYTES
        noted_id, noted_position, noted_chain = mark.split(":")
        scanned = scan(_read(descriptor, start), start, chain, watch=int(noted_position))
        if head["id"] != noted_id or scanned.chain_at != noted_chain:
            raise LedgerDamaged(
                f"{self.path} does not hold the {noted_position} bytes that were noted when the checkpoint was "
                "made: it is an older copy of the ledger, or another ledger"
            )

    def _read_head(self, descriptor: int) -> tuple[Record, int, str]:
        return decode_head(os.pread(descriptor, _LONGEST_HEAD, 0), str(self.path))

    def append(self, descriptor: int, records: Sequence[Record]) -> None:
        """Write records to disk, right after what `refresh` has read under the same lock.

        The next `refresh` returns them, so that memory only ever holds what the file says.
        """
        lines, chain = [], self._chain
        for record in records:
            line, chain = encode(record, chain)
            lines.append(line)
        data = b"".join(lines)
        try:
            if self.truncated:
                os.ftruncate(descriptor, self.position)
            _write_all(descriptor, data, self.position)
            os.fsync(descriptor)
        except OSError as error:
            # Back to the last good length; if even that fails, the rest is recognised as an incomplete write.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self.position)
            raise OSError(
                error.errno, f"the ledger cannot be written ({error.strerror}); refused", str(self.path)
            ) from error
        self._seal(descriptor, Seal(self.position + len(data), chain))

    def _seal(self, descriptor: int, seal: Seal) -> None:
        """Overwrite the older seal.

        No separate fsync: if a power cut loses the seal, the other one promises less than there is, which
        `refresh` accepts; and the fsync of the next entry covers it.
        """
        lengths = [known.length if known else -1 for known in self._seals(descriptor)]
        slot = lengths.index(min(lengths))
        _write_all(descriptor, encode_seal(slot, seal), self._first_seal + slot * SEAL_BYTES)

    def _seals(self, descriptor: int) -> list[Seal | None]:
        data = os.pread(descriptor, 2 * SEAL_BYTES, self._first_seal)
        return [decode_seal(slot, data[slot * SEAL_BYTES :][:SEAL_BYTES]) for slot in (0, 1)]

    def _committed(self, descriptor: int) -> Seal:
        """The seal that promises most; one may be unreadable (a power cut while it was written), not both."""
        seals = self._seals(descriptor)
        self.damaged_seals = [slot for slot, seal in enumerate(seals) if seal is None]
        sound = [seal for seal in seals if seal is not None]
        if not sound:
            raise LedgerDamaged(
                f"{self.path} is damaged: both seals, at byte {self._first_seal}, are cut or altered"
            )
        return max(sound, key=lambda seal: seal.length)


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file to read and write at positions; refuse a folder, device or pipe without blocking."""
    if path.is_dir():  # a clearer message than that of opening it
        raise ValueError(f"ledger must be a regular file: {path} is a folder")
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"ledger must be a regular file: {path} is a device, a pipe or the like")
    return descriptor


def _lock(descriptor: int, kind: int, path: Path) -> None:
    """Wait for the lock, with a timeout: a stopped process may hold it."""
    deadline = time.monotonic() + LOCK_SECONDS
    pause = 0.0002
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LedgerBusy(
                    f"{path} is locked: another process has been writing to it for {LOCK_SECONDS:.0f} s"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _read(descriptor: int, position: int) -> bytes:
    """Everything from `position` to the end of the file."""
    parts = []
    while part := os.pread(descriptor, 1 << 24, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    """Write everything, also where the system writes only a part at a time."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], position + written)
