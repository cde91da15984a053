from __future__ import annotations

import polars as pl
import pytest
from support.sweep_results import RUNS, frame, line

from experiments.fest.figures import (
    auc_by_epsilon,
    averaged,
    best_reductions,
    heat_map,
    knob_curves,
    reduction_at_loss,
    trade_off,
)


class TestAveraged:
    def test_seeds_are_averaged_and_their_spread_kept(self) -> None:
        found = averaged(RUNS).filter(pl.col("algorithm") == "dp-sgd", pl.col("noise_ratio") == 5.0)
        assert found["auc"].to_list() == [pytest.approx(0.705)]
        assert found["auc_spread"].to_list() == [pytest.approx(0.01 / 2**0.5)]
        assert found["seeds"].to_list() == [2]

    def test_settings_are_not_averaged(self) -> None:
        assert averaged(RUNS).filter(pl.col("algorithm") == "adafest").height == 3

    def test_refuses_no_runs(self) -> None:
        with pytest.raises(ValueError, match="runs"):
            averaged(RUNS.clear())


class TestBestReductions:
    def test_largest_reduction_within_each_loss_of_the_best_dense_setting(self) -> None:
        found = best_reductions(RUNS, losses=(0.002, 0.005, 0.01, 0.02))
        adafest = found.filter(pl.col("algorithm") == "adafest").sort("loss")
        assert adafest["reduction"].to_list() == [100.0, 100.0, 1000.0, 5000.0]
        assert adafest["auc"].to_list() == [0.704, 0.704, 0.696, 0.690]
        assert found.filter(pl.col("algorithm") == "fest")["loss"].to_list() == [0.005, 0.01, 0.02]

    def test_what_no_setting_reaches_has_no_line(self) -> None:
        assert "random" not in best_reductions(RUNS)["algorithm"].to_list()

    def test_lazy_counts_as_dense(self) -> None:
        runs = frame(line("lazy", 0.7, 1.0), line("adafest", 0.7, 10.0))
        assert best_reductions(runs)["algorithm"].unique().to_list() == ["adafest"]

    def test_needs_a_dense_run(self) -> None:
        with pytest.raises(ValueError, match="dp-sgd or lazy"):
            best_reductions(frame(line("adafest", 0.7, 10.0)))


class TestFigures:
    def test_reduction_at_loss_draws_a_line_an_algorithm(self) -> None:
        figure = reduction_at_loss(RUNS, 1.0)
        assert [trace.name for trace in figure.data] == ["DP-FEST", "DP-AdaFEST"]
        assert figure.layout.yaxis.type == "log"

    def test_reduction_at_loss_of_chosen_algorithms(self) -> None:
        assert [trace.name for trace in reduction_at_loss(RUNS, 1.0, ["fest"]).data] == ["DP-FEST"]

    def test_trade_off_has_a_point_a_setting(self) -> None:
        points = {trace.name: len(trace.x) for trace in trade_off(RUNS, 1.0).data}
        assert points["DP-AdaFEST"] == 3
        assert points["DP-SGD"] == 2

    def test_knob_curves_run_along_the_knob(self) -> None:
        figure = knob_curves(RUNS, "threshold", by="noise_ratio")
        lines = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
        assert lines["noise ratio 5"] == ([10.0, 50.0], [0.704, 0.696])
        assert lines["noise ratio 1"] == ([100.0], [0.690])

    def test_knob_curves_name_an_unknown_knob(self) -> None:
        with pytest.raises(ValueError, match="tau"):
            knob_curves(RUNS, "tau")

    def test_heat_map_leaves_missing_cells_empty(self) -> None:
        (trace,) = heat_map(RUNS, "threshold", "noise_ratio").data
        assert [list(row) for row in trace.z] == [[None, None, 0.690], [0.704, 0.696, None]]

    def test_auc_by_epsilon_takes_the_best_setting(self) -> None:
        traces = {trace.name: trace for trace in auc_by_epsilon(RUNS).data}
        assert list(traces["DP-SGD"].y) == [pytest.approx(0.705)]
        assert list(traces["DP-AdaFEST"].y) == [0.704]
