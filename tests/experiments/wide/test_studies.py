from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from experiments.common.study import Study
from experiments.wide import fig1, fig2, settings
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


@pytest.mark.slow
def test_figure_1_has_every_algorithm_at_the_epsilon_that_it_states(tmp_path: Path) -> None:
    found = fig1.run(Study("wide-fig1", tmp_path, quick=True))
    tables = found["tables"]
    assert list(tables) == ["epsilon 30, 100 words", "epsilon 3, 100 words", "epsilon 30, 500 hashed words"]
    assert [line["algorithm"] for line in tables["epsilon 30, 100 words"]] == [
        each.name for each in settings.ALL
    ]
    for part, epsilon in (("epsilon 30, 100 words", 30.0), ("epsilon 3, 100 words", 3.0)):
        for line in tables[part]:
            if line["algorithm"] != settings.NON_PRIVATE.name:
                assert 0.97 * epsilon <= line["epsilon"] <= epsilon
    curves = pl.read_csv(tmp_path / "results.csv")
    assert {"part", "algorithm", "epoch", "train loss", "test loss"} <= set(curves.columns)


def test_figure_2_ranks_the_canaries_of_every_algorithm(tmp_path: Path) -> None:
    """Phrases that were not inserted are not told from uniform ones; seeds are fixed."""
    lines = fig2.run(Study("wide-fig2", tmp_path, quick=True))["tables"]["3 copies"]
    by_name = {line["algorithm"]: line for line in lines}
    assert set(by_name) == {*(each.name for each in fig2.SETTINGS), fig2.OUTSIDE}
    assert by_name[fig2.OUTSIDE]["p-value"] > 1e-8
    assert by_name["DP-SGD"]["the paper's distance (p-value)"] == ".007 (.63)"
    assert "no upper bound on epsilon" in (tmp_path / "table.md").read_text()


def test_the_papers_table_is_that_of_its_own_chi_square() -> None:
    """Distance times 1,000 canaries, nine degrees of freedom: the published p-values, to their two digits."""
    for text in fig2.PAPER.values():
        distance, p_value = (float(part.strip("()")) for part in text.split())
        low, high = (stats.chi2.sf(1000 * (distance + d), 9) for d in (0.0005, -0.0005))
        assert low - 0.005 <= p_value <= high + 0.005
