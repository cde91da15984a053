"""SortedLookups against a dictionary of dictionaries."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsedp.core.tables import TableShape
from sparsedp.rows import EmbeddingLookups, RowSpace, SortedLookups

SPACE = RowSpace(
    selectable=(TableShape("a", 6, 3), TableShape("b", 2**40, 2)), always_on=(TableShape("c", 4, 2),)
)


@st.composite
def gradients(draw: st.DrawFn, count: int, dim: int, generator: torch.Generator) -> Tensor:
    """As autograd hands them over: in a tensor of their own, as part of a wider one, or spread out from less."""
    kind = draw(st.sampled_from(["own", "part", "one for all columns", "one for all grad_rows"]))
    if kind == "part":
        return torch.randn(count, dim + 3, generator=generator)[:, 1 : 1 + dim]
    if kind == "one for all columns":
        return torch.randn(count, 1, generator=generator).expand(count, dim)
    if kind == "one for all grad_rows":
        return torch.randn(1, dim, generator=generator).expand(count, dim)
    return torch.randn(count, dim, generator=generator)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[str, EmbeddingLookups]]:
    size = draw(st.integers(0, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    tables = {}
    for table in SPACE.tables:
        if not draw(st.booleans()):
            continue
        calls = []
        for _ in range(draw(st.integers(1, 2))):
            lengths = torch.tensor([draw(st.integers(0, 3)) for _ in range(size)], dtype=torch.int64)
            count = int(lengths.sum())
            examples = torch.arange(size).repeat_interleave(lengths)
            ids = torch.randint(0, 4, (count,), generator=generator) * (2**38 if table.name == "b" else 1)
            if draw(st.booleans()):
                calls.append(EmbeddingLookups(ids, examples, draw(gradients(count, table.dim, generator))))
            else:
                bags = torch.randn(max(size, 1), table.dim, generator=generator)
                scales = torch.rand(count, generator=generator)
                calls.append(EmbeddingLookups(ids, examples, bags, sources=examples, scales=scales))
        tables[table.name] = EmbeddingLookups.concatenate(calls)
    return size, tables


def row_gradients(tables: dict[str, EmbeddingLookups]) -> dict[tuple[int, int], np.ndarray]:
    """(joint row number, example) -> the example's gradient in the row."""
    found: dict[tuple[int, int], np.ndarray] = defaultdict(lambda: np.zeros(3))
    for name, each in tables.items():
        offset, dim = int(SPACE.offsets[SPACE.index[name]]), SPACE.tables[SPACE.index[name]].dim
        for n in range(len(each)):
            source = n if each.sources is None else int(each.sources[n])
            scale = 1.0 if each.scales is None else float(each.scales[n])
            key = (int(each.ids[n]) + offset, int(each.examples[n]))
            found[key] = found[key] + np.pad(scale * each.output_grads[source].numpy(), (0, 3 - dim))
    return dict(found)


@settings(max_examples=150, deadline=None)
@given(batches(), st.floats(0.5, 3.0))
def test_counts_norms_and_sums(batch: tuple[int, dict[str, EmbeddingLookups]], norm: float) -> None:
    size, tables = batch
    expected = row_gradients(tables)
    lookups = SortedLookups(SPACE, tables, size)
    touched = sorted({row for row, _ in expected})
    assert lookups.order.rows.tolist() == touched

    selectable = [(row, example) for row, example in expected if row < SPACE.selectable_size]
    lengths = np.bincount([example for _, example in selectable], minlength=size)
    counts = lookups.contributions(norm, np.ones(size, dtype=bool))
    assert counts.ids.tolist() == sorted({row for row, _ in selectable})
    for row, count in zip(counts.ids, counts.values, strict=True):
        due = sum(min(1.0, norm / np.sqrt(lengths[e])) for r, e in selectable if r == row)
        np.testing.assert_allclose(count, due, rtol=1e-12)

    kept = {row for row in touched if row % 3 != 1 or row >= SPACE.selectable_size}
    chosen = np.array(sorted(row for row in kept if row < SPACE.selectable_size), dtype=np.int64)
    survivors = lookups.surviving(chosen)
    assert lookups.order.rows[survivors].tolist() == sorted(kept)
    squares = np.zeros(size)
    for (row, example), gradient in expected.items():
        squares[example] += np.sum(gradient**2) if row in kept else 0.0
    np.testing.assert_allclose(lookups.example_squared_norms(survivors), squares, rtol=1e-4, atol=1e-6)

    weights = np.arange(1, size + 1, dtype=np.float32)
    found = {table_index: (rows, sums) for table_index, rows, sums in lookups.row_sums(survivors, weights)}
    for table_index, table in enumerate(SPACE.tables):
        offset = int(SPACE.offsets[table_index])
        rows, sums = found.get(table_index, (np.empty(0, np.int64), np.empty((0, table.dim))))
        due_rows = [row - offset for row in touched if row in kept and offset <= row < offset + table.rows]
        assert rows.tolist() == due_rows
        for row, total in zip(rows, sums, strict=True):
            due = sum((e + 1) * g for (r, e), g in expected.items() if r == row + offset)
            np.testing.assert_allclose(total, np.asarray(due)[: table.dim], rtol=1e-4, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(batches(), st.integers(0, 2**18 - 1))
def test_norms_over_single_coordinates(batch: tuple[int, dict[str, EmbeddingLookups]], bits: int) -> None:
    """An example may read several rows of a table, each with coordinates of its own that count."""
    size, tables = batch
    mask = np.array([float(bits >> n & 1) for n in range(18)], dtype=np.float32).reshape(6, 3)
    rows = np.flatnonzero(mask.any(1))
    squares = np.zeros(size)
    for (row, example), gradient in row_gradients(tables).items():
        squares[example] += np.sum(mask[row] * gradient**2) if row < 6 else 0.0
    found = SortedLookups(SPACE, tables, size).masked_squared_norms(0, rows, mask[rows])
    np.testing.assert_allclose(found, squares, rtol=1e-4, atol=1e-6)


def test_a_norm_over_single_coordinates_is_that_of_all_rows() -> None:
    tables = {"a": EmbeddingLookups(torch.tensor([1, 2, 4]), torch.tensor([0, 0, 0]), torch.ones(3, 3))}
    mask = np.array([[1, 0, 0], [1, 1, 0]], dtype=np.float32)
    found = SortedLookups(SPACE, tables, 1).masked_squared_norms(0, np.array([1, 4]), mask)
    assert found.tolist() == [3.0]


def test_examples_that_are_not_finite_do_not_count() -> None:
    tables = {"a": EmbeddingLookups(torch.tensor([1, 1]), torch.tensor([0, 1]), torch.ones(2, 3))}
    counts = SortedLookups(SPACE, tables, 2).contributions(1.0, np.array([True, False]))
    assert counts.values.tolist() == [1.0]


def test_a_domain_restricts_the_rows_that_count_and_the_norm() -> None:
    tables = {"a": EmbeddingLookups(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 0, 0, 0]), torch.ones(4, 3))}
    counts = SortedLookups(SPACE, tables, 1).contributions(1.0, np.ones(1, dtype=bool), np.array([2, 5]))
    assert counts.ids.tolist() == [2]
    assert counts.values.tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_of_any_width_have_their_norms_and_sums(dtype: torch.dtype) -> None:
    space = RowSpace(selectable=(TableShape("table", 9, 2),))
    grads = torch.tensor([[1.0, 2.0], [0.5, -1.0], [4.0, 0.25]])
    lookups = EmbeddingLookups(torch.tensor([3, 3, 8]), torch.tensor([0, 0, 1]), grads.to(dtype))
    found = SortedLookups(space, {"table": lookups}, 2)
    assert found.pair_squared_norms.tolist() == [1.5**2 + 1.0, 16.0 + 0.0625]
    weights = np.array([2.0, 0.5], dtype=np.float32)
    ((_, rows, sums),) = found.row_sums(np.arange(2), weights)
    assert rows.tolist() == [3, 8]
    assert sums.tolist() == [[3.0, 2.0], [2.0, 0.125]]
