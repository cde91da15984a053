"""The Criteo click logs, as Kaggle's `train.txt` or one file a day (`day_0` ... `day_23`).

Tab-separated label, 13 integers, 26 values of 8 hex digits; no header; any field but the label may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sparsedp.core.arrays import U64
from sparsedp.data.archives import refuse_repeats
from sparsedp.data.blocks import BLOCK_BYTES, Block, read_text
from sparsedp.data.encoding import HEX, EncodedFeature, Encoding
from sparsedp.data.examples import NUMERIC_RULE, Examples, Malformed, log_transform
from sparsedp.data.hashing import first_words, hash_of_length, mix
from sparsedp.data.lines import Separated
from sparsedp.data.rules import IdRule
from sparsedp.data.schema import Feature, Schema, Source, SourcePosition

LABEL = "label"
INTEGERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = (LABEL, *INTEGERS, *CATEGORIES)

_TEXT = Separated(separator="\t", quote=None, columns=len(COLUMNS))
_DAY_FILE = re.compile(r"day_(\d+)(\.|$)")
_EVERY_BYTE = np.uint64(0x0101010101010101)
_DIGIT, _LETTER, _CASE_BITS, _HIGH_BITS = (np.uint64(byte) * _EVERY_BYTE for byte in (0x30, 0x60, 0x20, 0x80))
_TO_10, _TO_7, _TO_1 = (np.uint64(byte) * _EVERY_BYTE for byte in (0x76, 0x79, 0x7F))
_EIGHT_BYTES = hash_of_length(8)


@dataclass(frozen=True)
class Criteo:
    """The reader of a set of Criteo files.

    Files named `day_N` give the time column `day`; others give `row`, the position of the line in all the
    files, for Kaggle's rows are in time order but carry no timestamp.
    """

    files: tuple[Path, ...]
    days: tuple[int, ...] | None
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def of(cls, files: Sequence[Path]) -> Criteo:
        """Look at the file names: day files (put in the order of their days, as no shell does) or none."""
        if not files:
            raise ValueError("files: at least one is needed")
        refuse_repeats(files)
        matches = {path: _DAY_FILE.search(path.name) for path in files}
        days = {path: int(match[1]) for path, match in matches.items() if match is not None}
        if not days:
            return cls(tuple(files), None)
        if len(days) < len(matches):
            odd = next(path.name for path in files if path not in days)
            raise ValueError(f"files: {odd} is not named day_N while others are")
        if len(set(days.values())) < len(files):
            raise ValueError("files: two of them are of the same day")
        ordered = sorted(days, key=lambda path: days[path])
        return cls(tuple(ordered), tuple(days[path] for path in ordered))

    @property
    def features(self) -> tuple[str, ...]:
        """The columns whose values become ids."""
        return CATEGORIES

    @property
    def multi_hot(self) -> tuple[str, ...]:
        """Criteo has no features with several values."""
        return ()

    def blocks(self, start: SourcePosition) -> Iterator[Block]:
        """Yield the lines of the files from `start` on."""
        return read_text(self.files, start, size=self.block_bytes)

    def schema(self, sources: tuple[Source, ...], rules: Mapping[str, IdRule]) -> Schema:
        """Describe the prepared columns."""
        return Schema(
            label=LABEL,
            label_rule="first column, 0 or 1",
            numeric=INTEGERS,
            numeric_rule=NUMERIC_RULE,
            categorical=tuple(
                Feature(name, rules[name].rows, rules[name].description) for name in CATEGORIES
            ),
            time="row" if self.days is None else "day",
            time_unit="position of the line" if self.days is None else "day number of the file",
            sources=sources,
        )

    def encoding(self, rules: Mapping[str, IdRule]) -> Encoding:
        """The rules, for rows to predict."""
        return Encoding(
            numeric=INTEGERS,
            categorical=tuple(EncodedFeature.of(name, (name,), rules[name]) for name in CATEGORIES),
            types=dict.fromkeys(CATEGORIES, HEX),
            header=COLUMNS,
            label=LABEL,
        ).with_keys(rules)

    def read(self, block: Block) -> Examples:
        """Read a block; lines that are not of the format are left out and named."""
        try:
            return self._read_even(block)
        except (_OddLines, pl.exceptions.PolarsError):
            return self._read_odd(block)

    def _read_even(self, block: Block) -> Examples:
        """Read a block in which every line is right, which costs no more than to find that out."""
        if not _TEXT.is_even(block.text, block.lines):
            raise _OddLines
        frame = _parse(block.text, pl.Int64)
        labels = frame[LABEL]
        if not (labels.is_between(0, 1).all() and labels.null_count() == 0):
            raise _OddLines
        words = [hash_hex(frame[name]) for name in CATEGORIES]
        if not all(right.all() for _, right in words):
            raise _OddLines
        return self._examples(block, frame, [hashes for hashes, _ in words], np.arange(block.lines), [])

    def _read_odd(self, block: Block) -> Examples:
        """Read a block that has malformed lines, keeping the others."""
        lines = _TEXT.lines(block.text)
        even = lines.columns == len(COLUMNS)
        reasons = {
            int(number): f"{columns} columns instead of {len(COLUMNS)}"
            for number, columns in zip(lines.numbers[~even], lines.columns[~even], strict=True)
        }
        text, numbers = lines.keep(even), lines.numbers[even]
        frame = _parse(text, pl.Int64, columns=1 + len(INTEGERS), ignore_errors=True)
        written = _parse(text, pl.String, ignore_errors=True)
        is_read = frame.select(
            pl.col(LABEL).is_between(0, 1).fill_null(False), pl.col(INTEGERS).is_not_null()
        ).to_numpy()
        is_empty = written.select(
            pl.col(INTEGERS).str.strip_chars(" ") == ""
        ).to_numpy()  # as polars reads numbers
        words = [hash_hex(written[name]) for name in CATEGORIES]
        hashes = [hashed for hashed, _ in words]
        rights = [is_read[:, 0], *(is_read[:, 1:] | is_empty).T, *(right for _, right in words)]
        kinds = ["0 or 1", *["an integer"] * len(INTEGERS), *["8 hex digits"] * len(CATEGORIES)]
        good = np.ones(len(numbers), bool)
        for name, right, kind in zip(COLUMNS, rights, kinds, strict=True):
            for at in np.flatnonzero(good & ~right):
                reasons[int(numbers[at])] = f"{name} is {written[name][int(at)][:40]!r}, not {kind}"
            good &= right
        malformed = [Malformed(block.start.line + number + 1, reasons[number]) for number in sorted(reasons)]
        valid = frame.filter(pl.Series(good))
        return self._examples(block, valid, [h[good] for h in hashes], numbers[good], malformed)

    def _examples(
        self,
        block: Block,
        frame: pl.DataFrame,
        hashes: list[U64],
        numbers: NDArray[np.int64],
        malformed: list[Malformed],
    ) -> Examples:
        if self.days is None:
            time = pl.Series("row", numbers + (block.start.earlier_lines + block.start.line))
        else:
            time = pl.repeat(self.days[block.start.source], len(numbers), dtype=pl.Int64, eager=True).alias(
                "day"
            )
        plain = frame.select(pl.col(LABEL).cast(pl.Float32), log_transform(pl.col(INTEGERS)))
        return Examples(plain.with_columns(time), hashes, [], malformed)


class _OddLines(Exception):
    """Some line of the block is not of the format."""


def _parse(
    text: bytes,
    numbers: type[pl.DataType],
    *,
    columns: int = len(COLUMNS),
    ignore_errors: bool = False,
) -> pl.DataFrame:
    """Read the first so many columns."""
    schema = {name: pl.String if name in CATEGORIES else numbers for name in COLUMNS}
    return pl.read_csv(
        text,
        separator="\t",
        has_header=False,
        quote_char=None,
        schema=schema,
        columns=range(columns),
        empty_string_is_null=False,
        encoding="utf8-lossy" if ignore_errors else "utf8",
        ignore_errors=ignore_errors,
    )


def hash_hex(values: pl.Series) -> tuple[U64, NDArray[np.bool_]]:
    """Hash a column of 8 hex digits (in either case), and say which values are that or empty."""
    chunks = [_hash_hex_words(lengths, word) for lengths, word in first_words(values)]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate([hashes for hashes, _ in chunks]), np.concatenate([right for _, right in chunks])


def _hash_hex_words(lengths: NDArray[np.uint32], word: U64) -> tuple[U64, NDArray[np.bool_]]:
    """Do the same for one chunk.

    Eight bytes are one word, so they are tested together: where no high bit is set, adding 0x76 to a byte
    carries into its high bit exactly if it was above 9, and likewise for the letters (1 to 6 without their bits).
    """
    wide = word & _HIGH_BITS
    not_digit = (word ^ _DIGIT) + _TO_10
    word |= _CASE_BITS
    letter = word ^ _LETTER
    not_letter = (letter + _TO_7) | ~(letter + _TO_1)
    hexadecimal = (not_digit & not_letter & _HIGH_BITS) | wide == 0
    empty = lengths == 0
    hashes = mix(word ^ _EIGHT_BYTES)
    hashes[empty] = 0
    return hashes, (hexadecimal & (lengths == 8)) | empty
