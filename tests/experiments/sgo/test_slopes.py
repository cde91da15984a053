from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from experiments.common.study import Study
from experiments.sgo.slopes import Curve, Panel, anchored, slope, write

N = [2**k for k in range(5, 10)]


def test_exponents_are_fitted_on_logarithmic_axes() -> None:
    found = slope("mean", "low-dimensional", "n", N, [3.0 * n**-0.95 for n in N], [1.0 / n for n in N])
    assert found.theorem == pytest.approx(-1.0)
    assert found.measured == pytest.approx(-0.95)
    assert found.within
    assert found.points == "2^5 .. 2^9"


def test_a_wrong_exponent_is_not_within() -> None:
    found = slope("mean", "low-dimensional", "n", N, [n**-0.5 for n in N], [1.0 / n for n in N])
    assert not found.within
    assert found.line()["within 0.1"] == "NO"


def test_a_theorem_is_drawn_through_the_middle_of_the_measurement() -> None:
    assert anchored([1.0, 2.0], [10.0, 20.0]) == pytest.approx([10.0, 20.0])
    assert anchored([1.0, 1.0], [1.0, 4.0]) == pytest.approx([2.0, 2.0])


def test_curves_and_slopes_are_written(tmp_path: Path) -> None:
    curves = [Curve("ours", N, [1.0 / n for n in N]), Curve("floor", N, [0.5 / n for n in N], "floor")]
    fitted = [slope("mean", "low-dimensional", "n", N, curves[0].y, curves[1].y)]
    panels = [Panel("Errors", "n", "l2 error", curves)]
    found = write(Study("sgo-test", tmp_path), "Test", "lead", panels, fitted, numbers={"ratio": 2.0})
    assert json.loads((tmp_path / "results.json").read_text()) == found
    assert found["tables"]["Slopes"][0]["theorem"] == pytest.approx(-1.0)
    assert found["numbers"] == {"worst_slope_gap": pytest.approx(0.0), "ratio": 2.0}
    points = pl.read_csv(tmp_path / "results.csv")
    assert points.filter(pl.col("curve") == "floor")["y"].to_list() == [0.5 / n for n in N]
