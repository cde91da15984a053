"""``sparsedp predict``: a trained model's predictions for a file of new rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input, refuse_special_file

if TYPE_CHECKING:
    from sparsedp.runs.scores import Scored

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the run's own model (package.module:Name): this runs its code."),
]


@refuse_bad_input
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or an exported one.")],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input", help="CSV, TSV (plain, gzip, zstd), Parquet or Criteo lines, with or without label."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Parquet, CSV or TSV file to write; - prints CSV.")],
    copied: Annotated[
        list[str] | None,
        typer.Option("--id", help="A column to copy beside the predictions (repeat for more)."),
    ] = None,
    separator: Annotated[str | None, typer.Option(help="Default: tab for .tsv, else comma.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be read.")
    ] = False,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the probability of label 1 for every row of a file, in its order; of texts, that of every label."""
    refuse_special_file("input", input_file)
    if not input_file.exists():
        raise ValueError(f"input: there is no file {input_file}")
    if _is_text_run(run):
        if copied or separator is not None or strict:
            raise ValueError("id, separator and strict are for click data; this run is on texts")
        _predict_texts(run, input_file, out, as_json)
        return
    from sparsedp.data.new_rows import NewRows
    from sparsedp.runs.model_folder import load
    from sparsedp.runs.scores import STDOUT, check_out, predict_file

    check_out(out, input_file)
    model = load(run, trust=trust)
    cut = "\t" if separator == "\\t" else separator
    rows = NewRows.of(input_file, model.encoding, copied=tuple(dict.fromkeys(copied or ())), separator=cut)
    if rows.ignored:
        typer.echo(f"ignored columns: {', '.join(rows.ignored)}", err=True)
    from sparsedp.cli.prepare import byte_progress

    with byte_progress("rows", input_file.stat().st_size) as advance:
        scored = predict_file(model, rows, out, strict=strict, progress=advance)
    _report(scored, out, model.privacy, as_json, to_error=out == STDOUT)


def _is_text_run(run: Path) -> bool:
    from sparsedp.runs.folder import RunFolder
    from sparsedp.runs.text_config import TextConfig

    return RunFolder(run).has_config and isinstance(RunFolder(run).config(), TextConfig)


def _predict_texts(run: Path, input_file: Path, out: Path, as_json: bool) -> None:
    from sparsedp.core.extras import require
    from sparsedp.runs.folder import RunFolder
    from sparsedp.runs.model_folder import read_statement
    from sparsedp.runs.result import NOT_PRIVATE
    from sparsedp.runs.scores import STDOUT, Scored
    from sparsedp.runs.text_scores import predict_texts

    require("transformers", "peft")
    texts = predict_texts(RunFolder(run), input_file, out)
    statement = read_statement(run)
    privacy = NOT_PRIVATE if statement is None else str(statement)
    _report(Scored(texts, 0, ()), out, privacy, as_json, to_error=out == STDOUT)


def _report(scored: Scored, out: Path, privacy: str, as_json: bool, *, to_error: bool) -> None:
    """Print what was predicted, and the rows without a prediction on standard error."""
    if scored.unreadable:
        typer.echo(f"{scored.unreadable:,} rows cannot be read and have no prediction:", err=True)
        for line, reason in scored.examples:
            typer.echo(f"  line {line}: {reason}", err=True)
    if as_json:
        summary = {"out": str(out), "rows": scored.rows, "unreadable": scored.unreadable, "privacy": privacy}
        typer.echo(json.dumps(summary), err=to_error)
        return
    typer.echo(f"{out}: {scored.rows:,} rows", err=to_error)
    typer.echo(f"the model: {privacy}", err=to_error)
