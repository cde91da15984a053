"""Row frequencies of click data, and the DP top-k that algorithms with a fixed row set start from."""

from __future__ import annotations

import numpy as np
from torch import nn

from sparsedp.core.counts import SparseCounts
from sparsedp.data import ClickData, TextData
from sparsedp.data.row_sets import RowRange
from sparsedp.distributed import Exchange, merge_counts
from sparsedp.distributed.session import part_of_rank
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace
from sparsedp.runs.config import RunConfig
from sparsedp.runs.text import token_rows
from sparsedp.runs.text_config import TextConfig
from sparsedp.runs.users import loader_of, user_sampler
from sparsedp.selection import FEST, PrivateTopK
from sparsedp.training import UserSampler

_BATCH = 1 << 18


def private_rows(
    config: RunConfig, model: nn.Module, data: ClickData | TextData, exchange: Exchange | None = None
) -> FEST | PrivateTopK | None:
    """The top-k of algorithms that choose their rows before training; None for the others.

    Counts come from the data's columns where the model names its tables, else from passes of the model. With an
    ``exchange`` each process counts its own part of the data, and rank 0 gets the sum.
    """
    if not config.method.row_set:
        return None
    assert config.rows is not None
    if isinstance(data, TextData):
        assert isinstance(config, TextConfig)
        return token_rows(config, model, data)
    names = getattr(model, "table_names", None)
    if (
        sampler := user_sampler(config, data)
    ) is not None:  # a user counts once, whichever of its rows read a row
        source: object = loader_of(config, data, sampler)
    elif names is None or data.schema.multi_hot:
        source = data.loader(config.choices.expected_batch_size)
    else:
        own = data if exchange is None else data.subset(_part(data, exchange))
        counts = count_columns(own, names, config.always_on_rows)
        source = counts if exchange is None else merge_counts(counts, exchange)
    return FEST.private_top_k(source, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)


def _part(data: ClickData, exchange: Exchange) -> RowRange:
    part = part_of_rank(len(data), exchange.rank, exchange.size)
    return RowRange(part.start, part.stop)


def count_columns(data: ClickData, names: list[str], always_on_rows: int) -> dict[str, SparseCounts]:
    """How often each id occurs, per table that rows are chosen in. Private: noise comes after."""
    sizes = data.schema.vocabulary_sizes
    chosen = [column for column, rows in enumerate(sizes) if rows > always_on_rows]
    by_column = {column: SparseCounts.zeros(sizes[column]) for column in chosen}
    for batch in data.batches(_BATCH):
        for column in chosen:
            by_column[column] += SparseCounts.of(batch.ids[:, column], sizes[column])
    return {names[column]: counts for column, counts in by_column.items()}


def count_user_columns(
    data: ClickData, sampler: UserSampler, names: list[str], space: RowSpace, norm: float, stream: Stream
) -> dict[str, SparseCounts]:
    """How many users read each row, per table that rows are chosen in. Private: noise comes after.

    Guarantee: removing a user, whatever its rows, moves all counts together by at most ``norm`` in l2, and no other
    user's part. Proof: a user counts once per row, and its part of the joint histogram is scaled to ``norm`` where it is
    longer; of a user with more than ``rows_per_user`` rows so many are read, chosen by the stream from its own.
    """
    columns = [(names.index(table.name), table.name) for table in space.selectable]
    total = SparseCounts.zeros(space.selectable_size)
    for chosen, units in sampler.in_pieces(stream.uint64, _BATCH):
        ids = data.take(chosen).ids.astype(np.int64)
        read = [units.of_example * total.size + space.number(name, ids[:, at]) for at, name in columns]
        user, row = np.divmod(np.unique(np.concatenate([np.empty(0, np.int64), *read])), max(total.size, 1))
        lengths = np.sqrt(np.bincount(user, minlength=units.count))
        total += SparseCounts.of(row, total.size, np.minimum(1.0, norm / lengths[user]))
    return {
        table.name: total.between(space.offsets[number], space.offsets[number + 1])
        for number, table in enumerate(space.selectable)
    }
