"""``sparsedp reproduce``: one table or figure of the papers, at a size that fits the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparsedp.cli import scripts
from sparsedp.cli.errors import refuse_bad_input


@refuse_bad_input
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which; --list shows the names.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("runs/reproduce"),
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
    target = out / name
    target.mkdir(parents=True, exist_ok=True)
    found = module.run(target, quick=quick)
    if as_json:
        typer.echo(json.dumps(found, default=str))
    else:
        typer.echo(
            f"written to {target}: {', '.join(sorted(p.name for p in target.iterdir() if p.is_file()))}"
        )
