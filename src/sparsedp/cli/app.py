"""The `sparsedp` command and its subcommands, one file each."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sparsedp import __version__
from sparsedp.cli.account import account
from sparsedp.cli.audit import audit
from sparsedp.cli.bench import bench
from sparsedp.cli.calibrate import calibrate
from sparsedp.cli.demo import demo
from sparsedp.cli.export import export
from sparsedp.cli.plan import plan
from sparsedp.cli.predict import predict
from sparsedp.cli.prepare import prepare_app
from sparsedp.cli.report import report
from sparsedp.cli.reproduce import reproduce
from sparsedp.cli.sweep import sweep
from sparsedp.cli.train import evaluate, resume, train_app, train_rank
from sparsedp.cli.tune import tune

app = typer.Typer(
    name="sparsedp",
    help="Differentially private training that keeps sparse gradients sparse.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"sparsedp {__version__}")
        raise typer.Exit


@app.callback()
def sparsedp(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differentially private training that keeps sparse gradients sparse."""


app.command()(demo)
app.add_typer(prepare_app, name="prepare")
app.add_typer(train_app, name="train")
for command in (
    resume,
    evaluate,
    predict,
    export,
    sweep,
    tune,
    plan,
    account,
    calibrate,
    audit,
    bench,
    reproduce,
    report,
):
    app.command()(command)

app.command(hidden=True)(train_rank)


def main() -> None:
    """Run the command line; wrong usage is one line on standard error and exit code 2, like bad input."""
    try:
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:
        typer.echo(f"sparsedp: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("sparsedp: stopped", err=True)
        sys.exit(130)
