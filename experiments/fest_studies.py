"""What the studies of the FEST paper share: data sets, tuned settings, and how results are written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
PRIVATE = ("lazy", "fest", "adafest", "adafest+", "exponential", "sparse-vector", "random")
"""Every private algorithm; DP-SGD as ``lazy``, whose final model has the same distribution and which is far
quicker where tables are large."""
Grid = dict[str, list[Any]]


@dataclass(frozen=True)
class DataSet:
    """A data set, the settings tuned for it, and the knobs of each algorithm."""

    name: str
    words: str
    source: str
    """A folder under ``REAL_DATA``, or ``generated:...``."""
    settings: Mapping[str, Any]
    knobs: Mapping[str, Mapping[str, Sequence[Any]]]
    """Per algorithm, the values its own knobs take; a list of several is a small sweep of its own."""
    period: int
    """The shortest streaming period, in the data's time units."""
    periods: Sequence[int]
    """Streaming periods, in multiples of the shortest."""

    @property
    def available(self) -> bool:
        """Whether it is here."""
        return self.source.startswith("generated:") or (REAL_DATA / self.source).is_dir()

    def base(self, out: Path) -> dict[str, Any]:
        """The settings that all runs share, the data prepared (once) under ``out``."""
        # Runs of a study are short: the sweep repeats an interrupted one rather than storing large tables.
        return {"data": self._prepared(out), "checkpoint_every": 10**6, **self.settings}

    def _prepared(self, out: Path) -> str:
        if self.source.startswith("generated:"):
            return self.source
        folder = out / "data" / self.name
        _PREPARE[self.source](REAL_DATA / self.source, folder)
        return str(folder)

    def grid(self, algorithm: str, **more: list[Any]) -> Grid:
        """The algorithm with its knobs, and what else varies."""
        return {"algorithm": [algorithm], **{k: list(v) for k, v in self.knobs.get(algorithm, {}).items()}, **more}


def runs_of(name: DataSet, grids: Sequence[Grid], out: Path, jobs: int = 1) -> pl.DataFrame:
    """Sweep the grids; finished runs are kept, their weights are not."""
    folder = out / name.name

    def forget_weights(done: int, total: int) -> None:
        for weights in folder.glob("runs/*/model.safetensors"):
            weights.unlink()

    found = sweep(Sweep(name.base(out), grids), folder, jobs, forget_weights)
    return found.with_columns(dataset=pl.lit(name.name))


def write_study(
    out: Path,
    title: str,
    lead: str,
    tables: Mapping[str, pl.DataFrame],
    panels: Mapping[str, go.Figure],
    runs: pl.DataFrame | None = None,
) -> dict[str, Any]:
    """``results.parquet``, ``table.md``, ``figure.html`` and ``figure.svg``; returns the tables as plain values."""
    out.mkdir(parents=True, exist_ok=True)
    (pl.concat(list(tables.values()), how="diagonal_relaxed") if runs is None else runs).write_parquet(
        out / "results.parquet"
    )
    parts = [f"## {name}\n\n{markdown(frame)}" for name, frame in tables.items()]
    (out / "table.md").write_text(f"# {title}\n\n{lead}\n\n" + "\n".join(parts))
    sections = [Section(name, table(frame.columns, cells(frame))) for name, frame in tables.items()]
    sections += [Section(name, figure=figure) for name, figure in panels.items()]
    write_page(out / "figure.html", title, paragraph(lead), sections)
    if panels:
        write_svg(out / "figure.svg", panels)
    shutil.rmtree(out / "data", ignore_errors=True)
    return {name: frame.to_dicts() for name, frame in tables.items()}
