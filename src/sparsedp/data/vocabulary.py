"""Vocabularies: given as a file, or learned from the data, privately unless they are said to be public.

A list of the values that occur is a release of the data. It is learned either by DP partition selection,
whose price goes into a ledger before any noise is drawn, or exactly on the caller's word.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from sparsedp.accounting.ledger import Ledger
from sparsedp.core.arrays import I64, U64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.durable import write_file
from sparsedp.data.archives import size_of
from sparsedp.data.blocks import UNREADABLE, Block, source_of
from sparsedp.data.counts import ValueCounts
from sparsedp.data.hashing import hash_strings
from sparsedp.data.partition_selection import PartitionSelection, PublicValues
from sparsedp.data.parts import actionable_disk_errors
from sparsedp.data.preparation import Progress, Reader, in_order
from sparsedp.data.rules import KEY_BITS, VocabularyRule, keys_of
from sparsedp.randomness import NoiseSource

FILE = "vocabulary.parquet"


@dataclass(frozen=True)
class Vocabulary:
    """The listed keys of every feature, in the order of their ids, and what listing cost (None: public)."""

    keys: dict[str, I64]
    statement: str | None = None

    @property
    def rules(self) -> dict[str, VocabularyRule]:
        """The rule of every feature."""
        return {name: VocabularyRule(keys) for name, keys in self.keys.items()}

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file: CSV, TSV or Parquet with the columns `feature` and `value` (or `key`).

        The values of a feature get the ids 1, 2, ... in the order of the file. A `key` is the 40 upper bits
        of a value's hash, which is what a learned vocabulary lists.
        """
        path = Path(path)
        try:
            return cls._of(
                path, pl.read_parquet(path) if path.suffix.lower() == ".parquet" else _read_text(path)
            )
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"vocabulary: cannot read {path} ({error})") from error

    @classmethod
    def _of(cls, path: Path, frame: pl.DataFrame) -> Vocabulary:
        if "feature" not in frame.columns or not {"value", "key"} & set(frame.columns):
            raise ValueError(
                f"vocabulary: {path} must have the columns feature and value, has {frame.columns}"
            )
        if "key" not in frame.columns:
            frame = frame.with_columns(
                pl.Series("key", keys_of(hash_strings(frame["value"].cast(pl.String))))
            )
        elif not frame["key"].dtype.is_integer() or not frame["key"].is_between(0, (1 << KEY_BITS) - 1).all():
            raise ValueError(f"vocabulary: the column key of {path} must hold numbers of {KEY_BITS} bits")
        if frame["feature"].null_count() or frame["key"].null_count():
            raise ValueError(f"vocabulary: {path} has a row without a feature or a key")
        twice = frame.filter(frame.select("feature", "key").is_duplicated())
        if len(twice):
            shown = ", ".join(map(repr, twice.row(0)))
            raise ValueError(f"vocabulary: {path} lists a value twice: {shown}")
        groups = frame.group_by("feature", maintain_order=True)
        metadata = pl.read_parquet_metadata(path) if path.suffix.lower() == ".parquet" else {}
        return cls(
            {str(name): group["key"].cast(pl.Int64).to_numpy() for (name,), group in groups},
            metadata.get("statement") or None,
        )

    def packed(self, settings: str) -> bytes:
        """Return the content of a vocabulary file, with the settings that it was learned under."""
        names = np.repeat(list(self.keys), [len(keys) for keys in self.keys.values()])
        frame = pl.DataFrame({"feature": names, "key": np.concatenate(list(self.keys.values()))})
        buffer = io.BytesIO()
        frame.write_parquet(buffer, metadata={"settings": settings, "statement": self.statement or ""})
        return buffer.getvalue()


def learn_privately(
    reader: Reader,
    out: str | Path,
    features: Sequence[str],
    selection: PartitionSelection,
    *,
    ledger: Ledger,
    noise: NoiseSource | None = None,
    progress: Progress = lambda done: None,
) -> Vocabulary:
    """Learn the vocabulary of some of the reader's features by DP partition selection, once: `out` keeps it.

    The ledger has the event on disk before noise is drawn. If the process is killed between that and the
    writing of the list, the next attempt is charged again: the first list was never seen, but the ledger cannot
    know that. A saved list is entered in a ledger that does not have it.
    """
    noise = noise or NoiseSource()
    settings = _settings(reader, features, selection)
    if (known := _known(Path(out), features, settings)) is not None:
        if all(event != selection.event for event, _ in ledger.events()):
            ledger.spend(selection.event)
        return known
    counts = _count(reader, features, Path(out), settings, progress)
    ledger.spend(selection.event)
    chosen = np.concatenate([low + selection.select(part, noise) for low, part in counts.ranges()])
    return _keep(features, Path(out), chosen, settings, str(selection.statement(noise)))


def learn_public(
    reader: Reader,
    out: str | Path,
    features: Sequence[str],
    selection: PublicValues,
    *,
    progress: Progress = lambda done: None,
) -> Vocabulary:
    """List the values that occur often enough, on the caller's word that they are public."""
    settings = _settings(reader, features, selection)
    if (known := _known(Path(out), features, settings)) is not None:
        return known
    counts = _count(reader, features, Path(out), settings, progress)
    chosen = np.concatenate([low + selection.select(part) for low, part in counts.ranges()])
    return _keep(features, Path(out), chosen, settings, None)


def _settings(reader: Reader, features: Sequence[str], selection: PartitionSelection | PublicValues) -> str:
    if len(features) != selection.features:
        raise ValueError(f"selection is for {selection.features} features, {len(features)} are to be learned")
    sources = [dataclasses.asdict(source_of(path)) for path in reader.files]
    rule = {"rule": type(selection).__name__, **dataclasses.asdict(selection)}
    return json.dumps({"sources": sources, "features": list(features), "selection": rule})


def _known(out: Path, features: Sequence[str], settings: str) -> Vocabulary | None:
    path = out / FILE
    if not path.exists():
        return None
    if pl.read_parquet_metadata(path).get("settings") != settings:
        raise ValueError(f"vocabulary: {path} was learned from other files or with other settings")
    found, none = Vocabulary.read(path), np.empty(0, np.int64)
    return Vocabulary({name: found.keys.get(name, none) for name in features}, found.statement)


def _count(
    reader: Reader, features: Sequence[str], out: Path, settings: str, progress: Progress
) -> ValueCounts:
    """Count the values of every feature, continuing an interrupted count."""
    columns = [reader.features.index(name) for name in features]

    def count(block: Block) -> tuple[SparseCounts, Block]:
        hashes = reader.read(block).hashes
        return count_keys([hashes[column] for column in columns]), block

    folder = out / "counting"
    with actionable_disk_errors(out):
        folder.mkdir(parents=True, exist_ok=True)
        begun = folder / "settings.json"
        if begun.exists() and begun.read_bytes() != settings.encode():
            raise ValueError(f"out: {out} was begun with other files or vocabulary settings")
        write_file(begun, settings)
        counts = ValueCounts(folder, len(features) << KEY_BITS)
        sizes = [size_of(path) for path in reader.files]
        for found, block in in_order(count, reader.blocks(counts.counted)):
            counts.add(found, block.end)
            progress(sum(sizes[: block.end.source]) + block.read)
    return counts


def count_keys(hashes: Sequence[U64]) -> SparseCounts:
    """Count the keys of several features, key k of the j-th being number j * 2^40 + k; skip the missing."""
    parts = [SparseCounts.of(keys_of(column[column != 0]), 1 << KEY_BITS) for column in hashes]
    ids = np.concatenate([part.ids + (j << KEY_BITS) for j, part in enumerate(parts)])
    return SparseCounts(ids, np.concatenate([part.values for part in parts]), len(hashes) << KEY_BITS)


def _keep(
    features: Sequence[str], out: Path, chosen: I64, settings: str, statement: str | None
) -> Vocabulary:
    cuts = np.searchsorted(chosen, np.arange(1, len(features)) << KEY_BITS)
    keys = [part & ((1 << KEY_BITS) - 1) for part in np.split(chosen, cuts)]
    vocabulary = Vocabulary(dict(zip(features, keys, strict=True)), statement)
    with actionable_disk_errors(out):
        write_file(out / FILE, vocabulary.packed(settings))
    shutil.rmtree(out / "counting")
    return vocabulary


def _read_text(path: Path) -> pl.DataFrame:
    separator = "\t" if ".tsv" in path.suffixes else ","
    return pl.read_csv(path, separator=separator, infer_schema=False)
