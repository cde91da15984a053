"""``sparsedp train``, ``resume`` and ``evaluate``: click models on prepared data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input

if TYPE_CHECKING:
    from sparsedp.runs.training import Progress

Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]


@refuse_bad_input
def train(
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with settings; options given here replace its own.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Prepared folder, or generated:ROWS[xDAYS].")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="non-private, dp-sgd, lazy, fest, adafest, adafest+, exponential, sparse-vector, random."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Most that the whole training spends.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1 / (10 n).")] = None,
    epochs: Annotated[float | None, typer.Option()] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected size of a Poisson batch.")] = None,
    model: Annotated[str | None, typer.Option(help="pctr, dlrm, or package.module:Name.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the dense layers.")] = None,
    table_learning_rate: Annotated[float | None, typer.Option(help="Of the embedding tables.")] = None,
    max_grad_norm: Annotated[float | None, typer.Option(help="Clip of an example's gradient (C2).")] = None,
    noise_ratio: Annotated[float | None, typer.Option(help="sigma1 / sigma2 of AdaFEST.")] = None,
    threshold: Annotated[float | None, typer.Option(help="AdaFEST's tau.")] = None,
    false_positives: Annotated[float | None, typer.Option(help="Instead of tau: expected per step.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows that fest, exponential, ... keep.")] = None,
    holdout_by: Annotated[str | None, typer.Option(help="hash or time.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    period: Annotated[int | None, typer.Option(help="Stream: train period by period.")] = None,
    frequencies: Annotated[str | None, typer.Option(help="Stream: first, all or running.")] = None,
    seed: Annotated[int | None, typer.Option(help="Reproducible and NOT private.")] = None,
    ledger: Annotated[str | None, typer.Option(help="A ledger shared by runs on the same data.")] = None,
    as_json: Json = False,
) -> None:
    """Train a click model under differential privacy."""
    from sparsedp.runs import RunConfig, stream
    from sparsedp.runs import train as train_run

    given = {
        name: value
        for name, value in locals().items()
        if name in RunConfig.model_fields and value is not None
    }
    settings = RunConfig.read(config, **given) if config is not None else RunConfig.parse(given)
    with progress_bar(settings.algorithm, quiet=as_json) as on_progress:
        run = stream if settings.period is not None else train_run
        result = run(settings, out, on_progress)
    show_result(out, vars(result), as_json)


@refuse_bad_input
def resume(run: Annotated[Path, typer.Argument(help="A run's folder.")], as_json: Json = False) -> None:
    """Finish an interrupted run, within its epsilon: steps that were lost are taken from those to come."""
    from sparsedp.runs import RunFolder
    from sparsedp.runs import resume as resume_run

    with progress_bar(RunFolder(run).config().algorithm, quiet=as_json) as on_progress:
        result = resume_run(run, on_progress)
    show_result(run, vars(result), as_json)


@refuse_bad_input
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    data: Annotated[
        str | None, typer.Option(help="Other data of the same schema; default: held-out rows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """AUC and log-loss of a trained model."""
    from sparsedp.runs.evaluation import evaluate_run

    found = evaluate_run(run, data)
    if as_json:
        typer.echo(json.dumps(vars(found)))
    else:
        typer.echo(f"AUC {found.auc:.4f}, log-loss {found.log_loss:.4f} on {found.rows:,} rows")


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A rich bar with examples per second, epsilon so far and rows per step."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, note="")

        def on_progress(progress: Progress) -> None:
            note = f"{progress.examples_per_second:,.0f} examples/s"
            if progress.rows is not None:
                note += f", {progress.rows:,.0f} rows/step, epsilon <= {progress.epsilon:.3f} so far"
            bar.update(task, completed=progress.step, total=progress.total, note=note)

        yield on_progress


def show_result(folder: Path, result: dict[str, Any], as_json: bool) -> None:
    """The figures of a finished run and what they cost."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"AUC {result['auc']:.4f}, log-loss {result['log_loss']:.4f} on held-out rows")
    if result["reduction"] is not None:
        typer.echo(
            f"embedding gradient {result['gradient_size']:,.0f} coordinates a step, "
            f"{result['reduction']:,.1f} times smaller than dense DP-SGD's"
        )
    if result["stopped"] is not None:
        steps, planned = result["steps"], result["planned_steps"]
        typer.echo(f"stopped after {steps:,} of {planned:,} planned steps: {result['stopped']}")
    if result["lost_steps"]:
        typer.echo(
            f"{result['lost_steps']:,} steps that interruptions took away stay paid for, within epsilon"
        )
    statement = result["statement"]
    if statement is None:
        typer.echo("NOT PRIVATE: trained without differential privacy")
    else:
        from sparsedp.accounting import PrivacyStatement

        typer.echo(str(PrivacyStatement(**statement)))
    typer.echo(f"run folder: {folder}")
