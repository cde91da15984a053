"""Examples between reading and encoding: numbers ready, values hashed but not yet numbered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sparsedp.core.arrays import U64
from sparsedp.data.hashing import hash_strings
from sparsedp.data.lists import flatten
from sparsedp.data.rules import IdRule
from sparsedp.data.scales import Scale
from sparsedp.data.schema import Schema

NUMERIC_RULE = "sign(x) * log(1 + |x|); 0 where x is missing or not finite"


def log_transform(value: pl.Expr) -> pl.Expr:
    """Return sign(x) log(1 + |x|) in 32 bits, and 0 where x is missing or not a finite number.

    A fixed rule: it looks at no other row. It is log(1 + x) for counts, and preserves negative values (Criteo's
    -1, -2 and -3 mean something other than 0) without a shift chosen from the data.
    """
    number = value.cast(pl.Float64, strict=False)
    logarithm = number.sign() * number.abs().log1p()
    return pl.when(number.is_finite()).then(logarithm).otherwise(0.0).cast(pl.Float32)


def transform(name: str, scales: Mapping[str, Scale]) -> pl.Expr:
    """A numeric column as a model reads it: by its public bounds where it has some, else by the fixed rule."""
    return scales[name].transform(pl.col(name)) if name in scales else log_transform(pl.col(name))


@dataclass(frozen=True)
class Malformed:
    """A line left out: its number in the file, from 1, and what is wrong with it."""

    line: int
    reason: str


@dataclass(frozen=True)
class Bag:
    """The values of a multi-hot column: those of row i are `hashes[offsets[i]:offsets[i + 1]]`."""

    hashes: U64
    offsets: NDArray[np.int64]


def bag_of(values: pl.Series, separator: str) -> Bag:
    """Hash a column of lists, or of texts cut at `separator`; missing values are left out."""
    if values.dtype == pl.String:
        values = values.str.split(separator)
    texts, offsets = flatten(values.cast(pl.List(pl.String)))
    hashes = hash_strings(texts)
    present = np.append(0, np.cumsum(hashes != 0))
    return Bag(hashes[hashes != 0], present[offsets])


@dataclass(frozen=True)
class Examples:
    """Rows of one block: `plain` holds label, numbers, time and user in their final form, the rest is hashed."""

    plain: pl.DataFrame
    hashes: list[U64]
    bags: list[Bag]
    malformed: list[Malformed]


def encode(examples: Examples, schema: Schema, rules: Mapping[str, IdRule]) -> pl.DataFrame:
    """Number the values and put the columns in the order label, numeric, categorical, multi-hot, time, user."""
    columns = {name: examples.plain[name] for name in (schema.label, *schema.numeric)}
    for feature, hashes in zip(schema.categorical, examples.hashes, strict=True):
        columns[feature.name] = pl.Series(rules[feature.name].ids(hashes))
    for feature, bag in zip(schema.multi_hot, examples.bags, strict=True):
        ids = rules[feature.name].ids(bag.hashes)
        columns[feature.name] = pl.Series(pa.LargeListArray.from_arrays(bag.offsets, ids))
    for name in (schema.time, schema.user):
        if name is not None:
            columns[name] = examples.plain[name]
    return pl.DataFrame(columns)
