"""Which tensors of a batch hold the ids of each table, so that a batch can be counted before its forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsedp.clipping import Captured, TableInput
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.rows import EmbeddingLookups, RowSpace, SortedLookups, Units
from sparsedp.training.loader import array_leaves


class _Source(NamedTuple):
    """A view of one tensor of the batch."""

    leaf: int
    is_whole: bool
    offset: int
    shape: tuple[int, ...]
    """Without dimension 0."""
    strides: tuple[int, ...]
    leaf_shape: tuple[int, ...]
    """The shape that the tensor must have for this view, without dimension 0."""
    padding_idx: int | None

    def ids(self, leaves: Sequence[Any]) -> Tensor | None:
        """The ids in another batch of the same structure."""
        leaf = leaves[self.leaf]
        if self.is_whole:
            return leaf  # type: ignore[no-any-return]
        if tuple(leaf.shape[1:]) != self.leaf_shape or not leaf.is_contiguous():
            return None
        shape = (leaf.shape[0], *self.shape)
        return leaf.as_strided(shape, self.strides, leaf.storage_offset() + self.offset)  # type: ignore[no-any-return]


class IdSources:
    """Learns from one captured piece which tensors of the batch are passed unchanged to the tables.

    The counts of a logical batch then need none of its layer inputs. What a piece really reads is compared with
    what was counted (``check``). Privacy does not depend on that: the counts are those of the examples' ids
    either way, and rows that were not selected are masked.
    """

    def __init__(self, sources: Mapping[str, list[_Source]]) -> None:
        self._sources = sources

    @staticmethod
    def learn(captured: Captured, contents: Any, tables: Sequence[str]) -> IdSources | str:
        """The sources of all ``tables``, or the name of one whose ids are not found in the batch."""
        leaves = array_leaves(contents)
        by_table = {}
        for table in tables:
            inputs = captured.table_inputs.get(table, [])
            sources = None if inputs is None else [_source(table_input, leaves) for table_input in inputs]
            if not sources or None in sources:
                return table
            by_table[table] = [source for source in sources if source is not None]
        return IdSources(by_table)

    def batch(self, pieces: Sequence[Any], space: RowSpace, units: Sequence[Units] = ()) -> IdsOfBatch | None:
        """What all pieces of a batch read; None where a piece differs in structure from the one learnt from.

        ``units`` are those of the pieces, where several examples may be one unit.
        """
        parts: dict[str, list[EmbeddingLookups]] = {}
        base = 0
        for number, contents in enumerate(pieces):
            leaves, size = array_leaves(contents), 0
            for table, sources in self._sources.items():
                dim = space.tables[space.index[table]].dim
                for source in sources:
                    ids = source.ids(leaves)
                    if ids is None:
                        return None
                    lookups = _lookups(ids, source.padding_idx, dim)
                    lookups = lookups.grouped(units[number]) if units else lookups
                    size = units[number].count if units else ids.shape[0]
                    parts.setdefault(table, []).append(lookups.after(base))
            base += size
        tables = {table: EmbeddingLookups.concatenate(calls) for table, calls in parts.items()}
        return IdsOfBatch(SortedLookups(space, tables, base), base)

    def check(self, captured: Captured, contents: Any) -> None:
        """Refuse a piece whose tables read other ids than those that were counted."""
        leaves = array_leaves(contents)
        for table, sources in self._sources.items():
            inputs = captured.table_inputs.get(table) or []
            expected = [source.ids(leaves) for source in sources]
            same = len(inputs) == len(expected) and all(
                ids is not None and torch.equal(table_input.ids, ids)
                for table_input, ids in zip(inputs, expected, strict=True)
            )
            if not same:
                raise ValueError(
                    f"table {table!r}: was given other ids than those of the batch, or another number of times than "
                    "in the first batch; change ids in the dataset or collate_fn, not in the training loop"
                )


class IdsOfBatch:
    """Which example reads which rows in a batch: enough for the contribution map."""

    def __init__(self, lookups: SortedLookups, examples: int) -> None:
        self.space = lookups.space
        self._lookups = lookups
        self._all_examples = np.ones(examples, dtype=np.bool_)

    def contributions(self, norm: float, domain: I64 | None = None) -> SparseCounts:
        """``sum_i v_i min(1, norm / ||v_i||)``."""
        return self._lookups.contributions(norm, self._all_examples, domain)

    def scores(self) -> SparseCounts:
        """Not available before the gradients."""
        raise NotImplementedError

    coordinate_scores = scores


def _source(table_input: TableInput, leaves: Sequence[Any]) -> _Source | None:
    ids = table_input.ids
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.dtype != ids.dtype or not leaf.dim():
            continue
        if leaf.untyped_storage().data_ptr() != ids.untyped_storage().data_ptr():
            continue
        same_view = leaf.shape == ids.shape and leaf.storage_offset() == ids.storage_offset()
        same_view = same_view and leaf.stride() == ids.stride()
        rows = ids.shape[0] == leaf.shape[0] and (ids.stride(0) == leaf.stride(0) or ids.shape[0] == 1)
        if same_view or (rows and leaf.is_contiguous()):
            return _Source(
                number,
                same_view,
                int(ids.storage_offset() - leaf.storage_offset()),
                tuple(ids.shape[1:]),
                (leaf.stride(0), *ids.stride()[1:]),
                tuple(leaf.shape[1:]),
                table_input.padding_idx,
            )
    return None


def _lookups(ids: Tensor, padding_idx: int | None, dim: int) -> EmbeddingLookups:
    """The lookups of one call, all with one shared zero gradient."""
    examples = torch.arange(ids.shape[0], device=ids.device).repeat_interleave(ids.shape[1:].numel())
    flat = ids.reshape(-1).long()
    if padding_idx is not None:
        read = flat != padding_idx
        flat, examples = flat[read], examples[read]
    zeros = torch.zeros(1, dim, device=ids.device)
    return EmbeddingLookups(flat, examples, zeros, sources=torch.zeros_like(flat))
