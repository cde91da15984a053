"""``sparsedp report``: one HTML file for a run or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input


@refuse_bad_input
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML report."""
    from sparsedp.report import write_report

    typer.echo(f"report: {write_report(runs, out)}")
