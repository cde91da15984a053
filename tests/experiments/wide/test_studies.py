from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.common.study import Study
from experiments.wide.selection import EPSILONS, batch_counts, draw_epsilon, run, share
from sparsedp.accounting import epsilon_of
from sparsedp.mechanisms import exponential_event


def test_the_exponential_mechanism_finds_more_than_the_others(tmp_path: Path) -> None:
    """Seeds are fixed: no false alarms."""
    lines = run(Study("wide-selection", tmp_path, quick=True))["tables"]["Share of lookups"]
    assert [(line["epsilon"], line["rows"]) for line in lines] == [(e, k) for e in EPSILONS for k in (10, 30)]
    for line in lines:
        assert line["without noise"] >= line["exponential"] > line["sparse vector"] > line["random"]


def test_the_draws_cost_what_they_may() -> None:
    each = draw_epsilon(lambda e: exponential_event(draws=100, epsilon=e), 1.0)
    assert epsilon_of([(exponential_event(draws=100, epsilon=each), 1)], 1e-6) == pytest.approx(1.0, rel=0.01)


def test_every_example_looks_up_a_row_of_each_table() -> None:
    counts = batch_counts()
    assert counts.values.sum() == 2048 * 26
    assert np.all(np.diff(counts.ids) > 0)
    assert counts.ids[-1] < counts.size == 338782
    assert counts.values.max() <= 2048
    assert share(counts, counts.ids) == 1.0
    assert share(counts, counts.ids[:0]) == 0.0
