"""The page in a real browser: drawn, silent, self-contained, on a phone, in the dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from support.browser import PATIENCE, marks, opened

from sparsedp.report.page import Section, paragraph, table, write_page

NASTY = "<b>\"quoted\" & 'single'</b></script><script>document.title='taken'</script>"


def write(path: Path) -> Path:
    lines = go.Figure(go.Scatter(x=[1, 2, 3], y=[0.5, 0.6, 0.7], name="AUC </script>"))
    bars = go.Figure(go.Bar(x=[10, 2000], y=["one", "two"], orientation="h"))
    wide = table(["run", *[f"column {n}" for n in range(20)]], [["first", *["1,234,567"] * 20]])
    sections = [
        Section("Quality", paragraph("in words"), lines.update_layout(xaxis_title="step")),
        Section("Sizes", "", bars.update_layout(xaxis={"type": "log"})),
        Section("All figures", wide),
    ]
    write_page(path, NASTY, paragraph("what it is"), sections)
    return path


def test_charts_are_drawn_without_errors_or_network(browser: Any, tmp_path: Path) -> None:
    """And titles are text, not markup."""
    page, errors, requests = opened(browser, write(tmp_path / "page.html"))
    assert page.title() == page.locator("h1").text_content() == NASTY
    assert len(marks(page)) == 2
    assert all(count > 0 for count in marks(page))
    assert page.locator(".chart").first.get_attribute("aria-label") == "Quality"
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000
    page.context.close()


def test_a_phone_shows_it_without_sideways_scrolling(browser: Any, tmp_path: Path) -> None:
    page, errors, _ = opened(
        browser, write(tmp_path / "page.html"), viewport={"width": 390, "height": 844}, is_mobile=True
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('.chart svg.main-svg').getBoundingClientRect().width") <= 390
    # A wide table scrolls inside its own box.
    assert page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")
    assert errors == []
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    page.context.close()


def luminance(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_mode_changes_page_and_charts(browser: Any, tmp_path: Path) -> None:
    page, errors, _ = opened(browser, write(tmp_path / "page.html"), color_scheme="light")
    colours = """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
        getComputedStyle(document.querySelector('.chart .xtick text')).fill,
        getComputedStyle(document.querySelector('.chart .ygrid')).stroke]"""
    before = page.evaluate(colours)
    light = [luminance(colour) for colour in before]
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"before => ({colours})()[2] !== before", arg=before[2], timeout=PATIENCE)
    dark = [luminance(colour) for colour in page.evaluate(colours)]
    assert light[0] > 200 > 100 > light[1]
    assert light[2] < 100
    assert dark[0] < 60 < 180 < dark[1]
    assert dark[2] > 180
    assert dark[3] < 80 < 200 < light[3]  # grid lines, also of an axis that the figure does not mention
    assert all(count > 0 for count in marks(page))
    assert errors == []
    page.screenshot(path=tmp_path / "dark.png", full_page=True)
    page.context.close()


def test_what_is_written_is_escaped() -> None:
    assert "<b>" not in paragraph(NASTY)
    html = table([NASTY], [[NASTY], ["first", NASTY]])
    assert "<b>" not in html
    assert "<script" not in html
    assert html.count("&lt;b&gt;") == 3


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    text = write(tmp_path / "page.html").read_text()
    for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text.split("</style>")[0]):
        assert "http" not in tag
    assert not re.search(r"<(?:script|img|iframe)[^>]*\bsrc=", text.split("<script>")[0])
    assert "@import" not in text.split("<script>")[0]


def test_a_page_without_charts_carries_no_library(tmp_path: Path) -> None:
    write_page(
        tmp_path / "deep" / "page.html", "Plain", paragraph("text"), [Section("Only words", "<p>x</p>")]
    )
    text = (tmp_path / "deep" / "page.html").read_text()
    assert len(text) < 10_000
    assert "<script" not in text
