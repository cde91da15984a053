"""Generated clicks as batches, as a data set in memory, and as files of exactly Criteo's format."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pyarrow as pa
import zstandard
from numpy.typing import NDArray
from typing_extensions import override

from sparsedp.data.batch import Batch
from sparsedp.data.click_process import ClickProcess, Logged
from sparsedp.data.clicks import ClickData
from sparsedp.data.criteo import CATEGORIES, INTEGERS
from sparsedp.data.encoding import IDS, EncodedFeature, Encoding
from sparsedp.data.examples import NUMERIC_RULE, log_transform
from sparsedp.data.schema import Feature, Schema

BLOCK_ROWS = 2**16
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def generate(
    rows: int, days: int = 1, seed: int = 0, *, process: ClickProcess | None = None, batch: int = BLOCK_ROWS
) -> Iterator[Batch]:
    """Yield `rows` clicks of `days` days in batches; `process` (default: Criteo's sizes) replaces `seed`."""
    process = process or ClickProcess(seed=seed)
    for logged in _blocks(process, 0, rows, _rows_per_day(rows, days), batch):
        numeric = _counts(logged).select(log_transform(pl.all())).to_numpy(order="c")
        yield Batch(numeric, logged.ids, logged.label, logged.day)


class GeneratedClicks(ClickData):
    """Generated clicks in memory, with the interface of prepared ones."""

    def __init__(
        self, rows: int, days: int = 1, seed: int = 0, *, process: ClickProcess | None = None
    ) -> None:
        process = process or ClickProcess(seed=seed)
        examples = Batch.concatenate(list(generate(rows, days, process=process)))
        super().__init__(examples, generated_schema(process))
        self._generated = generated_encoding(process)

    @property
    @override
    def encoding(self) -> Encoding:
        return self._generated


def generated_schema(process: ClickProcess) -> Schema:
    """Describe generated clicks; their ids are their values."""
    sizes = process.vocabulary_sizes
    return Schema(
        label="label",
        label_rule="generated",
        numeric=INTEGERS,
        numeric_rule=NUMERIC_RULE,
        categorical=tuple(Feature(f"C{n}", rows, "generated") for n, rows in enumerate(sizes, start=1)),
        time="day",
        time_unit="day number",
    )


def generated_encoding(process: ClickProcess) -> Encoding:
    """Rows to predict hold counts and ids, as the generated ones do."""
    sizes = process.vocabulary_sizes
    return Encoding(
        numeric=INTEGERS,
        categorical=tuple(
            EncodedFeature(f"C{n}", (f"C{n}",), IDS, rows) for n, rows in enumerate(sizes, start=1)
        ),
        label="label",
        time="day",
    )


def write_criteo_tsv(
    path: str | Path,
    rows: int,
    *,
    start: int = 0,
    rows_per_day: int | None = None,
    process: ClickProcess | None = None,
) -> None:
    """Write `rows` clicks from number `start` on as a Criteo file (packed if named `.gz` or `.zst`)."""
    process = process or ClickProcess()
    if len(process.vocabulary_sizes) != len(CATEGORIES):
        raise ValueError(f"process must have {len(CATEGORIES)} features, has {len(process.vocabulary_sizes)}")
    with _open_packed(Path(path)) as file:
        for logged in _blocks(process, start, start + rows, rows_per_day or max(rows, 1), BLOCK_ROWS):
            _criteo_frame(logged).write_csv(
                file, separator="\t", include_header=False, null_value="", quote_style="never"
            )


def write_criteo_days(
    folder: str | Path, rows: int, days: int, *, suffix: str = "", process: ClickProcess | None = None
) -> list[Path]:
    """Write `rows` clicks as one Criteo file a day, `day_0`, `day_1`, ..., and return their paths."""
    each = _rows_per_day(rows, days)
    paths = [Path(folder) / f"day_{day}{suffix}" for day in range(days)]
    for day, path in enumerate(paths):
        count = min(each, rows - day * each)
        write_criteo_tsv(path, count, start=day * each, rows_per_day=each, process=process)
    return paths


def _rows_per_day(rows: int, days: int) -> int:
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    if not 1 <= days <= rows:
        raise ValueError(f"days must lie in 1..{rows}, got {days}")
    return -(-rows // days)


def _blocks(process: ClickProcess, start: int, stop: int, rows_per_day: int, size: int) -> Iterator[Logged]:
    for first in range(start, stop, size):
        yield process.log(first, min(first + size, stop), rows_per_day=rows_per_day)


def _counts(logged: Logged) -> pl.DataFrame:
    columns = zip(INTEGERS, logged.counts.T, logged.present.T, strict=True)
    return pl.DataFrame(
        {name: pl.Series(pa.array(counts, mask=~present)) for name, counts, present in columns}
    )


def _criteo_frame(logged: Logged) -> pl.DataFrame:
    hexadecimal = [
        pl.Series(name, _hex(feature, ids))
        for feature, (name, ids) in enumerate(zip(CATEGORIES, logged.ids.T, strict=True))
    ]
    label = pl.Series("label", logged.label.astype(np.int8))
    return pl.DataFrame([label, *_counts(logged), *hexadecimal])


def _hex(feature: int, ids: NDArray[np.int32]) -> pa.Array:
    """Return 8 hex digits for every id, different for different ids of a feature; none for a missing one."""
    value = ids.astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32(feature * 0x85EBCA6B % 2**32)
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x7FEB352D)
    value ^= value >> np.uint32(15)
    nibbles = value[:, None] >> np.arange(28, -4, -4, dtype=np.uint32) & np.uint32(15)
    text = _DIGITS[nibbles][ids != 0]
    offsets = np.append(0, np.cumsum(8 * (ids != 0)))
    return pa.LargeStringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def _open_packed(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", compresslevel=1)  # type: ignore[return-value]
    if path.suffix == ".zst":
        packed: IO[bytes] = zstandard.open(path, "wb")
        return packed
    return path.open("wb")
