"""The study writer: what a study was asked for, what it has found so far, and the files it writes.

A study adds its findings part by part; after each part the files are written anew, so that an interrupted study
leaves what it had.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import plotly.graph_objects as go
import polars as pl

from experiments.common.svg import write_svg
from experiments.common.text import cells, markdown
from sparsedp import __version__
from sparsedp.cli.data_sets import find_data_set
from sparsedp.report.page import Section, paragraph, table, write_page


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass
class Study:
    """One run of a study into the folder `out`.

    It writes ``results.csv`` (the measurements, one a line), ``results.json`` (tables, single numbers and the command
    that made them), ``table.md``, ``figure.html`` and ``figure.svg``.
    """

    name: str
    out: Path
    quick: bool = False
    """The smallest size, to see that it works."""
    data: Path | None = None
    """Where the real data sets lie; default: the environment variable SPARSEDP_DATA."""
    chosen: tuple[str, ...] = ()
    """The data sets asked for; default: all of the study."""
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict, init=False, repr=False)
    _panels: dict[str, go.Figure] = field(default_factory=dict, init=False, repr=False)
    _results: list[pl.DataFrame] = field(default_factory=list, init=False, repr=False)
    _numbers: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def command(self) -> str:
        """What to type to run it again."""
        words = ["sparsedp", "reproduce", self.name]
        words += [word for name in self.chosen for word in ("--dataset", name)]
        return shlex.join([*words, *(["--quick"] if self.quick else [])])

    def check_chosen(self, known: Sequence[str]) -> None:
        """Refuse data sets that the study does not have."""
        if self.chosen and self.quick:
            raise ValueError("dataset: with --quick a study runs on a few generated rows only")
        for name in self.chosen:
            if name not in known:
                has = f"its data sets are {', '.join(known)}" if known else "it has none to choose from"
                raise ValueError(f"dataset: {self.name} does not run on {name!r}; {has}")

    def choose(self, known: Sequence[N]) -> list[N]:
        """Those asked for, in the study's order; default: all."""
        self.check_chosen([each.name for each in known])
        return [each for each in known if not self.chosen or each.name in self.chosen]

    def find(self, data_set: str, files: Sequence[str]) -> Path:
        """The folder of a real data set; refuses if it is absent."""
        return find_data_set(data_set, files, self.data)

    def write(
        self,
        title: str,
        lead: str,
        tables: Mapping[str, pl.DataFrame],
        panels: Mapping[str, go.Figure],
        results: pl.DataFrame | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Add findings to those before and write them all; returns what ``results.json`` holds.

        Without `results` the tables are the measurements.
        """
        self._tables |= tables
        self._panels |= panels
        self._results += tables.values() if results is None else [results]
        self._numbers |= numbers or {}
        found = {
            "study": self.name,
            "command": self.command,
            "version": __version__,
            "title": title,
            "lead": lead,
            "numbers": dict(self._numbers),
            "tables": {name: frame.to_dicts() for name, frame in self._tables.items()},
        }
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        pl.concat(self._results, how="diagonal_relaxed").write_csv(self.out / "results.csv")
        shown = self._shown()
        parts = [f"# {title}\n\n{lead}\n\n    {self.command}\n"]
        parts += [f"## {name}\n\n{markdown(frame)}" for name, frame in shown.items()]
        (self.out / "table.md").write_text("\n".join(parts), encoding="utf-8")
        sections = [Section(name, table(frame.columns, cells(frame))) for name, frame in shown.items()]
        sections += [Section(name, figure=figure) for name, figure in self._panels.items()]
        write_page(self.out / "figure.html", title, paragraph(lead) + paragraph(self.command), sections)
        write_svg(self.out / "figure.svg", self._panels)
        return found

    def _shown(self) -> dict[str, pl.DataFrame]:
        """The tables, and one of the single numbers."""
        if not self._numbers:
            return self._tables
        lines = [(name.replace("_", " "), value) for name, value in self._numbers.items()]
        return {**self._tables, "Numbers": pl.DataFrame(lines, schema=["number", "value"], orient="row")}

    def files(self) -> list[str]:
        """The names of the files in its folder."""
        return sorted(path.name for path in self.out.iterdir() if path.is_file())
