"""What the studies of rates share: curves on logarithmic axes, their slopes, and how both are written."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import plotly.graph_objects as go

from sparsedp.convex.theory.rates import log_log_slope
from sparsedp.report.page import Section, paragraph, table, write_page

Kind = Literal["measured", "theorem", "baseline", "floor"]
_DASH = {"measured": "solid", "theorem": "dash", "baseline": "solid", "floor": "dot"}
_COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7c3aed", "#475569", "#be185d", "#a16207", "#0f766e")


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "measured"


@dataclass(frozen=True)
class Panel:
    """One picture: curves over one quantity."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Slope:
    """A measured exponent beside the theorem's, over the same points."""

    setting: str
    regime: str
    over: str
    points: str
    theorem: float
    measured: float

    @property
    def within(self) -> bool:
        """Whether the two agree to 0.1."""
        return abs(self.theorem - self.measured) <= 0.1


def slope(
    setting: str,
    regime: str,
    over: str,
    x: Sequence[float],
    measured: Sequence[float],
    theorem: Sequence[float],
) -> Slope:
    """Both exponents by least squares on logarithmic axes."""
    points = f"{_power(x[0])} .. {_power(x[-1])}"
    return Slope(setting, regime, over, points, log_log_slope(x, theorem), log_log_slope(x, measured))


def anchored(theorem: Sequence[float], measured: Sequence[float]) -> list[float]:
    """The theorem's curve through the middle of the measured one: theorems leave constants open."""
    shift = sum(math.log(m / t) for m, t in zip(measured, theorem, strict=True)) / len(theorem)
    return [t * math.exp(shift) for t in theorem]


def write(
    out: Path,
    name: str,
    title: str,
    lead: str,
    panels: Sequence[Panel],
    slopes: Sequence[Slope],
    figures: dict[str, Any],
) -> dict[str, Any]:
    """`<name>.json`, `.md`, `.html` and `.png` in `out`; returns what the JSON holds."""
    out.mkdir(parents=True, exist_ok=True)
    found = {
        "title": title,
        "slopes": [{**asdict(each), "within": each.within} for each in slopes],
        "worst_slope_gap": max((abs(each.theorem - each.measured) for each in slopes), default=0.0),
        "panels": [asdict(panel) for panel in panels],
        **figures,
    }
    (out / f"{name}.json").write_text(json.dumps(found, indent=1, default=float) + "\n")
    (out / f"{name}.md").write_text(_markdown(title, lead, slopes, figures))
    _png(out / f"{name}.png", title, panels)
    sections = [Section(panel.title, figure=_chart(panel)) for panel in panels]
    sections.append(Section("Slopes", table(_HEADER, [_cells(each) for each in slopes])))
    write_page(out / f"{name}.html", title, paragraph(lead), sections)
    return found


_HEADER = ("setting", "regime", "over", "points", "theorem", "measured", "within 0.1")


def _cells(each: Slope) -> list[str]:
    verdict = "yes" if each.within else "NO"
    return [
        each.setting,
        each.regime,
        each.over,
        each.points,
        f"{each.theorem:.3f}",
        f"{each.measured:.3f}",
        verdict,
    ]


def _markdown(title: str, lead: str, slopes: Sequence[Slope], figures: dict[str, Any]) -> str:
    lines = [f"# {title}", "", lead, "", "| " + " | ".join(_HEADER) + " |", "|" + "---|" * len(_HEADER)]
    lines += ["| " + " | ".join(_cells(each)) + " |" for each in slopes]
    scalars = {key: value for key, value in figures.items() if isinstance(value, int | float | str)}
    if scalars:
        lines += ["", "| figure | value |", "|---|---|"]
        lines += [f"| {key.replace('_', ' ')} | {_number(value)} |" for key, value in scalars.items()]
    return "\n".join(lines) + "\n"


def _chart(panel: Panel) -> go.Figure:
    figure = go.Figure()
    for number, curve in enumerate(panel.curves):
        line = {"dash": _DASH[curve.kind], "color": _COLOURS[number % len(_COLOURS)]}
        mode = "lines" if curve.kind in ("theorem", "floor") else "lines+markers"
        figure.add_scatter(x=list(curve.x), y=list(curve.y), name=curve.name, mode=mode, line=line)
    figure.update_xaxes(type="log", title=panel.x)
    figure.update_yaxes(type="log", title=panel.y)
    return figure


def _png(path: Path, title: str, panels: Sequence[Panel]) -> None:
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 4.2 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for number, curve in enumerate(panel.curves):
            style = {"solid": "-", "dash": "--", "dot": ":"}[_DASH[curve.kind]]
            marker = "" if curve.kind in ("theorem", "floor") else "o"
            colour = _COLOURS[number % len(_COLOURS)]
            axis.loglog(curve.x, curve.y, style, marker=marker, markersize=3, color=colour, label=curve.name)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x)
        axis.set_ylabel(panel.y)
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _power(value: float) -> str:
    exponent = math.log2(value)
    return f"2^{exponent:.0f}" if exponent == round(exponent) and value > 16 else f"{value:g}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
