"""All readings of all tables by one batch, sorted once: what counting, norms and sums share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.nn import functional

from sparsedp.rows.counts import RowCounts, contains
from sparsedp.rows.occurrences import Occurrences
from sparsedp.rows.space import RowSpace

FEW = 1 << 18
"""Up to so many numbers numpy's one thread is done before torch's threads have started."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """Readings sorted by (row, position), and where rows and (row, example) pairs begin among them."""

    position: Ints
    rows: Ints
    """The distinct rows read, sorted."""
    row_starts: Ints
    """Where each of ``rows`` begins among the sorted readings, and the end."""
    pair_starts: Ints
    """Where each distinct (row, example) begins among the sorted readings, and the end."""
    pair_row: Ints
    """Each pair's place in ``rows``."""
    pair_example: Ints
    table_bounds: Ints
    """Where each table begins among ``rows``, and the end."""


class Readings:
    """The readings of a batch over a row space.

    A row counts once per example however often the example reads it, and its gradient is the sum over
    the example's readings: both follow from the (row, example) pairs, which one sort brings together.
    Everything here is proportional to the readings, never to the tables.
    """

    def __init__(self, space: RowSpace, occurrences: Mapping[str, Occurrences], batch_size: int) -> None:
        self.space = space
        self.batch_size = batch_size
        self._occurrences = [occurrences.get(table.name) for table in space.tables]
        sizes = [0 if each is None else len(each) for each in self._occurrences]
        self._starts = list(accumulate(sizes, initial=0))
        self._distinct = all(each is None or each.distinct for each in self._occurrences)

    def _joined(self, values: Callable[[Occurrences], Tensor], dtype: DTypeLike) -> NDArray[Any]:
        """One value a reading, table after table."""
        joined = np.empty(self._starts[-1], dtype=dtype)
        for each, start in zip(self._occurrences, self._starts, strict=False):
            if each is not None:
                joined[start : start + len(each)] = values(each).numpy()
        return joined

    @cached_property
    def order(self) -> Order:
        """The one sort of the step."""
        total = self._starts[-1]
        numbers: Ints = self._joined(lambda each: each.ids, np.int64)
        for place, offset in enumerate(self.space.offsets[1:-1], start=1):
            numbers[self._starts[place] : self._starts[place + 1]] += offset
        numbers, position = _sort_with_position(numbers, int(self.space.offsets[-1]))
        changes = numbers[1:] != numbers[:-1]
        starts = _starts_where(changes, total)
        example: Ints = self._joined(lambda each: each.examples, np.int64)[position]
        if self._distinct:
            pair_starts, pair_example = np.arange(total + 1), example
        else:
            # Positions ascend with the example inside a table, so a row's pairs lie together.
            pair_starts = _starts_where(changes | (example[1:] != example[:-1]), total)
            pair_example = example[pair_starts[:-1]]
        row = np.zeros(total, dtype=np.int64)
        changes.cumsum(out=row[1:])
        rows = numbers[starts[:-1]]
        return Order(
            position=position,
            rows=rows,
            row_starts=starts,
            pair_starts=pair_starts,
            pair_row=row if self._distinct else row[pair_starts[:-1]],
            pair_example=pair_example,
            table_bounds=rows.searchsorted(self.space.offsets),
        )

    @cached_property
    def pair_squared_norms(self) -> Floats:
        """The squared norm of each example's gradient in each row it reads."""
        order = self.order
        squares: Floats = self._joined(_squared_norms, np.float64)[order.position]
        if order.pair_starts.size == order.position.size + 1:
            return squares
        pairs = squares[order.pair_starts[:-1]]
        for table, indices, repeated, starts in self._repeated_pairs():
            sums = segment_sums(table, indices, starts, None)
            pairs[repeated] = (sums * sums).sum(dim=1).double().numpy()
        return pairs

    def _repeated_pairs(self) -> list[tuple[Occurrences, Ints, Ints, Ints]]:
        """For each table: the readings of pairs read more than once, those pairs, and where each begins."""
        order = self.order
        lengths = np.diff(order.pair_starts)
        repeated = np.flatnonzero(lengths > 1)
        cuts = np.searchsorted(order.rows[order.pair_row[repeated]], self.space.offsets)
        found = []
        for place, each in enumerate(self._occurrences):
            pairs = repeated[cuts[place] : cuts[place + 1]]
            if each is not None and pairs.size:
                taken = expand_ranges(order.pair_starts[pairs], lengths[pairs])
                starts = lengths[pairs].cumsum() - lengths[pairs]
                found.append((each, order.position[taken] - self._starts[place], pairs, starts))
        return found

    def contributions(self, norm: float, finite: NDArray[np.bool_], domain: Ints | None = None) -> RowCounts:
        """The sum over examples of ``v_i * min(1, norm / ||v_i||)``, ``v_i`` binary over selectable rows.

        ``domain`` restricts the rows that count (sorted joint numbers); examples that are not finite
        contribute nothing.
        """
        order = self.order
        everybody = bool(finite.all())
        if everybody and domain is None and self._distinct and norm**2 >= len(self.space.selectable):
            # One row a table and example: no example is longer than the norm, a row counts its readings.
            rows = order.table_bounds[len(self.space.selectable)]
            return RowCounts(order.rows[:rows], np.diff(order.row_starts[: rows + 1]).astype(np.float64))
        counted = order.rows < self.space.selectable_size
        if domain is not None:
            counted &= contains(domain, order.rows)
        pair_counts = counted[order.pair_row]
        if not everybody:
            pair_counts &= finite[order.pair_example]
        examples = order.pair_example[pair_counts]
        lengths = np.bincount(examples, minlength=self.batch_size)
        weights = np.minimum(1.0, norm / np.sqrt(np.maximum(lengths, 1)))
        totals = _sums(order.pair_row[pair_counts], weights[examples], order.rows.size)
        return RowCounts(order.rows[counted], totals[counted])

    def example_squared_norms(self, row_survives: NDArray[np.bool_]) -> Floats:
        """Per example, the squared norm of its gradient over the surviving rows (one flag per touched row)."""
        squares = self.pair_squared_norms
        if not row_survives.all():
            squares = np.where(row_survives[self.order.pair_row], squares, 0.0)
        return _sums(self.order.pair_example, squares, self.batch_size)

    def masked_squared_norms(self, place: int, rows: Ints, mask: Tensor) -> Floats:
        """Per example, its squared norm over single coordinates of table number ``place``.

        ``mask[n]`` flags the coordinates of the table's row ``rows[n]`` (sorted) that count.
        """
        occurrences, order = self._occurrences[place], self.order
        numbers = order.rows[order.pair_row] - self.space.offsets[place]
        pairs = np.flatnonzero((numbers >= 0) & (numbers < self.space.tables[place].rows))
        pairs = pairs[contains(rows, numbers[pairs])]
        if occurrences is None or not pairs.size:
            return np.zeros(self.batch_size)
        lengths = order.pair_starts[pairs + 1] - order.pair_starts[pairs]
        taken = order.position[expand_ranges(order.pair_starts[pairs], lengths)] - self._starts[place]
        sums = segment_sums(occurrences, taken, lengths.cumsum() - lengths, None)
        own = mask[torch.from_numpy(np.searchsorted(rows, numbers[pairs]))]
        squares = (sums * own).square().sum(dim=1).double().numpy()
        return _sums(order.pair_example[pairs], squares, self.batch_size)

    def row_sums(
        self, row_survives: NDArray[np.bool_], weights: Tensor
    ) -> Iterator[tuple[int, Ints, Tensor]]:
        """For each table: its number, its surviving touched rows and ``sum_i weights[i] * G_i[row]`` of each.

        Tables of which no touched row survives are left out.
        """
        order, offsets = self.order, self.space.offsets
        kept = row_survives.nonzero()[0]
        lengths = order.row_starts[kept + 1] - order.row_starts[kept]
        if kept.size == order.rows.size:
            position = order.position
        else:
            position = order.position[expand_ranges(order.row_starts[kept], lengths)]
        ends = lengths.cumsum()
        bounds = kept.searchsorted(order.table_bounds)
        for place, occurrences in enumerate(self._occurrences):
            first, last = int(bounds[place]), int(bounds[place + 1])
            if occurrences is None or first == last:
                continue
            begin = int(ends[first] - lengths[first])
            taken = position[begin : int(ends[last - 1])] - self._starts[place]
            starts = ends[first:last] - lengths[first:last] - begin
            sums = segment_sums(occurrences, taken, starts, weights)
            yield place, order.rows[kept[first:last]] - offsets[place], sums


def segment_sums(readings: Occurrences, taken: Ints, starts: Ints, weights: Tensor | None) -> Tensor:
    """Sums of the taken readings' gradients over consecutive segments, each times its example's weight.

    Many: one fused kernel, a weighted embedding bag over the output gradients, gathers, scales and adds at once.
    """
    indices = torch.from_numpy(taken)
    grads = readings.output_grads
    sources = indices if readings.sources is None else readings.sources[indices]
    factors = None if readings.scales is None else readings.scales[indices].to(grads.dtype)
    if weights is not None:
        own = weights[readings.examples[indices]].to(grads.dtype)
        factors = own if factors is None else factors * own
    if taken.size * grads.shape[1] <= FEW and grads.dtype == torch.float32:
        rows = grads.numpy()[sources.numpy()]
        if factors is not None:
            rows *= factors.numpy()[:, None]
        return torch.from_numpy(np.add.reduceat(rows, starts, axis=0))
    return functional.embedding_bag(
        sources, grads, torch.from_numpy(starts), mode="sum", per_sample_weights=factors
    )


def expand_ranges(starts: Ints, lengths: Ints) -> Ints:
    """The concatenation of ``range(start, start + length)`` over all pairs."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if ends.size else 0
    ranges: Ints = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return ranges


def _sums(group: Ints, values: Floats, groups: int) -> Floats:
    return np.bincount(group, weights=values, minlength=groups).astype(np.float64, copy=False)


def _squared_norms(readings: Occurrences) -> Tensor:
    grads = readings.output_grads
    squares: Tensor
    if grads.dtype == torch.float32 and grads.numel() <= FEW:
        squares = torch.from_numpy(np.einsum("ij,ij->i", grads.numpy(), grads.numpy()))
    else:
        squares = torch.linalg.vector_norm(grads, dim=1, dtype=torch.float32).square_()
    if readings.sources is not None:
        squares = squares[readings.sources]
    return squares if readings.scales is None else squares * readings.scales.float().square()


def _starts_where(changes: NDArray[np.bool_], total: int) -> Ints:
    if not total:
        return np.zeros(1, dtype=np.int64)
    inner = changes.nonzero()[0]
    starts = np.empty(inner.size + 2, dtype=np.int64)
    starts[0], starts[-1] = 0, total
    np.add(inner, 1, out=starts[1:-1])
    return starts


def _sort_with_position(numbers: Ints, limit: int) -> tuple[Ints, Ints]:
    """Sorted numbers and where each stood. Packed into one word numpy's vectorised sort does both at once."""
    bits = max(int(numbers.size - 1).bit_length(), 1)
    if limit.bit_length() + bits <= 63:
        packed = np.sort((numbers << bits) | np.arange(numbers.size))
        return packed >> bits, packed & ((1 << bits) - 1)
    position = np.argsort(numbers, kind="stable")
    return numbers[position], position
