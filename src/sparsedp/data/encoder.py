"""Rows as they come to a model in use: raw columns in, numbers and ids out, by the rules of its preparation.

What a prepared folder would hold for the same values comes out, but nothing is left out: a row that a preparation
would refuse is named, and has the ids and numbers of missing values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sparsedp.core.arrays import U64
from sparsedp.data.batch import Batch, MultiHot
from sparsedp.data.column_types import is_number
from sparsedp.data.compiled_hashing import hash_hex, hash_strings, write_buckets
from sparsedp.data.encoding import HEX, IDS, TEXT, EncodedFeature, Encoding, is_text
from sparsedp.data.examples import bag_of, transform
from sparsedp.data.hashing import MISSING, cross
from sparsedp.data.rules import HashRule, IdRule

Reasons = dict[int, str]
"""Why some rows cannot be read, by their position."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Applies an encoding to frames of raw columns."""

    encoding: Encoding

    @cached_property
    def _rules(self) -> dict[str, IdRule]:
        features = self.encoding.features
        return {each.name: self.encoding.rule_of(each) for each in features if each.rule != IDS}

    def encode(self, frame: pl.DataFrame) -> tuple[Batch, Reasons]:
        """Return the examples of all rows (without labels), and which rows cannot be read, with the reason.

        The frame must have the encoding's columns; of a type that none of their values could have, they are
        refused.
        """
        reasons: Reasons = {}
        frame = self._without_nulls(frame)
        numeric = self._numbers(frame, reasons)
        hashes = self._hashes(frame, reasons)
        # A column lies in one piece: it is written as one, and a model reads it so.
        ids = np.empty((len(frame), len(self.encoding.categorical)), np.int32, order="F")
        for at, feature in enumerate(self.encoding.categorical):
            self._write_ids(frame, feature, hashes, ids[:, at])
        bags = tuple(self._bag(frame, feature) for feature in self.encoding.multi_hot)
        return Batch(numeric, ids, np.zeros(len(frame), np.float32), None, bags), reasons

    def _without_nulls(self, frame: pl.DataFrame) -> pl.DataFrame:
        frame = frame.select(self.encoding.columns)
        if not self.encoding.nulls:
            return frame
        texts = [name for name, kind in frame.schema.items() if kind == pl.String]
        nulls = list(self.encoding.nulls)
        return frame.with_columns(
            pl.when(~pl.col(name).is_in(nulls)).then(pl.col(name)).alias(name) for name in texts
        )

    def _numbers(self, frame: pl.DataFrame, reasons: Reasons) -> NDArray[np.float32]:
        names = self.encoding.numeric
        for name in names:
            kind = frame.schema[name]
            if not is_number(kind):
                raise ValueError(f"{name}: must be a column of numbers, is {kind}")
        values = frame.select(pl.col(name).cast(pl.Float64, strict=False) for name in names)
        for name in names:
            if frame.schema[name] == pl.String:
                given = frame[name]
                wrong = values[name].is_null() & given.is_not_null() & (given != "")
                for at in wrong.arg_true():
                    reasons.setdefault(at, f"{name} is {given[at][:40]!r}, which is no number")
        if not names:
            return np.empty((len(frame), 0), np.float32)
        transformed = values.select(transform(name, self.encoding.scales) for name in names)
        return np.require(
            transformed.to_numpy(), np.float32, ["C", "W"]
        )  # torch warns of what cannot be written

    def _hashes(self, frame: pl.DataFrame, reasons: Reasons) -> dict[str, U64]:
        columns = {c for each in self.encoding.categorical if each.rule != IDS for c in each.columns}
        hashes = {}
        for name in sorted(columns):
            kind = self.encoding.types.get(name, TEXT)
            if kind == HEX:
                values = _as_texts(frame[name], TEXT)
                hashes[name], right = hash_hex(values)
                for at in np.flatnonzero(~right):
                    reasons.setdefault(int(at), f"{name} is {values[int(at)][:40]!r}, not 8 hex digits")
            else:
                hashes[name] = hash_strings(_as_texts(frame[name], kind))
        return hashes

    def _write_ids(
        self, frame: pl.DataFrame, feature: EncodedFeature, hashes: dict[str, U64], out: NDArray[np.int32]
    ) -> None:
        if feature.rule == IDS:
            out[:] = _own_ids(frame[feature.columns[0]], feature.rows)
            return
        parts, rule = [hashes[name] for name in feature.columns], self._rules[feature.name]
        hashed = parts[0] if len(parts) == 1 else cross(parts)
        if isinstance(rule, HashRule):
            write_buckets(hashed, rule.rows, out)
        else:
            out[:] = rule.ids(hashed)

    def _bag(self, frame: pl.DataFrame, feature: EncodedFeature) -> MultiHot:
        values = frame[feature.columns[0]]
        if values.dtype == pl.Null:
            values = values.cast(pl.String)
        if isinstance(values.dtype, pl.Array):
            values = values.arr.to_list()
        if isinstance(values.dtype, pl.List):
            kind = self.encoding.types.get(values.name, TEXT)
            _check_type(values.name, values.dtype.inner, kind)  # type: ignore[arg-type]
        elif values.dtype != pl.String:
            raise ValueError(
                f"{values.name}: must be a column of lists, or of texts to cut, is {values.dtype}"
            )
        bag = bag_of(values, feature.separator or "")
        return MultiHot(self._rules[feature.name].ids(bag.hashes), bag.offsets)


def _as_texts(values: pl.Series, kind: str) -> pl.Series:
    _check_type(values.name, values.dtype, kind)
    return values.cast(pl.String)


def _check_type(name: str, given: pl.DataType, kind: str) -> None:
    """Refuse values whose texts may differ from those that the preparation hashed: their ids would be wrong."""
    if given == pl.Null:
        return
    if kind == TEXT and not is_text(given):
        advice = (
            "give texts or integers, as in the prepared files (a float column is often integers with gaps)"
        )
        raise ValueError(f"{name}: values of type {given} have no one text; {advice}")
    if kind != TEXT and str(given) != kind:
        raise ValueError(f"{name}: was {kind} when it was prepared, is {given} here")


def _own_ids(values: pl.Series, rows: int) -> NDArray[np.int32]:
    """The values themselves where they are ids of the table, else the row of missing values."""
    if not (values.dtype.is_integer() or values.dtype in (pl.String, pl.Null)):
        raise ValueError(f"{values.name}: must be a column of ids (integers), is {values.dtype}")
    ids = values.cast(pl.Int64, strict=False)
    known = ids.is_between(0, rows - 1).fill_null(False)
    return ids.fill_null(MISSING).to_numpy() * known.to_numpy()  # type: ignore[no-any-return]
