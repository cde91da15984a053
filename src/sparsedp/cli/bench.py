"""``sparsedp bench``: the benchmarks, each a ratio of runs interleaved in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated

import typer

from sparsedp.cli import scripts
from sparsedp.cli.errors import refuse_bad_input


@refuse_bad_input
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    available: Annotated[bool, typer.Option("--list", help="Only list the names.")] = False,
) -> None:
    """Run benchmarks; each runs in a separate process and prints a table (or JSON)."""
    known = scripts.names("benchmarks")
    if available:
        typer.echo(json.dumps(known) if as_json else "\n".join(known))
        return
    selected = names or known
    for name in selected:
        if name not in known:
            raise ValueError(f"{name!r} is not one of the benchmarks: {', '.join(known)}")
    failed = 0
    for name in selected:
        path = scripts.folder("benchmarks") / f"{name.replace('-', '_')}.py"
        command = [sys.executable, "-m", "sparsedp.cli.run_script", str(path)]
        failed = subprocess.run([*command, *(["--json"] if as_json else [])]).returncode or failed
    if failed:
        raise typer.Exit(failed)
