"""The rows of a prepared folder as memory-mapped arrays, one row's numbers side by side.

Parquet is made for reading columns from end to end. A Poisson batch wants a few thousand rows from anywhere,
so the parts are laid out once more as plain `.npy` files in which a row is contiguous: reading a row touches
one page per array, and only requested rows are read.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sparsedp.core.durable import write_file
from sparsedp.data.batch import Batch, MultiHot
from sparsedp.data.lists import flatten
from sparsedp.data.parts import actionable_disk_errors, read_part
from sparsedp.data.schema import Part, Schema

FOLDER = "rows"
STAMP = "of.txt"


def open_rows(folder: Path, schema: Schema, cache: Path | None = None) -> Batch:
    """Map the rows of a prepared folder; the first call lays them out in `cache` (default: inside it)."""
    cache = folder / FOLDER if cache is None else cache
    if not _is_current(cache, schema):
        _lay_out_once(folder, schema, cache)
    advice = _advice(cache)

    def load(name: str) -> NDArray[Any]:
        return _load(cache / f"{name}.npy", advice)

    bags = tuple(MultiHot(load(f"values-{n}"), load(f"offsets-{n}")) for n in range(len(schema.multi_hot)))
    time = None if schema.time is None else load("time")
    user = None if schema.user is None else load("user")
    return Batch(load("numeric"), load("ids"), load("label"), time, bags, user)


def _is_current(cache: Path, schema: Schema) -> bool:
    """Whether the layout is finished and of this very folder."""
    return (cache / STAMP).exists() and (cache / STAMP).read_bytes() == schema.digest.encode()


def _lay_out_once(folder: Path, schema: Schema, cache: Path) -> None:
    """Lay out unless another process does: those of a sweep may come at once, and the others wait."""
    with actionable_disk_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current(cache, schema):
                (cache / STAMP).unlink(missing_ok=True)
                _lay_out(folder, schema, cache)
                write_file(cache / STAMP, schema.digest)


def _load(path: Path, advice: int) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, FileNotFoundError) as error:
        raise ValueError(
            f"data: {path} is damaged ({error}): remove {path.parent}, which is made again"
        ) from error
    if array.nbytes:
        array._mmap.madvise(advice)
    return np.asarray(array)


def _advice(cache: Path) -> int:
    """Return what to tell the kernel about reading ahead.

    Rows that fit the memory are best read in one go, now. Of larger ones, a row wanted here says nothing about
    its neighbours: reading those too, the kernel's habit, would be 30 times the work.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = sum(path.stat().st_size for path in cache.glob("*.npy"))
    return mmap.MADV_WILLNEED if 2 * size <= memory else mmap.MADV_RANDOM


def _lay_out(folder: Path, schema: Schema, cache: Path) -> None:
    """Write every array part by part, through files rather than a map, so that a full disk is an error."""
    numeric = list(schema.numeric)
    ids = [feature.name for feature in schema.categorical]
    with contextlib.ExitStack() as stack:

        def begin(name: str, kind: str, *shape: int) -> IO[bytes]:
            file = stack.enter_context((cache / f"{name}.npy").open("wb"))
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            return file

        files = {
            "numeric": begin("numeric", "<f4", schema.rows, len(numeric)),
            "ids": begin("ids", "<i4", schema.rows, len(ids)),
            "label": begin("label", "<f4", schema.rows),
        }
        whole = {"time": schema.time, "user": schema.user}
        for name, column in whole.items():
            if column is not None:
                files[name] = begin(name, "<i8", schema.rows)
        for number, feature in enumerate(schema.multi_hot):
            files[f"values-{number}"] = begin(f"values-{number}", "<i4", _total(folder, schema, feature.name))
            files[f"offsets-{number}"] = begin(f"offsets-{number}", "<i8", schema.rows + 1)
            files[f"offsets-{number}"].write(bytes(8))
        ends = [0] * len(schema.multi_hot)
        for part in schema.parts:
            frame = _read_part(folder, part, schema)
            files["numeric"].write(_row_major(frame.select(numeric), "<f4"))
            files["ids"].write(_row_major(frame.select(ids), "<i4"))
            files["label"].write(frame[schema.label].to_numpy().astype("<f4", copy=False).tobytes())
            for name, column in whole.items():
                if column is not None:
                    files[name].write(frame[column].to_numpy().astype("<i8").tobytes())
            for number, feature in enumerate(schema.multi_hot):
                values, offsets = flatten(frame[feature.name])
                files[f"values-{number}"].write(values.to_numpy().astype("<i4").tobytes())
                files[f"offsets-{number}"].write((offsets[1:] + ends[number]).astype("<i8").tobytes())
                ends[number] += len(values)


def _read_part(folder: Path, part: Part, schema: Schema) -> pl.DataFrame:
    """A part's rows, which are as the schema says: ids within their tables, labels 0 and 1."""
    frame = pl.read_parquet(io.BytesIO(read_part(folder, part)))
    try:
        integers = [feature.name for feature in schema.categorical]
        integers += [name for name in (schema.time, schema.user) if name is not None]
        bags = [feature.name for feature in schema.multi_hot]
        fits = (
            len(frame) == part.rows
            and frame[schema.label].is_in([0.0, 1.0]).all()
            and all(frame[name].dtype.is_integer() for name in integers)
            and all(frame[name].dtype.is_numeric() for name in schema.numeric)
            and all(_holds_integers(frame[name].dtype) for name in bags)
            and all(frame[each.name].is_between(0, each.rows - 1).all() for each in schema.categorical)
            and all(
                flatten(frame[each.name])[0].is_between(0, each.rows - 1).all() for each in schema.multi_hot
            )
        )
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"data: {folder / part.file} is not as the schema says ({error})") from error
    if not fits:
        raise ValueError(f"data: {folder / part.file} is not as the schema says: prepare it again")
    return frame


def _holds_integers(kind: pl.DataType) -> bool:
    """Whether a column has lists of whole numbers."""
    inner = kind.inner if isinstance(kind, pl.List) else None
    return inner is not None and inner.is_integer()


def _row_major(frame: pl.DataFrame, kind: str) -> bytes:
    if frame.width == 0:
        return b""
    return np.ascontiguousarray(frame.to_numpy(order="c"), kind).tobytes()


def _total(folder: Path, schema: Schema, name: str) -> int:
    files = [folder / part.file for part in schema.parts]
    try:
        count = (
            pl.scan_parquet(files).select(pl.col(name).list.len().sum()).collect(engine="streaming").item()
        )
    except FileNotFoundError:
        lost = next(part.file for part in schema.parts if not (folder / part.file).exists())
        raise ValueError(f"data: {folder} has lost its part {lost}: prepare it again") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(f"data: {folder} is not as its schema says ({error})") from error
    return int(count or 0)
