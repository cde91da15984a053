"""``sparsedp demo``: the main trainer on generated click data, in a few minutes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.train import progress_bar, shown_log_loss
from sparsedp.core.criteo import BATCH_SIZE, VOCABULARY_SIZES
from sparsedp.core.strict_json import json_text

MOST_ROWS = 10**9
COMPARED = ("non-private", "dp-sgd", "adafest")
SETTINGS: dict[str, Any] = {
    "epochs": 1.0,
    "expected_batch_size": BATCH_SIZE,
    "max_grad_norm": 5.0,
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "table_optimizer": "sgd",
    "table_learning_rate": 25.0,
    "evaluate_every": 40,
    "model_options": {
        "hidden": [128, 64],
        "dims": [4] * len(VOCABULARY_SIZES),
    },  # small enough for a few minutes on two cores
}


@refuse_bad_input
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and report.html.")] = Path("demo"),
    rows: Annotated[int, typer.Option(help="Generated clicks.")] = 1_000_000,
    epsilon: Annotated[float, typer.Option(help="Budget of both private runs.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Train on generated clicks without privacy, with DP-SGD and with DP-AdaFEST at the same epsilon."""
    from sparsedp.core.validation import check_count, check_epsilon
    from sparsedp.report import write_report
    from sparsedp.runs import ALGORITHMS, RunConfig, train

    rows, epsilon = check_count("rows", rows, maximum=MOST_ROWS), check_epsilon(epsilon)
    results = {}
    for algorithm in COMPARED:
        budget = {"epsilon": epsilon} if ALGORITHMS[algorithm].private else {}
        config = RunConfig.parse({"data": f"generated:{rows}", "algorithm": algorithm, **SETTINGS, **budget})
        folder = out / algorithm
        if folder.exists():
            shutil.rmtree(folder)
        with progress_bar(algorithm, quiet=as_json) as on_progress:
            results[algorithm] = train(config, folder, on_progress)
    report = write_report([out / algorithm for algorithm in COMPARED], out / "report.html")
    if as_json:
        typer.echo(json_text({name: vars(result) for name, result in results.items()}))
        return
    _show(results)
    typer.echo(f"report: {report}")


def _show(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from sparsedp.accounting import PrivacyStatement

    table = Table(title="generated clicks, held-out rows")
    for column in ("algorithm", "AUC", "log-loss", "gradient size", "smaller", "examples/s"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, result in results.items():
        size = "" if result.gradient_size is None else f"{result.gradient_size:,.0f}"
        smaller = "" if result.reduction is None else f"{result.reduction:,.0f}x"
        speed = f"{result.examples_per_second:,.0f}"
        table.add_row(name, f"{result.auc:.4f}", shown_log_loss(result.log_loss), size, smaller, speed)
    Console().print(table)
    for name, result in results.items():
        if result.statement is not None:
            typer.echo(f"{name}: {PrivacyStatement(**result.statement)}")
