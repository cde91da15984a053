"""The recipe's settings of selections."""

from __future__ import annotations

import pytest

from sparsedp.core.tables import TableShape
from sparsedp.planning.selection_settings import SELECTION_REASONS, selection_settings

TABLES = [TableShape("large", 1_000_000, 1), TableShape("small", 20_000, 8)]


def test_a_tenth_of_the_rows_is_remembered_by_chance_and_never_more_than_a_batch_reads() -> None:
    """So that drawing those that pass costs no more than what a batch reads."""
    large = selection_settings("adafest-memory", TABLES, 1e5, 0.1, batch=10**6)
    assert large["memory_false_positives"] == 100_000
    assert large["false_positives"] == 1500
    assert selection_settings("adafest-memory", TABLES, 1e5, 0.1, batch=500)["memory_false_positives"] == 1000
    tiny = selection_settings("adafest-memory", [TableShape("table", 3, 1)], 1e5, 0.1, batch=500)
    assert (tiny["false_positives"], tiny["memory_false_positives"]) == (1.0, 1.0)


@pytest.mark.parametrize(("signal", "rows"), [(1.0, 100), (1e5, 2000), (1e12, 1_020_000)])
def test_a_top_k_has_rows_for_the_signal(signal: float, rows: int) -> None:
    for algorithm in ("fest", "fest-lazy", "adafest+"):
        found = selection_settings(algorithm, TABLES, signal, 0.123, batch=500)
        assert found == {"rows": rows, "fest_mu": 0.025, "always_on_rows": 0}


@pytest.mark.parametrize("algorithm", ["fest", "adafest", "adafest-memory", "adafest+", "lazy", "dp-sgd"])
def test_every_setting_has_a_reason(algorithm: str) -> None:
    assert selection_settings(algorithm, TABLES, 1e5, 0.1, batch=500).keys() <= SELECTION_REASONS.keys()
