"""Reading files in blocks of whole lines (plain, gzip or zstd text) or of rows (Parquet), in bounded memory; text
also out of zip archives.

Where a block ends depends on the files alone, so a reader that starts again at a block's end sees the same
blocks.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsedp.data.archives import InputFile, ZipMember
from sparsedp.data.quotes import Quotes
from sparsedp.data.schema import Source, SourcePosition

BLOCK_BYTES = 8 * 2**20
BLOCK_ROWS = 2**17
SAMPLE_BYTES = 2**16
MAX_LINE_BYTES = 32 * BLOCK_BYTES
UNREADABLE = (
    *(
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        pa.ArrowException,
        OverflowError,
        UnicodeDecodeError,
    ),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""What the libraries raise that unpack and parse files; polars gives up on some with a panic, which is no Exception."""
PACKINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Block:
    """Whole lines (or rows) of one source. `read` is how far into its file the reader was, for progress."""

    start: SourcePosition
    end: SourcePosition
    content: bytes | pl.DataFrame
    read: int

    @property
    def lines(self) -> int:
        """How many lines it holds."""
        return self.end.line - self.start.line

    @property
    def text(self) -> bytes:
        """The lines of a text."""
        if not isinstance(self.content, bytes):
            raise TypeError("a block of rows has no text")
        return self.content


def source_of(path: InputFile) -> Source:
    """Describe a file by name, size and a hash of its two ends: enough to notice that it was exchanged."""
    if isinstance(path, ZipMember):
        return Source(path.name, path.size, path.checksum)
    size = path.stat().st_size
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
        file.seek(max(0, size - SAMPLE_BYTES))
        sample += file.read(SAMPLE_BYTES)
    return Source(path.name, size, hashlib.sha256(sample).hexdigest())


def read_text(
    files: Sequence[InputFile],
    start: SourcePosition,
    *,
    header: bool = False,
    quotes: Quotes | None = None,
    size: int = BLOCK_BYTES,
) -> Iterator[Block]:
    """Yield the lines of the files from `start` on, in blocks: the whole lines of the next `size` bytes.

    With a `header`, the first line of every file is passed over. With `quotes`, a line break in a value that they
    enclose does not end a line.
    """
    position = start
    for source in range(start.source, len(files)):
        if source != position.source:
            position = SourcePosition(source, 0, 0, position.earlier_lines + position.line)
        for block in _read_file(files[source], position, header, quotes, size):
            yield block
            position = block.end


def read_parquet(
    files: Sequence[InputFile],
    start: SourcePosition,
    *,
    rows: int = BLOCK_ROWS,
    columns: Sequence[str] | None = None,
) -> Iterator[Block]:
    """Yield the rows of Parquet files from `start` on, `rows` at a time; a position counts rows, not bytes.

    `columns` are those to read; default: all.
    """
    position = start
    for source in range(start.source, len(files)):
        if source != position.source:
            position = SourcePosition(source, 0, 0, position.earlier_lines + position.line)
        path = files[source]
        assert isinstance(path, Path)  # Parquet is not read out of archives
        with readable(path):
            file = pq.ParquetFile(path)
            total, size = max(1, file.metadata.num_rows), path.stat().st_size
            batches = file.iter_batches(batch_size=rows, columns=columns)
        passed = 0
        while True:
            with readable(path, f" after row {passed}"):
                if (batch := next(batches, None)) is None:
                    break
                frame = pl.DataFrame(batch)
            passed += batch.num_rows
            if passed <= position.line:
                continue
            end = SourcePosition(source, passed, passed, position.earlier_lines)
            yield Block(position, end, frame, size * passed // total)
            position = end


def first_line(path: InputFile) -> bytes:
    """Return the first line of a text file, with its line break."""
    with readable(path), path.open("rb") as raw:
        text, data = _open_unpacked(raw), b""
        while b"\n" not in data and (more := text.read(SAMPLE_BYTES)):
            data += more
            if len(data) > MAX_LINE_BYTES:
                raise ValueError(f"{path}: has no end of line: no text")
    return data[: data.find(b"\n") + 1] or data


@contextmanager
def readable(path: InputFile, where: str = "") -> Iterator[None]:
    """Say which file is damaged, where a library that unpacks or parses it says only that something is."""
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path}: is damaged{where} ({error})") from error


def _read_file(
    path: InputFile, position: SourcePosition, header: bool, quotes: Quotes | None, size: int
) -> Iterator[Block]:
    if header and position.byte == 0:
        position = SourcePosition(position.source, len(first_line(path)), 1, position.earlier_lines)
    with readable(path), path.open("rb") as raw:
        text = _open_unpacked(raw)
        try:
            _skip(text, position.byte)
            rest = b""
            while True:
                fresh = _read(text, size - len(rest) % size)
                data = rest + fresh
                cut = _last_line_end(data, quotes) if fresh else len(data)
                if not cut and len(data) > MAX_LINE_BYTES:
                    raise ValueError(
                        f"{path}: no end of line after line {position.line}: no text, or an open quote"
                    )
                if cut:
                    complete, rest = data[:cut], data[cut:]
                    after = _after(position, complete)
                    yield Block(position, after, complete, raw.tell())
                    position = after
                else:
                    rest = data
                if not fresh:
                    return
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(
                f"{path}: damaged compressed data after line {position.line} ({error})"
            ) from error


def _open_unpacked(raw: IO[bytes]) -> IO[bytes]:
    """Open a file as text; compression is recognised by its first bytes, not by its name."""
    magic = raw.read(4)
    raw.seek(0)
    for start, packing in PACKINGS.items():
        if magic.startswith(start):
            # Arrow's reader notices a stream that was cut off, which others pass over in silence.
            unpacked: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), packing)
            return unpacked
    return raw


def _after(position: SourcePosition, text: bytes) -> SourcePosition:
    breaks = int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))
    lines = breaks + (not text.endswith(b"\n"))
    return SourcePosition(
        position.source, position.byte + len(text), position.line + lines, position.earlier_lines
    )


def _read(text: IO[bytes], size: int) -> bytes:
    """Read `size` bytes unless the text ends: block ends must not depend on a decompressor's portions."""
    pieces = []
    while size > 0 and (piece := text.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _skip(text: IO[bytes], count: int) -> None:
    if isinstance(text, io.BufferedReader):
        text.seek(count)
        return
    while count > 0 and (passed := len(_read(text, min(count, BLOCK_BYTES)))):
        count -= passed


def _last_line_end(data: bytes, quotes: Quotes | None) -> int:
    """Return the length of the whole lines in `data`."""
    return data.rfind(b"\n") + 1 if quotes is None else quotes.last_line_end(data)
