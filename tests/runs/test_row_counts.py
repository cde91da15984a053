"""Row frequencies, and the DP top-k of algorithms with a row set."""

from __future__ import annotations

import numpy as np
from support.runs import config

from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.runs.row_counts import count_columns, private_rows
from sparsedp.runs.sources import fresh_model, open_data


def test_columns_are_counted_as_they_are() -> None:
    data = open_data("generated:700")
    names = [f"embeddings.{column}" for column in range(26)]
    found = count_columns(data, names, always_on_rows=1000)
    sizes = data.schema.vocabulary_sizes
    assert set(found) == {name for name, rows in zip(names, sizes, strict=True) if rows > 1000}
    ids = data.take(np.arange(700)).ids
    for column, name in enumerate(names):
        if name in found:
            expected = np.bincount(ids[:, column], minlength=sizes[column])
            assert found[name].ids.tolist() == np.flatnonzero(expected).tolist()
            assert found[name].values.tolist() == expected[expected > 0].tolist()


def test_only_fest_looks_at_the_data_before_training() -> None:
    data = open_data("generated:100")
    model = fresh_model(config(), data)
    assert private_rows(config("adafest"), model, data) is None
    chosen = private_rows(config("fest", fest_mu=0.2, rows=7), model, data)
    assert chosen is not None
    assert chosen.one_off_events() == (GaussianDpEvent(5.0),)
    assert chosen.k == 7
