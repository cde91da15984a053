from __future__ import annotations

import pytest

from experiments.fest.data_sets import ALL, QUICK, QUICK_STREAM, STREAMS
from experiments.fest.runs import DataSet
from sparsedp.runs.sweep import Sweep


@pytest.mark.parametrize("each", [*ALL, QUICK], ids=lambda each: each.name)
def test_every_setting_makes_a_run(each: DataSet) -> None:
    names = ["non-private", *each.algorithms]
    grids = [
        grid
        for name in names
        for grid in each.grids(name, seed=each.seeds, **({} if name == "non-private" else {"epsilon": [1.0]}))
    ]
    configs = Sweep({"data": "folder", **each.settings}, grids).configs()
    assert {config.algorithm for config in configs} == set(names)


def test_streams_have_periods() -> None:
    assert all(each.periods for each in (*STREAMS, QUICK_STREAM))
