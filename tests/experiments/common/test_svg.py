from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest
from support.sweep_results import RUNS

from experiments.common.svg import write_svg
from experiments.fest.figures import auc_by_epsilon, heat_map, sparsity_per_feature, trade_off


@pytest.fixture
def panels() -> dict[str, go.Figure]:
    sparsity = pl.DataFrame({"feature": ["C3", "all"], "sparsity": [0.99, 0.5]})
    return {
        "points": trade_off(RUNS, 1.0),
        "spread": auc_by_epsilon(RUNS),
        "map": heat_map(RUNS, "threshold", "noise_ratio"),
        "bars": sparsity_per_feature(sparsity),
    }


def test_svg_is_well_formed_and_the_same_twice(panels: dict[str, go.Figure], tmp_path: Path) -> None:
    write_svg(tmp_path / "a" / "one.svg", panels)
    write_svg(tmp_path / "two.svg", panels)
    text = (tmp_path / "two.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert (tmp_path / "a" / "one.svg").read_text() == text


def test_draws_every_trace(tmp_path: Path) -> None:
    write_svg(tmp_path / "all.svg", {"points": trade_off(RUNS, 1.0)})
    write_svg(tmp_path / "few.svg", {"points": trade_off(RUNS.head(3), 1.0)})
    assert (tmp_path / "all.svg").stat().st_size > (tmp_path / "few.svg").stat().st_size


def test_refuses_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="panels"):
        write_svg(tmp_path / "x.svg", {})


def test_lines_are_drawn_as_the_figure_says(tmp_path: Path) -> None:
    sizes = set()
    for dash in ("solid", "dash", "dot"):
        for mode in ("lines", "markers", "lines+markers"):
            figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2], mode=mode, line={"dash": dash}))
            write_svg(tmp_path / "one.svg", {"one": figure})
            sizes.add((tmp_path / "one.svg").read_text())
    assert len(sizes) == 7, "markers alone have no line to dash"
