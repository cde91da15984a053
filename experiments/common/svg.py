"""Plotly figures drawn by matplotlib, for documents that show pictures rather than pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

_COLUMNS = 3
_STYLE: Any = {
    "svg.hashsalt": "sparsedp",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
}
"""The hash salt makes the same figure the same file."""
_LEGEND_WIDTH = 75
"""Letters that fit beside each other below a picture."""
_LINE = {None: "-", "solid": "-", "dash": "--", "dot": ":"}


def write_svg(path: Path, panels: Mapping[str, go.Figure]) -> None:
    """Draw the figures (scatter, bar, heat map) into one SVG, three a line, each under its title."""
    if not panels:
        raise ValueError("panels: there is nothing to draw")
    with mpl.rc_context(_STYLE):
        columns = min(_COLUMNS, len(panels))
        lines = math.ceil(len(panels) / columns)
        picture = Figure(figsize=(5.2 * columns, 3.9 * lines), layout="constrained")
        for place, (title, figure) in enumerate(panels.items(), start=1):
            axes = picture.add_subplot(lines, columns, place)
            _draw(axes, figure)
            axes.set_title(title, fontsize=10)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, figure: go.Figure) -> None:
    layout = figure.to_plotly_json()["layout"]
    for trace in figure.data:
        if trace.type == "heatmap":
            _heat_map(axes, trace)
        elif trace.type == "bar":
            axes.bar([str(x) for x in trace.x], list(trace.y))
            axes.tick_params(axis="x", labelrotation=45)
        else:
            _scatter(axes, trace)
    for shape in layout.get("shapes", ()):
        axes.axhline(shape["y0"], linestyle=":", color="#475569")
    for note in layout.get("annotations", ()):
        axes.annotate(
            note["text"], (0.99, note["y"]), xycoords=("axes fraction", "data"), ha="right", va="top"
        )
    _axis(axes, "x", layout.get("xaxis", {}))
    _axis(axes, "y", layout.get("yaxis", {}))
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1:
        columns = min(3, max(1, _LEGEND_WIDTH // max(map(len, labels))))
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=columns, frameon=False)


def _scatter(axes: Axes, trace: Any) -> None:
    colour = trace.marker.color or trace.line.color
    mode = trace.mode or ""
    style = (_LINE[trace.line.dash] if "lines" in mode else "") + ("o" if "markers" in mode else "")
    spread = None if trace.error_y.array is None else list(trace.error_y.array)
    axes.errorbar(
        list(trace.x), list(trace.y), yerr=spread, fmt=style, color=colour, label=trace.name, ms=4, capsize=2
    )


def _heat_map(axes: Axes, trace: Any) -> None:
    cells = [[float("nan") if value is None else value for value in line] for line in trace.z]
    image = axes.imshow(cells, origin="lower", aspect="auto")
    axes.grid(False)
    middle = sum(image.get_clim()) / 2
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            colour = "white" if value < middle else "black"
            axes.text(x, y, trace.text[y][x], ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(trace.x)), list(trace.x))
    axes.set_yticks(range(len(trace.y)), list(trace.y))
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, label=trace.colorbar.title.text)


def _axis(axes: Axes, name: str, settings: Mapping[str, Any]) -> None:
    if settings.get("type") == "log":
        axes.set(**{f"{name}scale": "log"})
    if "tickvals" in settings:
        getattr(axes, f"{name}axis").set_minor_locator(NullLocator())
        axes.set(**{f"{name}ticks": settings["tickvals"], f"{name}ticklabels": settings["ticktext"]})
    if "range" in settings:
        axes.set(**{f"{name}lim": tuple(settings["range"])})
    axes.set(**{f"{name}label": settings.get("title", {}).get("text", "")})
