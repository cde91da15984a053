"""The recipe's settings of selections."""

from __future__ import annotations

import pytest

from sparsedp.core.tables import TableShape
from sparsedp.planning.selection_settings import selection_reasons, selection_settings

TABLES = [TableShape("large", 1_000_000, 1), TableShape("small", 20_000, 8)]


def test_memory_adds_up_the_whole_training_and_two_rows_in_a_thousand_stand_out_by_chance() -> None:
    large = selection_settings("adafest-memory", TABLES, 1e5, 0.1, steps=321)
    assert (large["false_positives"], large["memory_steps"]) == (2000, 321)
    tiny = selection_settings("adafest-memory", [TableShape("table", 3, 1)], 1e5, 0.1, steps=321)
    assert tiny["false_positives"] == 1.0


@pytest.mark.parametrize(("signal", "rows"), [(1.0, 100), (1e5, 2000), (1e12, 1_020_000)])
def test_a_top_k_has_rows_for_the_signal(signal: float, rows: int) -> None:
    for algorithm in ("fest", "fest-lazy", "fest-turns", "adafest+"):
        found = selection_settings(algorithm, TABLES, signal, 0.123, steps=50_000)
        turns = {"update_every": 50_000} if algorithm == "fest-turns" else {}
        assert found == {"rows": rows, "fest_mu": 0.025, "always_on_rows": 0, **turns}


@pytest.mark.parametrize(("steps", "rows"), [(1, 1_020_000), (100, 11_220), (1000, 2000)])
def test_rows_in_turns_are_all_updated_within_the_training(steps: int, rows: int) -> None:
    found = selection_settings("fest-turns", TABLES, 1e5, 0.1, steps=steps)
    assert (found["rows"], found["update_every"]) == (rows, steps)
    assert selection_settings("fest-turns", TABLES, 1e5, 0.1, steps=1777, update_every=steps) == found
    longer = selection_settings("fest-turns", TABLES, 1e5, 0.1, steps=steps, update_every=10**9)
    assert longer == {**found, "update_every": 10**9}


@pytest.mark.parametrize(
    "algorithm", ["fest", "fest-turns", "adafest", "adafest-memory", "adafest+", "lazy", "dp-sgd"]
)
def test_every_setting_has_a_reason(algorithm: str) -> None:
    settings = selection_settings(algorithm, TABLES, 1e5, 0.1, steps=500)
    reasons = selection_reasons(algorithm, settings)
    assert reasons.keys() == settings.keys()
    assert ("every row to have a turn" in reasons.get("rows", "")) == (algorithm == "fest-turns")
