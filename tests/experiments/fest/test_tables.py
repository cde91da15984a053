from __future__ import annotations

import polars as pl
import pytest
from support.sweep_results import RUNS, frame, line

from experiments.fest.tables import ahead_of_plain, by_setting, reductions, streaming, wall_clock


def test_settings_are_lines_and_epsilons_columns() -> None:
    found = by_setting(RUNS.vstack(frame(line("fest", 0.72, 50.0, epsilon=3.0)).cast(RUNS.schema)))
    assert found.columns == ["algorithm", "setting", "no epsilon", "epsilon 1", "epsilon 3"]
    assert found["algorithm"].unique(maintain_order=True).to_list() == [
        "without privacy",
        "DP-SGD",
        "DP-FEST",
        "DP-AdaFEST",
        "random selection",
    ]
    fest = found.row(by_predicate=pl.col("algorithm") == "DP-FEST")
    assert fest == ("DP-FEST", "", None, "0.7010, 50x", "0.7200, 50x")
    assert found.filter(pl.col("setting") == "ratio 5")["epsilon 1"].to_list() == ["0.7050 ± 0.0071, 1x"]
    adafest = found.filter(pl.col("algorithm") == "DP-AdaFEST")["setting"].to_list()
    assert adafest == ["ratio 1, tau 100", "ratio 5, tau 50", "ratio 5, tau 10"]


def test_reductions_have_a_column_a_loss() -> None:
    found = reductions(RUNS, losses=(0.002, 0.01))
    assert found.columns == ["epsilon", "algorithm", "within 0.002", "within 0.01"]
    assert found.rows() == [(1.0, "DP-AdaFEST", 100.0, 1000.0), (1.0, "DP-FEST", None, 50.0)]


def test_streaming_has_a_column_an_epsilon() -> None:
    runs = frame(
        line("non-private", 0.8, None, period=7),
        line("dp-sgd", 0.7, 1.0, period=28),
        line("dp-sgd", 0.7, 1.0, period=7),
        line("dp-sgd", 0.72, 1.0, period=7, epsilon=3.0),
        line("fest", 0.69, 9.0, period=7, frequencies="first"),
        line("fest", 0.68, 9.0, period=7, frequencies="all"),
    )
    found = streaming(runs)
    assert found.columns == [
        "algorithm", "frequencies", "period", "no epsilon", "epsilon 1", "epsilon 3",
    ]  # fmt: skip
    dense = found.filter(pl.col("algorithm") == "DP-SGD")
    assert dense["period"].to_list() == [7, 28]
    assert dense["epsilon 3"].to_list() == ["0.7200, 1x", None]
    assert set(found["frequencies"].to_list()) == {None, "first", "all"}


def test_wall_clock_is_for_100_steps() -> None:
    rows = [{"rows": 10**6, "ids": 1, "AdaFEST ms": 4.0, "dense DP-SGD ms": 80.0}]
    (found,) = wall_clock(rows).to_dicts()
    assert found["DP-SGD, 100 steps (s)"] == 8.0
    assert found["AdaFEST, 100 steps (s)"] == 0.4
    assert found["times faster"] == 20.0


def test_wall_clock_needs_the_dense_time() -> None:
    with pytest.raises(ValueError, match="dense"):
        wall_clock([{"rows": 1, "ids": 1, "AdaFEST ms": 4.0}])


WITH_MEMORY = frame(
    line("adafest", 0.60, 1000.0, false_positives=20.0),
    line("adafest", 0.62, 10.0, false_positives=900.0),
    line("adafest-memory", 0.617, 100.0, false_positives=50.0),
    line("adafest-memory", 0.619, 100.0, seed=1, false_positives=50.0),
    line("adafest-memory", 0.59, 5000.0, noise_ratio=2.0, false_positives=50.0),
    line("fest", 0.9, 100.0),
)


def test_plain_adafest_is_interpolated_in_the_logarithm_of_the_size() -> None:
    by_ratio = {found["noise ratio"]: found for found in ahead_of_plain(WITH_MEMORY).iter_rows(named=True)}
    assert by_ratio[5.0]["plain AdaFEST there"] == pytest.approx(0.61)
    assert by_ratio[5.0]["ahead by"] == pytest.approx(0.008)
    assert by_ratio[2.0]["plain AdaFEST there"] == pytest.approx(0.60)  # the nearest setting
    assert by_ratio[2.0]["ahead by"] == pytest.approx(-0.01)
