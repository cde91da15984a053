"""Which share of the examples reads each table's most read row, with noise: such rows want a lower learning rate.

A step moves a row by its mean gradient, to which every example that reads it adds. At a rate that is right for rare
rows, a row that every other example reads overshoots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.data import ClickData
from sparsedp.mechanisms import gaussian, gaussian_event
from sparsedp.planning.widths import WIDTH
from sparsedp.randomness import Stream
from sparsedp.runs.config import RunConfig
from sparsedp.runs.optimizers import trained_tables
from sparsedp.training.step_config import Unit

MOST_RATE = 40.0
"""The most learning rate of a table, as the network reads it, times the share that reads its most read row."""
BATCH = 1 << 18


def read_share_events(mu: float | None) -> tuple[DpEvent, ...]:
    """What finding the shares costs: nothing where ``mu`` is None."""
    return () if mu is None else (gaussian_event(std=1.0 / mu, sensitivity=1.0),)


def check_finds_shares(model: nn.Module, config: RunConfig, data: ClickData) -> None:
    """Refuse a model whose tables are not those of the columns, before anything is made for the run."""
    rows = [table.shape[0] for table in trained_tables(model)]
    if rows != table_rows(data):
        raise ValueError(
            f"read_share_mu: model {config.model} has other tables than one for each column; leave it out"
        )


def table_rows(data: ClickData) -> list[int]:
    """The rows of the tables of all columns: one-hot, then multi-hot."""
    return [*data.schema.vocabulary_sizes, *(feature.rows for feature in data.schema.multi_hot)]


def read_shares(largest: F64, units: int, mu: float, stream: Stream) -> F64:
    """The shares of ``units`` that read the most read row of each table, with noise, between 1 / units and 1.

    Guarantee: add-or-remove-one unit, event ``Gaussian(1 / mu)``, charged by the caller. Released: the shares.
    Proof: ``largest_counts`` of q tables. A unit adds 0 or 1 to each row's count, so that it moves the largest count of
    a table by 0 or 1 and all of them by sqrt(q) in l2. Divided by sqrt(q) the sensitivity is 1, and the noise has a
    standard deviation of 1 / mu. The rest is post-processing.
    """
    root = np.sqrt(largest.size)
    noisy = root * gaussian(largest / root, std=1.0 / mu, stream=stream)
    shares: F64 = np.clip(noisy / units, 1.0 / units, 1.0)
    return shares


def largest_counts(data: ClickData, unit: Unit) -> F64:
    """How many units read the most read row of each table; one that reads a row often counts once. Private."""
    owners = np.unique(data.user, return_inverse=True)[1] if unit == "user" else np.arange(len(data))
    rows, one_hot = table_rows(data), len(data.schema.vocabulary_sizes)
    singles: list[F64 | SparseCounts] = [_zeros(size, len(data)) for size in rows]
    pairs: list[list[NDArray[np.int64]]] = [[] for _ in rows]
    begin = 0
    for batch in data.batches(BATCH):
        owner = owners[begin : begin + len(batch)].astype(np.int64, copy=False)
        begin += len(batch)
        columns = [(batch.ids[:, column], owner) for column in range(one_hot)]
        columns += [(bags.values, np.repeat(owner, np.diff(bags.offsets))) for bags in batch.multi_hot]
        for table, (ids, readers) in enumerate(columns):
            if unit == "example" and table < one_hot:
                singles[table] = _added(singles[table], ids, rows[table])
            else:
                pairs[table].append(readers * rows[table] + ids)
    return np.array(
        [
            _largest(_of_pairs(pairs[table], rows[table]) if pairs[table] else singles[table])
            for table in range(len(rows))
        ]
    )


def lower_rates(tables: Optimizer, shares: Sequence[float], scales: Sequence[float]) -> None:
    """Give each table, a group of its own, at most the rate at which its most read row is stable.

    A step moves what the network reads by the square of the scale, in each coordinate of the row.
    """
    for group, share, scale in zip(tables.param_groups, shares, scales, strict=True):
        (table,) = group["params"]
        moved = scale**2 * table.shape[1] / WIDTH
        group["lr"] = min(group["lr"], MOST_RATE / (moved * share))


def _zeros(rows: int, examples: int) -> F64 | SparseCounts:
    """Counts that take no more memory than the examples, however many rows there are."""
    return np.zeros(rows) if rows <= examples else SparseCounts.zeros(rows)


def _added(counts: F64 | SparseCounts, ids: NDArray[np.int32], rows: int) -> F64 | SparseCounts:
    if isinstance(counts, SparseCounts):
        return counts + SparseCounts.of(ids, rows)
    counts += np.bincount(ids, minlength=rows)
    return counts


def _of_pairs(parts: list[I64], rows: int) -> SparseCounts:
    """Of pairs (unit, row), each once."""
    return SparseCounts.of(np.unique(np.concatenate(parts)) % rows, rows)


def _largest(counts: F64 | SparseCounts) -> float:
    values = counts.values if isinstance(counts, SparseCounts) else counts
    return float(values.max(initial=0.0))
