"""Drawn charts: what is in them, where it is, and that no word of a run becomes markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from sparsedp.report.chart import NARROW, WIDE, Curves, Dots, Series, chart_html

CURVES = Curves(
    [Series("one", [1, 2, 4], [0.5, 0.6, 0.7]), Series("two", [1, 4], [0.55, 0.65])], "step", "AUC"
)
DOTS = Dots(["user", "item", "city"], [("one", [1000.0, 10.0, 0.0]), ("two", [100.0, None, 1.0])], "rows")


def circles(svg: str, series: str) -> list[tuple[float, float, str]]:
    """(x, y, title) of the dots that name a series, the legend's left out."""
    found = re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>([^<]*)</title>', svg)
    return [
        (float(x), float(y), title) for x, y, title in found if title.startswith(series) and title != series
    ]


@pytest.mark.parametrize("chart", [CURVES, DOTS], ids=["curves", "dots"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_drawing_is_sound_and_inside_its_frame(chart: Curves | Dots, width: int) -> None:
    root = ElementTree.fromstring(chart.draw(width))
    assert float(root.attrib["width"]) == width
    height = float(root.attrib["height"])
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


def test_points_of_a_curve_are_where_their_values_say() -> None:
    points = circles(CURVES.draw(WIDE), "one")
    assert [title for _, _, title in points] == ["one: 0.5 at 1", "one: 0.6 at 2", "one: 0.7 at 4"]
    (x1, y1, _), (x2, y2, _), (x4, y4, _) = points
    assert x4 - x2 == pytest.approx(2 * (x2 - x1), abs=0.3)  # a linear axis
    assert y1 - y2 == pytest.approx(y2 - y4, abs=0.3)
    assert y4 < y1  # upwards


def test_a_logarithmic_axis_names_the_given_values() -> None:
    chart = Curves([Series("one", [1, 10, 100], [0.1, 0.2, 0.3])], "epsilon", "AUC", x_ticks=[1, 10, 100])
    drawn = chart.draw(WIDE)
    (x1, _, _), (x2, _, _), (x3, _, _) = circles(drawn, "one")
    assert x3 - x2 == pytest.approx(x2 - x1, abs=0.3)
    assert all(f">{tick}</text>" in drawn for tick in ("1", "10", "100"))


def test_a_level_is_a_line_with_its_name() -> None:
    drawn = Curves(CURVES.series, "step", "AUC", level=(0.75, "without privacy")).draw(WIDE)
    assert 'class="level"' in drawn
    assert "without privacy" in drawn


def test_dots_stand_on_a_logarithmic_axis_and_there_are_no_bars() -> None:
    drawn = DOTS.draw(WIDE)
    (x1000, _, _), (x10, _, _), (x0, _, _) = circles(drawn, "one")
    (x100, _, _), (x1, _, _) = circles(drawn, "two")
    assert x1000 - x100 == pytest.approx(x100 - x10, abs=0.3)
    assert x10 - x1 == pytest.approx(x100 - x10, abs=0.3)
    assert x0 == x1  # the lower end of the axis
    assert drawn.count('fill="none"') == 1  # nothing but the zero is hollow
    assert "<rect" not in drawn


def test_lines_stand_in_the_order_given() -> None:
    drawn = DOTS.draw(NARROW)
    assert [drawn.index(f">{name}<") for name in DOTS.names] == sorted(
        drawn.index(f">{name}<") for name in DOTS.names
    )


def test_one_value_and_equal_values_can_be_drawn() -> None:
    for chart in (
        Curves([Series("one", [3], [0.5])], "step", "AUC"),
        Curves([Series("one", [1, 2], [0.5, 0.5])], "step", "AUC"),
        Curves([Series("one", [2.0], [0.5])], "epsilon", "AUC", x_ticks=[2.0]),
        Dots(["a"], [("one", [5.0])], "rows", values=True),
        Dots(["a"], [("one", [0.0])], "rows"),
    ):
        ElementTree.fromstring(chart.draw(WIDE))


def test_words_are_escaped() -> None:
    nasty = "</svg><script>\"'&"
    html = chart_html(Dots([nasty], [(nasty, [1.0]), ("b", [2.0])], nasty), nasty)
    html += chart_html(Curves([Series(nasty, [1], [1])], nasty, nasty, level=(1, nasty)), nasty)
    assert "<script" not in html
    assert html.count("<svg") == html.count("</svg>") == 4
