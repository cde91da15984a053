"""One private step of all processes together: each sums over its own examples, each row has one owner.

Every process computes norms and clip weights of its own examples, so that they are those of a single machine. Then

1. the counts of the rows that its examples read go to the rows' owners, who add them up, draw which of *their* rows
   survive and answer one byte per row (lines 5 to 8 of Algorithm 1);
2. its clipped sums, rounded to the public lattice, go to the owners: rows to theirs, of the dense parameters a W-th
   to each process (lines 9 and 10);
3. an owner adds up integers, adds noise once to everything that it owns and was selected, read or not, and divides
   by the public expected batch size of the whole (line 11);
4. what every process holds a copy of is sent to all; rows of sharded tables stay with their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor
from typing_extensions import override

from sparsedp.core.arrays import I64, Bools
from sparsedp.core.counts import SparseCounts
from sparsedp.distributed.exchange import Exchange
from sparsedp.distributed.ownership import Ownership, Routes
from sparsedp.distributed.rank_sums import RankSums, added
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.selection import Batch, Rule, Selected
from sparsedp.selection.adafest import ContributionMap
from sparsedp.training.batch import ScoredBatch
from sparsedp.training.step import PrivateStep


class DistributedStep(PrivateStep):
    """``PrivateStep`` on a logical batch whose examples are spread over processes.

    Guarantee: that of ``PrivateStep`` on the union of all processes' examples. Proof: norms, clip weights and
    contributions of an example depend on it alone and are computed where it is. Each process rounds its own sum to
    the lattice; adding an example changes the sum of one process only, so rounding moves the total no further than
    on one machine, and integers are added exactly. Survival of a row is a function of its total count and of its
    owner's stream, independent of all other rows; noise is drawn once per coordinate, by its owner. ``charge`` is
    called on all processes and returns when rank 0 has charged the step, before anyone draws.
    """

    def __init__(
        self,
        rule: Rule,
        dense: Mapping[str, Tensor],
        source: NoiseSource,
        charge: Callable[[], None],
        *,
        lazy: bool = False,
        pending: None = None,
        exchange: Exchange,
        ownership: Ownership,
        sharded: frozenset[str],
        shared: Stream,
    ) -> None:
        super().__init__(rule, dense, source, charge, lazy=lazy)
        self._exchange = exchange
        self._ownership = ownership
        self._sharded = sharded
        self._shared = shared
        self._own_selected: I64 = np.empty(0, dtype=np.int64)
        self._selected_counts: I64 = np.empty((exchange.size, 0), dtype=np.int64)
        """How many selected rows each process owns, by selectable table."""

    @override
    def _choose(self, batch: Batch) -> Selected:
        rule, ownership = self._rule, self._ownership
        if isinstance(rule, ContributionMap):
            counts = batch.contributions(rule.contribution_norm, rule.domain)
            survives, self._own_selected = self._draw_by_owner(rule, counts)
            return Selected(counts.ids[survives])
        # All processes hold the same totals and the same stream, and choose the same rows.
        selected = rule.select(JointBatch(batch, rule, self._exchange, ownership), self._shared)
        if selected.coordinates is not None:
            raise ValueError(
                "selection: single coordinates cannot be selected over several processes; select rows"
            )
        self._own_selected = ownership.owned(selected.rows)
        self._selected_counts = ownership.counts(selected.rows)
        return selected

    def _draw_by_owner(self, rule: ContributionMap, counts: SparseCounts) -> tuple[Bools, I64]:
        """Which of the rows counted here survive; and all surviving rows that this process owns, by its numbers."""
        exchange, ownership = self._exchange, self._ownership
        routes = Routes(ownership.owners(counts.ids), exchange.size)
        ids, values = routes.split(counts.ids), routes.split(counts.values)
        received = exchange.all_to_all("counts", [[*part] for part in zip(ids, values, strict=True)])
        numbers = [ownership.numbers(np.ascontiguousarray(part_ids)) for part_ids, _ in received]
        totals = SparseCounts.of(
            np.concatenate(numbers),
            ownership.selectable_size,
            np.concatenate([part_values for _, part_values in received]),
        )
        domain = None if rule.domain is None else ownership.owned(rule.domain)
        survivors = rule.survivors(totals, domain, self._source.selection)
        flags = [np.isin(part, survivors).astype(np.uint8) for part in numbers]
        own_counts = np.array([rows.size for rows in ownership.local_rows(survivors)], dtype=np.int64)
        answers = exchange.all_to_all(
            "survivors",
            [[part, own_counts] for part in flags],
            [[(np.uint8, part.size), (np.int64, own_counts.size)] for part in ids],
        )
        survives = routes.joined([answer for answer, _ in answers]).astype(np.bool_)
        self._selected_counts = np.stack([counts for _, counts in answers])
        return survives, survivors

    @override
    def _new_sums(self, selected: Selected) -> RankSums:  # type: ignore[override]
        return RankSums(
            self._rule,
            self._dense,
            self._exchange,
            self._ownership,
            self._sharded,
            self._own_selected,
            self._selected_counts,
        )


class JointBatch:
    """What the examples of all processes read together. All results are private: they have no noise."""

    def __init__(self, batch: Batch, rule: Rule, exchange: Exchange, ownership: Ownership) -> None:
        self.space = batch.space
        self._divisor = rule.expected_batch_size
        self._batch = batch
        self._exchange = exchange
        self._ownership = ownership

    def contributions(self, norm: float, domain: I64 | None = None) -> SparseCounts:
        """The contribution map of all examples, in every process."""
        counts = self._batch.contributions(norm, domain)
        parts = self._exchange.all_gather("counts", [counts.ids, counts.values])
        return SparseCounts.sum(
            [SparseCounts(ids, values, counts.size) for ids, values in parts], self.space.selectable_size
        )

    def coordinate_scores(self) -> SparseCounts:
        """Refused, as ``check_supported`` does before the run."""
        raise ValueError("coordinates: single coordinates cannot be selected over several processes")

    def scores(self) -> SparseCounts:
        """Row norms of the mean gradient over all examples: owners add up a row, and tell all its norm."""
        assert isinstance(self._batch, ScoredBatch)
        touched = {n: (rows, sums) for n, rows, sums in self._batch.row_sums()}
        exchange, space = self._exchange, self.space
        ids, norms = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for table_index, table in enumerate(space.selectable):
            rows, sums = touched.get(table_index, (np.empty(0, np.int64), np.empty((0, table.dim))))
            shard = self._ownership.shards[table_index]
            routes = Routes(shard.owners(shard.positions(rows)), exchange.size)
            messages = zip(routes.split(rows), routes.split(sums), strict=True)
            received = exchange.all_to_all("scores", [[own, part.ravel()] for own, part in messages])
            parts = [(own, part.reshape(-1, table.dim)) for own, part in received]
            distinct, total = added(parts, table.dim, None, 0.0)
            ids.append(distinct + space.row_offsets[table_index])
            norms.append(np.linalg.norm(total, axis=1))
        everywhere = exchange.all_gather("scores", [np.concatenate(ids), np.concatenate(norms)])
        return SparseCounts.sum(
            [SparseCounts(own, values / self._divisor, space.selectable_size) for own, values in everywhere],
            space.selectable_size,
        )
