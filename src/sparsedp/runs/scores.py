"""Predictions of a whole file into another, block by block: memory is bounded, the order of the rows kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from sparsedp.core.durable import replace_file
from sparsedp.data.batch import Batch
from sparsedp.data.blocks import Block
from sparsedp.data.encoder import Reasons
from sparsedp.data.new_rows import NewRows, RawRows
from sparsedp.data.preparation import Progress, in_order
from sparsedp.data.table import PARQUET
from sparsedp.runs.prediction import TrainedModel

SCORE = "probability"
STDOUT = Path("-")
SHOWN = 10
TEXTS = {".csv": ",", ".tsv": "\t"}

Write = Callable[[pl.DataFrame], None]


@dataclass(frozen=True)
class Scored:
    """How many rows were predicted, and of those without a prediction the first ones: (line, reason)."""

    rows: int
    unreadable: int
    examples: tuple[tuple[int, str], ...]


def predict_file(
    model: TrainedModel,
    rows: NewRows,
    out: Path,
    *,
    strict: bool = False,
    progress: Progress = lambda done: None,
) -> Scored:
    """Write the probability of label 1 for every row, beside the copied columns, to a Parquet, CSV or TSV file.

    One row out for each row in, in its order; a row that cannot be read has no probability (null), or with
    ``strict`` stops the work. ``out`` appears when it is complete; ``-`` is standard output, as CSV.
    """
    check_out(out, rows.path)
    if SCORE in rows.copied:
        raise ValueError(f"id: {SCORE} is the name of the predictions")
    reading = _Reading(strict, rows.path.name)

    def write_all(path: Path | None) -> None:
        columns = {**rows.copied_schema, SCORE: pl.Float64()}
        with frame_writer(path, out.suffix, columns) as write:
            for raw, scores, done in _scored(model, rows, reading):
                probability = pl.Series(SCORE, scores).fill_nan(None)
                write(pl.DataFrame([*(raw.frame[name] for name in rows.copied), probability]))
                progress(done)

    if out == STDOUT:
        write_all(None)
    else:
        replace_file(out, write_all)
    return reading.scored()


def check_out(out: Path, source: Path) -> None:
    """Refuse a file that exists, and one of no known kind."""
    if out == STDOUT:
        return
    if out.exists():
        same = out.samefile(source)
        raise ValueError(
            f"out: {out} is the input" if same else f"out: {out} exists; give another, or remove it"
        )
    if out.suffix not in (*TEXTS, *PARQUET):
        raise ValueError(f"out: {out} must end in {', '.join([*TEXTS, *PARQUET])}")
    if not out.parent.is_dir():
        raise ValueError(f"out: there is no folder {out.parent}")


class _Reading:
    """Counts rows and those that cannot be read."""

    def __init__(self, strict: bool, file: str) -> None:
        self._strict, self._file = strict, file
        self._rows = self._unreadable = 0
        self._examples: list[tuple[int, str]] = []

    def add(self, raw: RawRows, reasons: Reasons) -> None:
        """Add a block; if strict, stop at its first row that cannot be read."""
        found = [(int(raw.lines[at]), reasons[at]) for at in sorted(reasons)]
        if found and self._strict:
            raise ValueError(f"input: {self._file}, line {found[0][0]}: {found[0][1]}")
        self._rows += len(raw.frame)
        self._unreadable += len(found)
        self._examples += found[: SHOWN - len(self._examples)]

    def scored(self) -> Scored:
        """All blocks together."""
        return Scored(self._rows, self._unreadable, tuple(self._examples))


def _scored(
    model: TrainedModel, rows: NewRows, reading: _Reading
) -> Iterator[tuple[RawRows, NDArray[np.float64], int]]:
    """Read, encode and score on all cores, a few blocks ahead.

    A model of one's own runs here, on torch's own threads: it may not expect to be called by several at once.
    """
    shares = model.shares_threads

    def encode(block: Block) -> tuple[RawRows, Batch | NDArray[np.float64], Reasons, int]:
        raw = rows.read(block)
        examples, reasons = model.encode(raw.frame)
        found = model.score_examples(examples) if shares else examples
        return raw, found, {**reasons, **raw.reasons}, block.read

    with _one_thread_each() if shares else nullcontext():
        for raw, found, reasons, done in in_order(encode, rows.blocks()):
            reading.add(raw, reasons)
            scores = model.score_examples(found) if isinstance(found, Batch) else found
            scores[list(reasons)] = np.nan
            yield raw, scores, done


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Torch without threads of its own: they would wait for one another beside those of the blocks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def frame_writer(path: Path | None, suffix: str, columns: Mapping[str, pl.DataType]) -> Iterator[Write]:
    """Write frames one after another; a file without rows has its columns nonetheless."""
    empty = pl.DataFrame(schema=dict(columns))
    if path is not None and suffix in PARQUET:
        with pq.ParquetWriter(path, empty.to_arrow().schema, compression="zstd") as parquet:
            yield lambda frame: parquet.write_table(frame.to_arrow())
        return
    separator = TEXTS.get(suffix, ",")
    with _open_text(path) as file:
        empty.write_csv(file, separator=separator)
        yield lambda frame: frame.write_csv(file, separator=separator, include_header=False)


@contextmanager
def _open_text(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with path.open("wb") as file:
        yield file
