"""Rows to predict, from a file: CSV, TSV (plain, gzip, zstd), Parquet, or Criteo's lines; with or without the label."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparsedp.data.archives import is_archive
from sparsedp.data.blocks import BLOCK_BYTES, Block, read_parquet, read_text, readable
from sparsedp.data.encoder import Reasons
from sparsedp.data.encoding import Encoding
from sparsedp.data.lines import Separated
from sparsedp.data.quotes import Quotes
from sparsedp.data.schema import SourcePosition
from sparsedp.data.table import QUOTE, header_of, is_parquet, separator_of

TAB = "\t"


@dataclass(frozen=True)
class RawRows:
    """The rows of a block, all of them: a line that cannot be cut into columns has nulls and a reason."""

    frame: pl.DataFrame
    reasons: Reasons
    lines: NDArray[np.int64]
    """The number of each row's line in the file, from 1."""


@dataclass(frozen=True)
class NewRows:
    """A file of rows to predict. `copied` are further columns to read, such as an id.

    Files without a header line have the columns of the encoding's `header`, with or without its first, the label.
    """

    path: Path
    encoding: Encoding
    copied: tuple[str, ...] = ()
    separator: str | None = None

    @classmethod
    def of(
        cls, path: Path, encoding: Encoding, *, copied: Sequence[str] = (), separator: str | None = None
    ) -> NewRows:
        """Look at the file's columns: those that are needed must be there."""
        if separator is not None and len(separator.encode()) != 1:
            raise ValueError(f"separator must be one byte, got {separator!r}")
        if is_archive(path):
            raise ValueError(f"input: {path.name} is a zip archive; unpack it, and give one of its files")
        rows = cls(path, encoding, tuple(copied), separator)
        present = set(rows.names)
        if len(present) < len(rows.names):
            twice = next(name for name in rows.names if rows.names.count(name) > 1)
            raise ValueError(f"input: {path.name} has two columns {twice!r}")
        for name in dict.fromkeys([*encoding.columns, *copied]):
            if name not in present:
                raise ValueError(rows._lack_of(name))
        return rows

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet."""
        return is_parquet(self.path)

    @property
    def ignored(self) -> list[str]:
        """Columns that nothing is read from, but label and time."""
        known = {*self.encoding.columns, *self.copied, self.encoding.label, self.encoding.time}
        return [name for name in self.names if name not in known]

    @cached_property
    def names(self) -> list[str]:
        """The file's columns."""
        if self.is_parquet:
            try:
                return list(pq.read_schema(self.path).names)
            except (pa.ArrowException, OverflowError, UnicodeDecodeError) as error:
                raise ValueError(f"input: {self.path} is not Parquet ({error})") from error
        names = self._header(self._cut)
        if self._has_header:
            return names
        assert self.encoding.header is not None
        return list(self.encoding.header[-len(names) :])

    @property
    def copied_schema(self) -> dict[str, pl.DataType]:
        """The types of the copied columns."""
        if not self.is_parquet:
            return {name: pl.String() for name in self.copied}
        with readable(self.path):
            types = pl.read_parquet_schema(self.path)
        return {name: types[name] for name in self.copied}

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in blocks, in their order."""
        start = SourcePosition()
        if self.is_parquet:
            return read_parquet([self.path], start, columns=self._read)
        return read_text([self.path], start, header=self._has_header, quotes=self._quotes, size=BLOCK_BYTES)

    def read(self, block: Block) -> RawRows:
        """Read a block: only the columns that are needed."""
        first = block.start.line + 1
        if isinstance(block.content, pl.DataFrame):
            return RawRows(block.content, {}, first + np.arange(block.lines))
        form = Separated(self._cut, self._quote, len(self.names))
        text = block.content
        if (self._quote is None or self._quote.encode() not in text) and form.is_even(text, block.lines):
            for numbers in (pl.Float64, pl.String) if self._reads_numbers(text) else (pl.String,):
                with contextlib.suppress(
                    pl.exceptions.PolarsError
                ):  # no number, no UTF-8, lines of other lengths
                    return RawRows(self._parse(text, numbers), {}, first + np.arange(block.lines))
        if self._quotes is not None:
            text = self._quotes.closed(text)
        lines = form.lines(text)
        even = lines.columns == form.columns
        try:
            frame = self._parse(text if even.all() else lines.keep(even))
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"input: {self.path.name} after line {first - 1}: {error}") from error
        reasons = {
            int(at): f"{lines.columns[at]} columns instead of {form.columns}" for at in np.flatnonzero(~even)
        }
        if reasons:
            source = pl.Series(np.cumsum(even) - 1).set(pl.Series(~even), None)
            frame = frame.select(pl.all().gather(source))
        return RawRows(frame, reasons, first + lines.numbers)

    def _reads_numbers(self, text: bytes) -> bool:
        """Whether the parser takes the numbers that the rule takes: it passes over blanks before them."""
        if self.encoding.nulls or not self._numbers:
            return False
        cut = self._cut.encode()
        blanks = [blank for blank in (b" ", b"\t") if blank != cut and blank in text]
        return not any(
            text.startswith(blank) or b"\n" + blank in text or cut + blank in text for blank in blanks
        )

    def _parse(self, text: bytes, numbers: type[pl.DataType] = pl.String) -> pl.DataFrame:
        """The columns to read, as texts; those of numbers as `numbers`."""
        if not text:
            return pl.DataFrame(schema=dict.fromkeys(self._read, pl.String))
        frame = pl.read_csv(
            text,
            separator=self._cut,
            quote_char=self._quote,
            has_header=False,
            columns=[self.names.index(name) for name in self._read],
            schema=dict.fromkeys(self.names, pl.String) | dict.fromkeys(self._numbers, numbers),
            encoding="utf8-lossy" if numbers == pl.String else "utf8",
            empty_string_is_null=bool(self.copied),  # an empty value is a missing one; a copied one is kept
        )
        return frame.rechunk()

    @cached_property
    def _read(self) -> list[str]:
        """The columns to read, in the order of the file."""
        needed = {*self.encoding.columns, *self.copied}
        return [name for name in self.names if name in needed]

    @cached_property
    def _numbers(self) -> list[str]:
        """The columns that are read as numbers alone."""
        texts = {*self.copied, *(column for each in self.encoding.features for column in each.columns)}
        return [name for name in self.encoding.numeric if name not in texts]

    @cached_property
    def _has_header(self) -> bool:
        """Whether the first line names columns: always, unless it has the form of a file without a header."""
        header = self.encoding.header
        if header is None or self.separator is not None:
            return True
        first = self._header(TAB)
        return len(first) not in (len(header), len(header) - 1) or set(self.encoding.columns) <= set(first)

    @property
    def _cut(self) -> str:
        if self.separator is not None:
            return self.separator
        return separator_of(self.path) if self._has_header else TAB

    @property
    def _quote(self) -> str | None:
        return QUOTE if self._has_header else None

    @property
    def _quotes(self) -> Quotes | None:
        return None if self._quote is None else Quotes(self._cut, self._quote)

    def _header(self, separator: str) -> list[str]:
        try:
            return header_of(self.path, separator)
        except ValueError as error:
            raise ValueError(f"input: {self.path} has no header that can be read ({error})") from error

    def _lack_of(self, name: str) -> str:
        """Why a file without a column is refused."""
        has = ", ".join(self.names[:50]) + (", ..." if len(self.names) > 50 else "")
        if name in self.encoding.derived:
            made = f" (the preparation derived it as {self.encoding.derived[name]}; give it as a column)"
        else:
            made = ""
        role = "id" if name in self.copied and name not in self.encoding.columns else "input"
        return f"{role}: no column {name!r} in {self.path.name}{made}, which has {has}"
