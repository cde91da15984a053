"""What the studies of the FEST paper share: how runs are made and how results are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl

from sparsedp.data import flights, tennis
from sparsedp.report.figures_static import write_svg
from sparsedp.report.figures_tables import cells, markdown
from sparsedp.report.page import Section, paragraph, table, write_page
from sparsedp.runs.sweep import Sweep, sweep

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where the real data sets lie, if anywhere: folders ``flights-3m`` and ``tennis``."""
_PREPARE = {"flights-3m": flights, "tennis": tennis}
Grid = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, the settings tuned for it, and the knobs of each algorithm."""

    name: str
    words: str
    source: str
    """A folder under ``REAL_DATA``, or ``generated:...``."""
    settings: Mapping[str, Any]
    knobs: Mapping[str, Sequence[Mapping[str, Sequence[Any]]]]
    """Per algorithm, grids of the values that its own settings take."""
    algorithms: Sequence[str]
    """The private algorithms to compare."""
    seeds: Sequence[int] = (0, 1)
    periods: Mapping[int, int] = field(default_factory=dict)
    """Lengths of streaming periods in the data's time units, and how many of them train: the same rows for all."""

    @property
    def available(self) -> bool:
        """Whether it is here."""
        return self.source.startswith("generated:") or (REAL_DATA / self.source).is_dir()

    def base(self, out: Path) -> dict[str, Any]:
        """The settings that all runs share, the data prepared (once) under ``out``."""
        # Runs of a study are short: an interrupted one is repeated rather than its large tables stored.
        return {"data": self._prepared(out), "checkpoint_every": 10**6, **self.settings}

    def _prepared(self, out: Path) -> str:
        if self.source.startswith("generated:"):
            return self.source
        folder = out / "data" / self.name
        _PREPARE[self.source](REAL_DATA / self.source, folder)
        return str(folder)

    def grids(self, algorithm: str, **more: Sequence[Any]) -> list[Grid]:
        """The algorithm with all its knobs, and what else varies."""
        return [_grid(algorithm, knobs, more) for knobs in self.knobs.get(algorithm, [{}])]

    def default(self, algorithm: str, **more: Sequence[Any]) -> Grid:
        """The algorithm with the first value of each knob of its first grid, and what else varies."""
        first = self.knobs.get(algorithm, [{}])[0]
        return _grid(algorithm, {name: values[:1] for name, values in first.items()}, more)


def _grid(algorithm: str, *parts: Mapping[str, Sequence[Any]]) -> Grid:
    varied = {name: list(values) for part in parts for name, values in part.items()}
    return {"algorithm": [algorithm], **varied}


def runs_of(each: DataSet, grids: Sequence[Grid], out: Path) -> pl.DataFrame:
    """Sweep the grids; finished runs are kept, their weights are not."""
    folder = out / each.name

    def forget_weights(done: int, total: int) -> None:
        for weights in folder.glob("runs/*/model.safetensors"):
            weights.unlink()

    found = sweep(Sweep(each.base(out), grids), folder, on_progress=forget_weights)
    return found.with_columns(dataset=pl.lit(each.name))


def write_study(
    out: Path,
    title: str,
    lead: str,
    tables: Mapping[str, pl.DataFrame],
    panels: Mapping[str, go.Figure],
    runs: pl.DataFrame | None = None,
) -> dict[str, Any]:
    """``results.parquet``, ``table.md``, ``figure.html``, ``figure.svg``; returns the tables as plain values."""
    out.mkdir(parents=True, exist_ok=True)
    results = pl.concat(list(tables.values()), how="diagonal_relaxed") if runs is None else runs
    results.write_parquet(out / "results.parquet")
    parts = [f"## {name}\n\n{markdown(frame)}" for name, frame in tables.items()]
    (out / "table.md").write_text(f"# {title}\n\n{lead}\n\n" + "\n".join(parts))
    sections = [Section(name, table(frame.columns, cells(frame))) for name, frame in tables.items()]
    sections += [Section(name, figure=figure) for name, figure in panels.items()]
    write_page(out / "figure.html", title, paragraph(lead), sections)
    write_svg(out / "figure.svg", panels)
    return {name: frame.to_dicts() for name, frame in tables.items()}
