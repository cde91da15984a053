"""``sparsedp sweep``: many runs over a grid of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input, refuse_special_file
from sparsedp.cli.settings import with_settings


@refuse_bad_input
@with_settings
def sweep(
    plan: Annotated[Path, typer.Argument(help="YAML file with 'base' settings and a 'grid' of lists.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and results.parquet.")],
    settings: dict[str, Any],
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a separate process.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run a grid of settings; finished runs are reused, interrupted ones resume.

    The options replace settings of the plan's base.
    """
    import polars as pl
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from sparsedp.cli.train import WORSE
    from sparsedp.runs.sweep import RESULTS, Sweep
    from sparsedp.runs.sweep import sweep as run_sweep

    refuse_special_file("plan", plan)
    plan_with_settings = Sweep.read(plan).with_base(settings)
    with Progress(
        *Progress.get_default_columns(),
        TextColumn("{task.completed} of {task.total} runs"),
        console=Console(stderr=True),
        disable=as_json,
    ) as bar:
        task = bar.add_task("sweep", total=None)
        results = run_sweep(
            plan_with_settings, out, jobs, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        typer.echo(results.write_json())
        return
    if results.is_empty():
        raise ValueError("sweep: no run could be finished; the warnings above say why")
    varied = [name for grid in plan_with_settings.grids for name in grid]
    shown = [*dict.fromkeys(varied), "auc", "log_loss", "reduction", "spent_epsilon"]
    Console(width=160).print(_table(results.select(shown).sort("auc", descending=True)))
    worse = results.filter(pl.col("log_loss") > pl.col("constant_log_loss")).height
    if worse:
        typer.echo(f"warning: in {worse:,} of {results.height:,} runs {WORSE}")
    private = results.filter(pl.col("spent_epsilon").is_not_null())
    if private.height:
        units = " or ".join(sorted(set(private["unit"])))
        typer.echo(
            f"spent_epsilon is each run's own, add-or-remove-one adjacency, unit: {units}, released as its statement.json "
            "says; to publish the best of them costs more (sparsedp tune)"
        )
    typer.echo(f"results: {out / RESULTS}")


def _table(frame: object) -> object:
    import polars as pl
    from rich.table import Table

    assert isinstance(frame, pl.DataFrame)
    table = Table()
    for name in frame.columns:
        table.add_column(name, justify="right")
    for row in frame.iter_rows():
        table.add_row(*["" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row])
    return table
