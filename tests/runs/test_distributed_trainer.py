"""The trainer of several processes counts each example once."""

from __future__ import annotations

import numpy as np
from support.distributed_runs import counted
from support.processes import Processes
from support.runs import config

from sparsedp.runs.row_counts import private_rows
from sparsedp.runs.sources import fresh_model, open_data


def test_rank_0_has_the_counts_of_all(processes: Processes) -> None:
    asked = config("fest")
    data = open_data(asked.data)
    alone = private_rows(asked, fresh_model(asked, data), data)
    assert alone is not None
    first, *others = processes.run(counted, asked.model_dump(mode="json"), ranks=4)
    for name, counts in alone.source.items():
        assert (first[name][0] == counts.ids).all()
        np.testing.assert_allclose(first[name][1], counts.values)
        assert all(not other[name][0].size for other in others)
