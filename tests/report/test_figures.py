import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest

from sparsedp.report.figures import (
    auc_by_epsilon,
    averaged,
    best_reductions,
    heat_map,
    knob_curves,
    reduction_at_loss,
    sparsity_per_feature,
    trade_off,
)
from sparsedp.report.figures_static import write_svg
from sparsedp.report.figures_tables import by_setting, markdown, reductions, streaming, wall_clock


def line(algorithm: str, auc: float, reduction: float | None, **settings: Any) -> dict[str, Any]:
    common = {
        "algorithm": algorithm,
        "epsilon": None if algorithm == "non-private" else 1.0,
        "seed": 0,
        "noise_ratio": 5.0,
        "threshold": None,
        "period": None,
        "frequencies": "running",
        "auc": auc,
        "log_loss": 0.5,
        "reduction": reduction,
        "gradient_size": None if reduction is None else 1e6 / reduction,
        "run": "x",
    }
    return {**common, **settings}


def frame(*lines: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(lines), infer_schema_length=None)


RUNS = frame(
    line("non-private", 0.80, None),
    line("dp-sgd", 0.700, 1.0),
    line("dp-sgd", 0.710, 1.0, seed=1),
    line("dp-sgd", 0.650, 1.0, noise_ratio=1.0),
    line("adafest", 0.704, 100.0, threshold=10.0),
    line("adafest", 0.696, 1000.0, threshold=50.0),
    line("adafest", 0.690, 5000.0, threshold=100.0, noise_ratio=1.0),
    line("fest", 0.701, 50.0),
    line("random", 0.500, 9000.0),
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


class TestTables:
    def test_settings_are_lines_and_epsilons_columns(self) -> None:
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

    def test_reductions_have_a_column_a_loss(self) -> None:
        found = reductions(RUNS, losses=(0.002, 0.01))
        assert found.columns == ["epsilon", "algorithm", "within 0.002", "within 0.01"]
        assert found.rows() == [(1.0, "DP-AdaFEST", 100.0, 1000.0), (1.0, "DP-FEST", None, 50.0)]

    def test_streaming_has_a_column_an_epsilon(self) -> None:
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

    def test_wall_clock_is_for_100_steps(self) -> None:
        rows = [{"rows": 10**6, "ids": 1, "AdaFEST ms": 4.0, "dense DP-SGD ms": 80.0}]
        (found,) = wall_clock(rows).to_dicts()
        assert found["DP-SGD, 100 steps (s)"] == 8.0
        assert found["AdaFEST, 100 steps (s)"] == 0.4
        assert found["times faster"] == 20.0

    def test_wall_clock_needs_the_dense_time(self) -> None:
        with pytest.raises(ValueError, match="dense"):
            wall_clock([{"rows": 1, "ids": 1, "AdaFEST ms": 4.0}])

    def test_markdown(self) -> None:
        text = markdown(pl.DataFrame({"a": ["x", "y"], "b": [1234.5, None], "c": [0.70512, 1.0]}))
        assert text.splitlines() == [
            "| a | b | c |",
            "|---|---|---|",
            "| x | 1,234 | 0.7051 |",
            "| y |  | 1 |",
        ]


class TestStatic:
    @pytest.fixture
    def panels(self) -> dict[str, go.Figure]:
        sparsity = pl.DataFrame({"feature": ["C3", "all"], "sparsity": [0.99, 0.5]})
        return {
            "points": trade_off(RUNS, 1.0),
            "spread": auc_by_epsilon(RUNS),
            "map": heat_map(RUNS, "threshold", "noise_ratio"),
            "bars": sparsity_per_feature(sparsity),
        }

    def test_svg_is_well_formed_and_the_same_twice(
        self, panels: dict[str, go.Figure], tmp_path: Path
    ) -> None:
        write_svg(tmp_path / "a" / "one.svg", panels)
        write_svg(tmp_path / "two.svg", panels)
        text = (tmp_path / "two.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert (tmp_path / "a" / "one.svg").read_text() == text

    def test_draws_every_trace(self, tmp_path: Path) -> None:
        write_svg(tmp_path / "all.svg", {"points": trade_off(RUNS, 1.0)})
        write_svg(tmp_path / "few.svg", {"points": trade_off(RUNS.head(3), 1.0)})
        assert (tmp_path / "all.svg").stat().st_size > (tmp_path / "few.svg").stat().st_size

    def test_refuses_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="panels"):
            write_svg(tmp_path / "x.svg", {})
