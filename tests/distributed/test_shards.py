from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.distributed import RowShards
from sparsedp.distributed.shards import narrow


@given(rows=st.integers(1, 20_000), ranks=st.integers(1, 9), by=st.sampled_from(["range", "hash"]))
def test_every_row_has_one_owner_and_one_position(rows: int, ranks: int, by: str) -> None:
    shards = RowShards(rows, ranks, by)  # type: ignore[arg-type]
    ids = np.arange(rows)
    positions = shards.positions(ids)
    assert (np.sort(positions) == ids).all()
    assert (shards.ids(positions) == ids).all()
    owners = shards.owners(positions)
    for rank in range(ranks):
        span = shards.span(rank)
        assert (np.sort(positions[owners == rank]) == np.arange(span.start, span.stop)).all()


@given(rows=st.integers(1, 200), ranks=st.integers(1, 9))
def test_parts_are_those_of_torch_chunk(rows: int, ranks: int) -> None:
    sizes = [len(part) for part in torch.arange(rows).chunk(ranks)]
    assert [len(RowShards(rows, ranks).span(rank)) for rank in range(ranks)][: len(sizes)] == sizes


@pytest.mark.parametrize("rows", [10**5, 10**7, 10**11])
def test_a_hash_spreads_neighbouring_ids(rows: int) -> None:
    shards = RowShards(rows, 4, "hash")
    counts = np.bincount(shards.owners(shards.positions(np.arange(1000))), minlength=4)
    assert counts.min() > 200
    last = np.array([0, rows // 2, rows - 1])
    assert (shards.ids(shards.positions(last)) == last).all()
    assert RowShards(rows, 4).owners(np.arange(1000)).max() == 0


def test_another_number_of_ranks_cuts_the_same_order() -> None:
    ids = np.arange(5000)
    assert (RowShards(5000, 2, "hash").positions(ids) == RowShards(5000, 7, "hash").positions(ids)).all()


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be 'range' or 'hash'"):
        RowShards(3, 1, "modulo")  # type: ignore[arg-type]


def test_ids_take_four_bytes_where_they_fit() -> None:
    assert narrow(np.arange(3), 2**31).dtype == np.int32
    assert narrow(np.arange(3), 2**31 + 1).dtype == np.int64
