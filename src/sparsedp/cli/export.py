"""``sparsedp export``: a trained model as a folder that plain PyTorch serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.predict import Trust


@refuse_bad_input
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    trust: Trust = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Export the last checkpoint of a run that has not finished.")
    ] = False,
) -> None:
    """Write a trained model, its feature rules and its privacy statement for plain PyTorch, without this package."""
    from sparsedp.runs.export import export_run

    model = export_run(run, out, trust=trust, unfinished=unfinished)
    typer.echo(f"exported to {out}; serve it with: python {out / 'serve.py'} ROWS.csv")
    is_private = model.statement is not None and model.statement.private
    typer.echo(model.privacy, err=not is_private)
    if model.schema.vocabulary_statement is not None:
        typer.echo(f"its vocabulary: {model.schema.vocabulary_statement}")
