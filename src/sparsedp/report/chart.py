"""Charts as inline SVG: no script, a few kilobytes each, in the page's own colours, light and dark.

Each chart is drawn twice, for a wide and for a narrow page, so that words keep their size; the page's style shows one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDE, NARROW = 880, 368
"""Widths in pixels of the two drawings: a desk's page, and a phone's."""
_COLOURS = ("#3b82f6", "#f97316", "#10a37f", "#e11d48", "#8b5cf6", "#a16207", "#0891b2", "#64748b")
_LINE = 18
_NAMES = 210
"""Where a wide drawing of dots begins, right of its names."""
_DOT = 5


@dataclass(frozen=True)
class Series:
    """Points of one run, by its name in the legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Curves:
    """Lines with dots over two axes. `level` is a horizontal line with its name."""

    series: Sequence[Series]
    x_title: str
    y_title: str
    x_ticks: Sequence[float] | None = None
    """The values to name on a logarithmic x axis; None: a linear one."""
    level: tuple[float, str] | None = None

    def draw(self, width: int) -> str:
        """The SVG's content and height for a page of this width."""
        legend, top = _legend([each.name for each in self.series], width)
        left, right, height = 58, width - 14, top + 300
        bottom = height - 46
        log = self.x_ticks is not None
        xs = [_placed(x, log) for each in self.series for x in each.x]
        ys = [y for each in self.series for y in each.y] + ([] if self.level is None else [self.level[0]])
        across = _Span(min(xs), max(xs), left + 8, right - 8)
        up = _Span(min(ys), max(ys), bottom - 8, top + 8)
        parts = [legend]
        parts += [
            _line(left, up(y), right, up(y)) + _text(left - 6, up(y) + 4, f"{y:g}", "end")
            for y in _round_ticks(up.low, up.high)
        ]
        ticks = self.x_ticks if self.x_ticks is not None else _round_ticks(across.low, across.high)
        for x in _apart(ticks, lambda x: across(_placed(x, log)), 44):
            at = across(_placed(x, log))
            parts.append(_line(at, top, at, bottom) + _text(at, bottom + 16, f"{x:,g}", "middle"))
        parts.append(_text((left + right) / 2, height - 8, self.x_title, "middle", "title"))
        middle = (top + bottom) / 2
        parts.append(
            _text(14, middle, self.y_title, "middle", "title", f' transform="rotate(-90 14 {middle:g})"')
        )
        if self.level is not None:
            at = up(self.level[0])
            parts.append(f'<line class="level" x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
            parts.append(_text(left + 6, at - 5, self.level[1], "start"))
        for number, each in enumerate(self.series):
            points = [(across(_placed(x, log)), up(y)) for x, y in zip(each.x, each.y, strict=True)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" stroke="{_colour(number)}"/>')
            for (x, y), value_x, value_y in zip(points, each.x, each.y, strict=True):
                parts.append(_dot(x, y, number, f"{each.name}: {value_y:.4g} at {value_x:,g}"))
        return _svg(parts, width, height)


@dataclass(frozen=True)
class Dots:
    """One line per name, with a dot per run on a logarithmic axis: a bar would begin nowhere there."""

    names: Sequence[str]
    series: Sequence[tuple[str, Sequence[float | None]]]
    """(a run's name, its value on each line; None: no dot there). 0, which has no place on the axis, is hollow."""
    title: str
    values: bool = False
    """Write each value beside its dot."""

    def draw(self, width: int) -> str:
        """The SVG's content and height for a page of this width."""
        legend, top = _legend([name for name, _ in self.series] if len(self.series) > 1 else [], width)
        known = [value for _, values in self.series for value in values if value]
        low, high = (
            math.floor(math.log10(min(known, default=1))),
            math.ceil(math.log10(max(known, default=1))),
        )
        high = max(high, low + 1)
        beside = width >= WIDE  # a narrow page has the names above their lines
        row, centre = (24, 14) if beside else (2 * _LINE + 4, 28)
        bottom = top + row * len(self.names)
        start = _NAMES if beside else 14
        along = _Span(low, high, start + 20, width - (90 if self.values else 30), pad=0.0)
        parts = [legend]
        for power in _apart(range(low, high + 1), along, 46):
            at = along(power)
            label = f"{10.0**power:,g}" if -3 <= power < 6 else f"1e{power}"
            parts.append(_line(at, top, at, bottom) + _text(at, bottom + 16, label, "middle"))
        parts.append(_text((start + width) / 2, bottom + 38, self.title, "middle", "title"))
        for line, name in enumerate(self.names):
            above = top + row * line
            placed = (start - 8, above + centre + 4, "end") if beside else (start, above + 13, "start")
            parts.append(_text(placed[0], placed[1], _shortened(name, width), placed[2], "name"))
            parts.append(_line(start, above + centre, width - 14, above + centre, "row"))
            parts += self._dots(line, name, above + centre, along, low)
        return _svg(parts, width, bottom + 46)

    def _dots(self, line: int, name: str, y: float, along: _Span, low: int) -> list[str]:
        """The dots of one line."""
        parts = []
        for number, (run, values) in enumerate(self.series):
            value = values[line]
            if value is None:
                continue
            at = along(math.log10(value)) if value else along(low)
            shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            parts.append(_dot(at, y, number, f"{run}, {name}: {shown}", hollow=not value))
            if self.values:
                parts.append(_text(at + 10, y + 4, shown, "start"))
        return parts


def chart_html(chart: Curves | Dots, label: str) -> str:
    """Both drawings of a chart, with `label` for those who hear the page."""
    drawn = [(name, chart.draw(width)) for name, width in (("wide", WIDE), ("narrow", NARROW))]
    named = escape(label, quote=True)
    pictures = [
        content.replace("<svg", f'<svg class={name} role=img aria-label="{named}"', 1)
        for name, content in drawn
    ]
    return f"<div class=chart>{''.join(pictures)}</div>"


@dataclass(frozen=True)
class _Span:
    """A linear map from values to pixels, with a margin on both sides of the values."""

    least: float
    most: float
    start: float
    stop: float
    pad: float = 0.04

    @property
    def low(self) -> float:
        return self.least - self._margin

    @property
    def high(self) -> float:
        return self.most + self._margin

    @property
    def _margin(self) -> float:
        return self.pad * (self.most - self.least) or (0.5 * abs(self.most) or 1.0) * (self.pad > 0)

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)


def _placed(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _round_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from low to high."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 7)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def _apart(ticks: Sequence[float], place: Callable[[float], float], least: float) -> list[float]:
    """Those ticks that leave room for their labels."""
    chosen: list[float] = []
    for tick in ticks:
        if not chosen or abs(place(tick) - place(chosen[-1])) >= least:
            chosen.append(tick)
    return chosen


def _shortened(name: str, width: int) -> str:
    """A name that fits its place; the dot's title has it whole."""
    most = 30 if width >= WIDE else 46
    return name if len(name) <= most else name[: most - 3] + "..."


def _legend(names: Sequence[str], width: int) -> tuple[str, int]:
    """(the legend, where the chart below it begins); nothing for a chart that needs none."""
    parts = []
    for number, name in enumerate(names):
        y = 12 + _LINE * number
        parts.append(_dot(14, y - 4, number, name) + _text(26, y, name, "start"))
    return "".join(parts), 8 + _LINE * len(names)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _dot(x: float, y: float, number: int, title: str, *, hollow: bool = False) -> str:
    colour = _colour(number)
    fill = f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" {fill}><title>{escape(title)}</title></circle>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick", more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _svg(parts: Sequence[str], width: int, height: float) -> str:
    return f'<svg viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}">{"".join(parts)}</svg>'
