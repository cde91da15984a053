"""``sparsedp reproduce``: one table or figure of the papers, at a size that fits the machine."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from sparsedp.cli import scripts
from sparsedp.cli.data_sets import PAGE, VARIABLE
from sparsedp.cli.errors import refuse_bad_input
from sparsedp.core.strict_json import json_text


@refuse_bad_input
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which; without it the names are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("runs/reproduce"),
    data: Annotated[
        Path | None, typer.Option(help=f"Folder of the real data sets ({PAGE}). Default: ${VARIABLE}.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set; may be repeated. Default: all of the study.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="The smallest size, to see that it works.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    available: Annotated[bool, typer.Option("--list", help="Only list the names.")] = False,
) -> None:
    """Run one of the papers' studies and write its figure and table."""
    if available or name is None:
        known = scripts.names("experiments")
        typer.echo(json.dumps(known) if as_json else "\n".join(known))
        return
    module = scripts.load("experiments", name)
    writer = importlib.import_module("experiments.common.study")
    study = writer.Study(name, out / name, quick=quick, data=data, chosen=tuple(dataset or ()))
    study.check_chosen([each.name for each in getattr(module, "DATA_SETS", ())])
    found = module.run(study)
    if as_json:
        typer.echo(json_text(json.loads(json.dumps(found, default=str))))
    else:
        typer.echo(f"written to {study.out}: {', '.join(study.files())}")
