"""`sparsedp account`: what a run costs, or what a ledger says was spent."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input, refuse_special_file
from sparsedp.cli.settings import help_of
from sparsedp.core.strict_json import json_text

if TYPE_CHECKING:
    from sparsedp.accounting.statement import PrivacyStatement


@refuse_bad_input
def account(
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Effective noise multiplier of a step.")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Or give --examples and --expected-batch-size.")
    ] = None,
    examples: Annotated[float | None, typer.Option(help="Examples in the data set.")] = None,
    expected_batch_size: Annotated[
        float | None, typer.Option(help=help_of("expected_batch_size", default=False))
    ] = None,
    steps: Annotated[float | None, typer.Option(help="Or give --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help=help_of("epochs", default=False))] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: the ledger's, or 1 / (10 examples) if these are given.")
    ] = None,
    rows_per_user: Annotated[
        int, typer.Option(help="Protect whole users, each with at most so many rows.")
    ] = 1,
    ledger: Annotated[Path | None, typer.Option(help="Read what was spent from this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Epsilon of a run from its parameters, or of everything recorded in a ledger."""
    if ledger is not None:
        run = (noise_multiplier, sampling_rate, examples, expected_batch_size, steps, epochs)
        if any(value is not None for value in run) or rows_per_user != 1:
            raise ValueError("ledger excludes the parameters of a run: it holds them itself")
        _show_ledger(ledger, delta, as_json)
        return
    statement = _statement(
        noise_multiplier, sampling_rate, examples, expected_batch_size, steps, epochs, delta, rows_per_user
    )
    typer.echo(json_text(statement.to_dict(), indent=2) if as_json else str(statement))


def _statement(
    noise_multiplier: float | None,
    sampling_rate: float | None,
    examples: float | None,
    expected_batch_size: float | None,
    steps: float | None,
    epochs: float | None,
    delta: float | None,
    rows_per_user: int,
) -> PrivacyStatement:
    from sparsedp.accounting.calibration import epsilon_of
    from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
    from sparsedp.accounting.pld.pairs import LARGEST_LOSS
    from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
    from sparsedp.accounting.users import user_statement, user_step_event
    from sparsedp.core.defaults import default_delta
    from sparsedp.core.validation import check_count, check_delta, check_positive

    if noise_multiplier is None:
        raise ValueError("noise_multiplier is missing: give --noise-multiplier, or --ledger")
    sigma = check_positive("noise_multiplier", noise_multiplier)
    if examples is not None:
        examples = check_count("examples", examples)
    rate = _sampling_rate(sampling_rate, examples, expected_batch_size)
    taken = _steps(steps, epochs, rate)
    if delta is None:
        if examples is None:
            raise ValueError("delta is missing: give --delta, or --examples for 1 / (10 examples)")
        delta = default_delta(examples)
    delta = check_delta(delta)
    released = f"the model after each of {taken} steps on Poisson batches"
    for_users = check_count("rows_per_user", rows_per_user) > 1
    step = (
        user_step_event(sigma, rate, rows_per_user)
        if for_users
        else PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    )
    spent = epsilon_of([(step, taken)], delta)
    if math.isinf(spent):
        raise ValueError(
            f"noise_multiplier of {sigma:g} protects nothing in {taken} steps: epsilon is above {LARGEST_LOSS:g}"
        )
    if for_users:
        return user_statement(spent, delta, rows_per_user, released)
    return PrivacyStatement(
        epsilon=spent,
        delta=delta,
        adjacency=ADD_OR_REMOVE_ONE,
        unit="example",
        released=released,
    )


def _sampling_rate(rate: float | None, examples: float | None, batch: float | None) -> float:
    from sparsedp.core.validation import check_count, check_rate

    if rate is not None:
        if batch is not None:
            raise ValueError(
                "sampling_rate and expected_batch_size exclude each other: the rate is expected_batch_size / examples"
            )
        return check_rate("sampling_rate", rate)
    if examples is None or batch is None:
        raise ValueError(
            "sampling_rate is missing: give --sampling-rate, or --examples and --expected-batch-size"
        )
    batch = check_count("expected_batch_size", batch)
    if batch > examples:
        raise ValueError(
            f"expected_batch_size must be at most examples: {batch} of {examples} would be a sampling rate above 1"
        )
    return batch / examples


def _steps(steps: float | None, epochs: float | None, rate: float) -> int:
    from sparsedp.core.steps import steps_in, steps_per_epoch
    from sparsedp.core.validation import MOST_RELEASES, check_positive, check_releases

    if steps is not None and epochs is not None:
        raise ValueError(
            "steps and epochs exclude each other: an epoch is 1 / sampling_rate steps, rounded up"
        )
    if steps is not None:
        return check_releases("steps", steps, minimum=1)
    if epochs is None:
        raise ValueError("steps is missing: give --steps or --epochs")
    if check_positive("epochs", epochs) / rate > MOST_RELEASES:
        raise ValueError(f"epochs of {epochs:g} are too many: more than {MOST_RELEASES:g} steps")
    return steps_in(epochs, steps_per_epoch(rate))


def _show_ledger(path: Path, delta: float | None, as_json: bool) -> None:
    from sparsedp.accounting.ledger import Ledger

    refuse_special_file("ledger", path)
    ledger = Ledger.read(path)
    statement = ledger.statement(delta)
    events = ledger.events()
    if as_json:
        from sparsedp.accounting.event_json import event_to_json

        stated = statement.to_dict()
        if math.isinf(statement.epsilon):  # JSON has no infinity
            stated["epsilon"] = "inf"
        spent = {
            "statement": stated,
            "ledger": str(path),
            "budget": dict(zip(("epsilon", "delta"), ledger.budget, strict=True)) if ledger.budget else None,
            "runs": [asdict(run) for run in ledger.runs],
            "events": [{"event": event_to_json(event), "count": count} for event, count in events],
            "reserved_steps": ledger.reserved_steps,
            "notices": list(ledger.notices),
        }
        typer.echo(json_text(spent, indent=2))
        return
    typer.echo(f"Ledger {path}: {statement}")
    if ledger.budget:
        typer.echo(f"Budget: epsilon {ledger.budget[0]:g} at delta {ledger.budget[1]:g}")
    for run in ledger.runs:
        typer.echo(f"Run {run.name}, began {run.began}{'' if run.private else ' (seeded or without noise)'}")
    for event, count in events:
        typer.echo(f"{count:>12,} x {event}")
    if ledger.reserved_steps:
        typer.echo(
            f"Of these, {ledger.reserved_steps:,} steps were reserved by runs that are active or were interrupted"
        )
