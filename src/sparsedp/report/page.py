"""One self-contained HTML page: works offline, on a phone, in light and dark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sparsedp.core.durable import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Section:
    """A heading, some HTML (with drawn charts, see `chart_html`), and below it a chart for a study to explore."""

    title: str
    body: str = ""
    figure: go.Figure | None = None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table; the first column is a row's name."""
    head = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in header)
    body = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body.append(f"<tr><th scope=row>{escape(first)}</th>{cells}</tr>")
    return (
        f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page. Figures, which only studies have, are drawn by a copy of plotly.js inside the file."""
    charts = {}
    parts = []
    for number, section in enumerate(sections):
        parts.append(f"<section><h2>{escape(section.title)}</h2>{section.body}")
        if section.figure is not None:
            charts[f"chart-{number}"] = json.loads(section.figure.to_json())
            label = escape(section.title, quote=True)
            parts.append(f'<div class="chart plot" id="chart-{number}" role=img aria-label="{label}"></div>')
        parts.append("</section>")
    # "</" must not close the script element early.
    data = json.dumps(charts).replace("</", "<\\/")
    script = _SCRIPT.replace("CHARTS", data) if charts else ""
    library = f"<script>{_plotly()}</script>" if charts else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(
        path,
        f"<!doctype html><html lang=en><head><meta charset=utf-8>"
        f'<meta name=viewport content="width=device-width, initial-scale=1">'
        f'<link rel=icon href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style>{library}</head>'
        f"<body><main><h1>{escape(title)}</h1>{lead}{''.join(parts)}</main>{script}</body></html>\n",
    )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--text:#1b2430;--quiet:#5b6675;--line:#d9dee5;--card:#f5f7fa;--good:#0b6e4f;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--text:#e6eaf0;--quiet:#9aa5b4;--line:#2c3440;--card:#1a2029;--good:#58c79f;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--text);font:16px/1.55 system-ui,sans-serif}
main{overflow-wrap:anywhere;max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.2rem;margin-top:2.2rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1rem 1.2rem;margin:1rem 0}
.card strong{font-size:1.15rem}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.quiet{color:var(--quiet);font-size:.92rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th[scope=row],th:first-child{text-align:left}
th,td{overflow-wrap:normal}th[scope=col]{white-space:normal;vertical-align:bottom}.scroll+.scroll{margin-top:1rem}
.figures{display:flex;flex-wrap:wrap;gap:.2rem 1.6rem;margin:.5rem 0}.figures dt{color:var(--quiet);font-size:.85rem}
.figures dd{margin:0;font-size:1.5rem;font-weight:600;font-variant-numeric:tabular-nums}
.chart{width:100%}.plot{height:22rem}svg{max-width:100%;height:auto}svg.narrow{display:none}
svg text{fill:var(--text);font:12px system-ui,sans-serif}svg text.title{fill:var(--quiet)}svg text.name{font-size:13px}
svg .grid,svg .row{stroke:var(--line)}svg .row{stroke-dasharray:1 3}svg polyline{fill:none;stroke-width:2}
svg .level{stroke:var(--quiet);stroke-dasharray:3 3}
@media(max-width:40rem){.plot{height:18rem}svg.wide{display:none}svg.narrow{display:inline}th[scope=row]{white-space:normal;min-width:6.5rem;overflow-wrap:anywhere}th[scope=col]{min-width:4.5rem}}
"""

_SCRIPT = """<script>
const charts = CHARTS;
const dark = matchMedia("(prefers-color-scheme: dark)");
function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue(name).trim();
  return {text: of("--text"), line: of("--line")};
}
function draw() {
  const {text, line} = colours();
  for (const [id, chart] of Object.entries(charts)) {
    const layout = structuredClone(chart.layout);
    Object.assign(layout, {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: text},
      margin: {l: 62, r: 16, t: 12, b: 52}, legend: {orientation: "h", yanchor: "bottom", y: 1.02}, autosize: true});
    for (const axis of ["xaxis", "yaxis"]) layout[axis] ??= {};
    for (const key of Object.keys(layout)) {
      if (!/^[xy]axis/.test(key)) continue;
      Object.assign(layout[key], {gridcolor: line, zerolinecolor: line});
      if (layout[key].type === "log" && !layout[key].tickvals) layout[key].dtick ??= 1;  // label powers of ten alone
    }
    Plotly.react(id, chart.data, layout, {responsive: true, displayModeBar: false});
  }
}
draw();
dark.addEventListener("change", draw);
</script>"""
