"""``sparsedp train``, ``resume`` and ``evaluate``: click models on prepared data, classifiers on texts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.settings import settings_of, with_settings
from sparsedp.core.strict_json import json_text
from sparsedp.runs.text_config import NOT_OPTIONS, TextConfig

if TYPE_CHECKING:
    from sparsedp.runs import RunConfig
    from sparsedp.runs.training import Progress

train_app = typer.Typer(
    invoke_without_command=True,
    help="Train a click model, or with `text` a text classifier, under differential privacy.",
)
Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]
Nproc = Annotated[
    int | None,
    typer.Option(help="Train on this many processes of this machine, one thread each (see docs/scale.md)."),
]


RunData = Annotated[
    str | None, typer.Option(help="Where the run's own data is now, if it moved; the run remembers it.")
]
Settings = Annotated[
    Path | None, typer.Option(help="YAML file with settings; the options below replace its own.")
]


@train_app.callback()
@refuse_bad_input
@with_settings
def train(
    context: typer.Context,
    settings: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="Folder for the run; must be given.")] = None,
    config: Settings = None,
    nproc: Nproc = None,
    as_json: Json = False,
) -> None:
    """Train a click model, or with `text` a text classifier, under differential privacy."""
    from sparsedp.runs import RunConfig

    if context.invoked_subcommand is not None:
        given = [
            name for name, value in {**settings, "out": out, "config": config}.items() if value is not None
        ]
        if given or as_json:
            first = given[0].replace("_", "-") if given else "json"
            raise ValueError(f"--{first}: options come after the word {context.invoked_subcommand}")
        return
    if out is None:
        raise typer.BadParameter("it must be given", param_hint="--out")
    run_config = RunConfig.parse(settings) if config is None else RunConfig.read(config, **settings)
    _check(run_config, out)
    run_config = _completed(run_config, quiet=as_json, processes=nproc is not None)
    if nproc is not None:
        from sparsedp.runs.processes import train_on_processes

        show_result(out, vars(train_on_processes(run_config, out, nproc, quiet=as_json)), as_json)
        return
    _start(run_config, out, as_json)


@train_app.command("text")
@refuse_bad_input
@settings_of(TextConfig, without=NOT_OPTIONS)
def train_text(
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    settings: dict[str, Any],
    config: Settings = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a text classifier on a Hugging Face encoder under differential privacy."""
    from sparsedp.core.extras import require

    require("transformers", "peft")
    run_config = TextConfig.parse(settings) if config is None else TextConfig.read(config, **settings)
    _check(run_config, out)
    _start(run_config, out, as_json)


def _completed(run_config: RunConfig, *, quiet: bool, processes: bool) -> RunConfig:
    """The config with what it leaves open, which is printed with the reasons."""
    from sparsedp.runs.choosing import completed

    chosen, lines = completed(run_config, processes=processes)
    for line in lines if not quiet else []:
        typer.echo(f"recipe: {line}", err=True)
    return chosen


def _check(run_config: RunConfig, out: Path) -> None:
    """Refuse what can be refused before anything heavy is imported."""
    from sparsedp.runs.data_location import fit_to_data, refuse_among_data
    from sparsedp.runs.folder import RunFolder

    RunFolder(out).refuse_taken()
    fit_to_data(run_config)
    refuse_among_data(run_config, out)


def _start(run_config: RunConfig, out: Path, as_json: bool) -> None:
    from sparsedp.runs import start

    with progress_bar(run_config.method.name, quiet=as_json) as on_progress:
        result = start(run_config, out, on_progress)
    show_result(out, vars(result), as_json)


@refuse_bad_input
def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    run_data: RunData = None,
    nproc: Nproc = None,
    as_json: Json = False,
) -> None:
    """Finish an interrupted run, within its epsilon: steps that were lost are taken from those to come."""
    from sparsedp.runs.data_location import locate_data
    from sparsedp.runs.folder import RunFolder

    folder = RunFolder(run)
    if run_data is not None or folder.read_json("result") is None:
        locate_data(folder, run_data)
    from sparsedp.runs import resume as resume_run

    if nproc is not None:
        from sparsedp.runs.processes import resume_on_processes

        show_result(run, vars(resume_on_processes(run, nproc, quiet=as_json)), as_json)
        return
    with progress_bar(folder.config().method.name, quiet=as_json) as on_progress:
        result = resume_run(run, on_progress)
    show_result(run, vars(result), as_json)


@refuse_bad_input
def train_rank(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    launched: Annotated[
        bool, typer.Option("--launched", help="End when standard input does: `train --nproc` holds it open.")
    ] = False,
) -> None:
    """One process of a run on several: torchrun starts it."""
    if launched:
        from sparsedp.core.starter import end_with_starter

        end_with_starter(AFTER_TORCHRUN_SECONDS)
    from sparsedp.runs import RunFolder
    from sparsedp.runs.processes import train_rank as train_one

    folder, is_root = RunFolder(run), os.environ.get("RANK") == "0"
    with progress_bar(folder.config().method.name, quiet=quiet or not is_root) as on_progress:
        train_one(folder, on_progress)


@refuse_bad_input
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    data: Annotated[
        str | None, typer.Option(help="Other data of the same schema; default: held-out rows.")
    ] = None,
    run_data: RunData = None,
    as_json: Json = False,
) -> None:
    """AUC and log-loss of a trained model."""
    from sparsedp.runs.data_location import locate_data
    from sparsedp.runs.folder import RunFolder

    locate_data(RunFolder(run), run_data)
    from sparsedp.runs.evaluation import evaluate_run

    metrics = evaluate_run(run, data)
    if as_json:
        typer.echo(json_text({name: value for name, value in vars(metrics).items() if value is not None}))
    else:
        accuracy = "" if metrics.accuracy is None else f"accuracy {metrics.accuracy:.4f}, "
        figures = f"{accuracy}AUC {metrics.auc:.4f}, log-loss {shown_log_loss(metrics.log_loss)}"
        figures += f" (constant prediction: {metrics.constant_log_loss:.4f})"
        typer.echo(f"{figures} on {metrics.rows:,} rows")
        if metrics.is_worse_than_constant:
            typer.echo(f"warning: {WORSE}")


AFTER_TORCHRUN_SECONDS = 10.0
"""A process of several ends by itself only where torchrun has not ended it: torchrun would start it again."""


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A rich bar with examples per second and rows per step, and below it what was spent so far."""
    if quiet:
        yield None
        return
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Bar(RichProgress):
        """With a line of its own for the statement, which a column would cut."""

        below = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            if self.below:
                yield Text(self.below)

    columns = [TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    bar = Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
    task = bar.add_task(title, total=None, note="")

    def on_progress(progress: Progress) -> None:
        bar.start()
        note = f"{progress.examples_per_second:,.0f} examples/s"
        if progress.rows is not None:
            note += f", {progress.rows:,.0f} rows/step"
        if progress.spent is not None:
            bar.below = f"spent so far, at most: {progress.spent}"
        bar.update(task, completed=progress.step, total=progress.total, note=note)

    try:
        yield on_progress
    finally:
        if bar.live.is_started:
            bar.stop()


def shown_log_loss(value: float | None) -> str:
    """A log-loss in words; a file holds null where it was not finite."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4f}"


WORSE = (
    "the log-loss is worse than that of predicting the mean rate for everybody: do not use the scores as "
    "probabilities (a higher epsilon, more data or a lower table_learning_rate may help)"
)


def show_result(folder: Path, result: dict[str, Any], as_json: bool) -> None:
    """Print the figures of a finished run and its privacy statement."""
    if as_json:
        typer.echo(json_text(result))
        return
    accuracy = "" if result.get("accuracy") is None else f"accuracy {result['accuracy']:.4f}, "
    constant = result.get("constant_log_loss")
    beside = "" if constant is None else f" (constant prediction: {constant:.4f})"
    log_loss = shown_log_loss(result["log_loss"])
    typer.echo(f"{accuracy}AUC {result['auc']:.4f}, log-loss {log_loss}{beside} on held-out rows")
    if result.get("worse_than_constant"):
        typer.echo(f"warning: {WORSE}")
    if result["reduction"] is not None:
        typer.echo(
            f"embedding gradient {result['gradient_size']:,.0f} coordinates a step, "
            f"{result['reduction']:,.1f} times smaller than dense DP-SGD's"
        )
    if result["stopped"] is not None:
        steps, planned = result["steps"], result["planned_steps"]
        typer.echo(f"stopped after {steps:,} of {planned:,} planned steps: {result['stopped']}")
    if result["lost_steps"]:
        typer.echo(f"{result['lost_steps']:,} steps lost in interruptions stay charged, within epsilon")
    if result.get("calibrated") is False:
        typer.echo(
            "warning: the bias and scale of the output were not fitted (calibration_mu): interruptions have used up "
            "what was reserved for it, so the scores may be too low or too sure"
        )
    statement = result["statement"]
    if statement is None:
        from sparsedp.runs.result import NOT_PRIVATE

        typer.echo(NOT_PRIVATE)
    else:
        from sparsedp.accounting import PrivacyStatement

        stated = PrivacyStatement(**statement)
        typer.echo(f"{stated}\n{stated.attack_text()}")
    typer.echo(f"run folder: {folder}")
