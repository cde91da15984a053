from __future__ import annotations

import pytest
from support.batches import GivenBatch

import sparsedp as sdp
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource

TABLES = [TableShape("large", 10**9, 4), TableShape("small", 3, 2)]


@pytest.mark.parametrize("lazy", [False, True])
def test_every_table_is_always_on(lazy: bool) -> None:
    space = sdp.DPSGD(lazy=lazy).partition_tables(TABLES)
    assert space.selectable == ()
    assert [table.name for table in space.always_on] == ["large", "small"]
    assert space.coordinates == 4 * 10**9 + 6


def test_nothing_is_chosen_and_no_randomness_used() -> None:
    selection = sdp.DPSGD()
    space = selection.partition_tables(TABLES)
    rule = selection.rule(space, noise_multiplier=1.5, max_grad_norm=1.0, expected_batch_size=10)
    stream = NoiseSource(1).selection
    before = stream.state()
    assert rule.select(GivenBatch(space), stream).rows.size == 0
    assert stream.state() == before
    assert rule.gradient_noise_multiplier == 1.5
    assert rule.sensitivity == 1.0
