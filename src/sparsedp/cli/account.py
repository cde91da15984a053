"""`sparsedp account`: what a run costs, or what a ledger says was spent, and how much is left."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.errors import refuse_bad_input, refuse_special_file
from sparsedp.cli.settings import help_of
from sparsedp.cli.spending import Spending, curve_lines, statement_json
from sparsedp.core.strict_json import json_text
from sparsedp.core.text_files import read_json_object

if TYPE_CHECKING:
    from sparsedp.accounting.events import DpEvent
    from sparsedp.accounting.ledger import Ledger
    from sparsedp.accounting.statement import PrivacyStatement
    from sparsedp.data.schema import Schema


GroupSize = Annotated[int, typer.Option(help="Protect groups of up to so many examples.")]
Adjacency = Annotated[
    str | None,
    typer.Option(
        help="replace-one: for neighbours with one example replaced. Default: that of the run or ledger."
    ),
]
PreparedData = Annotated[
    Path | None,
    typer.Option(
        help="With --ledger and --rows-per-user: the runs' prepared data. Default: that of the run beside it."
    ),
]


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
        float | None,
        typer.Option(
            help="Default: that of the ledger's budget or of the statement beside it, or 1 / (10 examples)."
        ),
    ] = None,
    rows_per_user: Annotated[
        int, typer.Option(help="Protect whole users, each with at most so many rows.")
    ] = 1,
    group_size: GroupSize = 1,
    adjacency: Adjacency = None,
    ledger: Annotated[Path | None, typer.Option(help="Read what was spent from this file.")] = None,
    data: PreparedData = None,
    epsilon: Annotated[float | None, typer.Option(help="Answer with the delta at this epsilon.")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Epsilon at many deltas.")] = False,
    steps_within: Annotated[
        float | None, typer.Option(help="How many more steps fit within this epsilon.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Epsilon of a run from its parameters, or of everything recorded in a ledger."""
    if sum((epsilon is not None, curve, steps_within is not None)) > 1:
        raise ValueError("epsilon, curve and steps_within exclude each other: ask one thing at a time")
    if epsilon is not None and delta is not None:
        raise ValueError("epsilon and delta exclude each other: the answer to one is the other")
    run = (noise_multiplier, sampling_rate, examples, expected_batch_size, steps, epochs)
    book: Ledger | None = None
    if ledger is not None:
        if any(value is not None for value in run):
            raise ValueError("ledger excludes the parameters of a run: it holds them itself")
        book = _read_ledger(ledger)
        spending, step = _recorded(book)
        if rows_per_user != 1 or data is not None:
            spending, step = _for_users(book, spending, step, rows_per_user, data)
        delta = _ledger_delta(book) if delta is None else delta
    else:
        if data is not None:
            raise ValueError("data belongs to --ledger with --rows-per-user")
        spending, step = _planned(*run, rows_per_user, remaining=steps_within is not None)
        delta = _default_delta(examples) if delta is None else delta
    spending = spending.under(adjacency).of_group(group_size)
    if epsilon is not None or curve or steps_within is not None:
        _answer(spending, step, delta, epsilon, steps_within, as_json)
    elif book is not None:
        _show_ledger(book, spending, _needed(delta, ledger), as_json)
    else:
        assert noise_multiplier is not None
        _show_run(spending, noise_multiplier, _needed(delta, ledger), as_json)


def _needed(delta: float | None, ledger: Path | None) -> float:
    """The delta, checked; where there is none, how to give it."""
    from sparsedp.core.validation import check_delta

    if delta is None:
        raise ValueError(
            "delta is missing: give --delta, or --examples for 1 / (10 examples)"
            if ledger is None
            else "delta is missing: the ledger has no budget and no statement beside it; give --delta"
        )
    return check_delta(delta)


def _default_delta(examples: float | None) -> float | None:
    from sparsedp.core.defaults import default_delta
    from sparsedp.core.validation import check_count

    return None if examples is None else float(default_delta(check_count("examples", examples)))


def _ledger_delta(ledger: Ledger) -> float | None:
    """The delta of the ledger's budget, or of the statement of the run whose folder it is in."""
    if ledger.budget is not None:
        return float(ledger.budget[1])
    statement = ledger.path.with_name("statement.json")
    if not statement.is_file():
        return None
    try:
        return float(read_json_object(statement)["delta"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"delta: {statement} is not a privacy statement; give --delta") from None


def _planned(
    noise_multiplier: float | None,
    sampling_rate: float | None,
    examples: float | None,
    expected_batch_size: float | None,
    steps: float | None,
    epochs: float | None,
    rows_per_user: int,
    *,
    remaining: bool,
) -> tuple[Spending, DpEvent]:
    """A run from its parameters, and its step; with `remaining` it may have taken no step yet."""
    from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
    from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
    from sparsedp.accounting.users import user_statement, user_step_event
    from sparsedp.core.validation import check_count, check_positive

    if noise_multiplier is None:
        raise ValueError("noise_multiplier is missing: give --noise-multiplier, or --ledger")
    sigma = check_positive("noise_multiplier", noise_multiplier)
    if examples is not None:
        examples = check_count("examples", examples)
    rate = sampling_rate_of(sampling_rate, examples, expected_batch_size)
    taken = 0 if remaining and steps is None and epochs is None else steps_of(steps, epochs, rate)
    released = f"the model after each of {taken} steps on Poisson batches"
    if remaining:
        released = f"the model after each of the {taken} steps taken and of those to come, on Poisson batches"
    step: DpEvent = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    unit = "example"
    notes: tuple[str, ...] = ()
    if check_count("rows_per_user", rows_per_user) > 1:
        step = user_step_event(sigma, rate, rows_per_user)
        stated = user_statement(0.0, 0.0, rows_per_user, released)
        unit, notes = stated.unit, stated.notes
    events = [(step, taken)] if taken else []
    return Spending(events, ADD_OR_REMOVE_ONE, unit, released, notes=notes), step


def _show_run(spending: Spending, noise_multiplier: float, delta: float, as_json: bool) -> None:
    from sparsedp.accounting.pld.pairs import LARGEST_LOSS

    statement = spending.statement(delta)
    if math.isinf(statement.epsilon):
        ((_, taken),) = spending.events
        raise ValueError(
            f"noise_multiplier of {noise_multiplier:g} protects nothing in {taken} steps: epsilon is above "
            f"{LARGEST_LOSS:g}"
        )
    typer.echo(json_text(statement.to_dict(), indent=2) if as_json else _in_words(statement))


def _in_words(statement: PrivacyStatement) -> str:
    """The statement, and what the best attack can do."""
    return f"{statement}\n{statement.attack_text()}"


def _answer(
    spending: Spending,
    step: DpEvent | None,
    delta: float | None,
    epsilon: float | None,
    steps_within: float | None,
    as_json: bool,
) -> None:
    """Print what was asked beyond the epsilon at one delta."""
    from sparsedp.core.validation import check_epsilon

    if epsilon is not None:
        statement = spending.statement_at(check_epsilon(epsilon))
        typer.echo(json_text(statement_json(statement), indent=2) if as_json else _in_words(statement))
    elif steps_within is not None:
        if step is None:
            raise ValueError("steps_within: the ledger holds no step on Poisson batches to count on with")
        more, statement = spending.more_steps(step, check_epsilon(steps_within), _needed(delta, None))
        if as_json:
            typer.echo(json_text({"more_steps": more, "statement": statement_json(statement)}, indent=2))
        else:
            typer.echo(f"{more:,} more steps like {step} fit; then: {statement}")
    else:
        statements = spending.curve(None if delta is None else _needed(delta, None))
        if as_json:
            typer.echo(json_text([statement_json(each) for each in statements], indent=2))
        else:
            typer.echo("\n".join(curve_lines(statements)))


def sampling_rate_of(rate: float | None, examples: float | None, batch: float | None) -> float:
    """The sampling rate, given or as batch over examples."""
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


def steps_of(steps: float | None, epochs: float | None, rate: float) -> int:
    """The steps, given or of some epochs."""
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


def _for_users(
    ledger: Ledger, spending: Spending, step: DpEvent | None, rows_per_user: int, data: Path | None
) -> tuple[Spending, DpEvent | None]:
    """What an example-level ledger costs a user; refused unless the data's schema proves the cap on a user's rows."""
    from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
    from sparsedp.accounting.users import events_of_users
    from sparsedp.core.validation import check_count
    from sparsedp.data.schema import Schema

    rows = check_count("rows_per_user", rows_per_user)
    if ledger.adjacency != ADD_OR_REMOVE_ONE:
        raise ValueError(f"rows_per_user: the ledger is for {ledger.adjacency} adjacency; leave it out")
    if ledger.unit != "example":
        raise ValueError(f"rows_per_user: the ledger is for the unit {ledger.unit!r} already; leave it out")
    settings = ledger.path.parent / "config.yaml"
    if data is None and settings.exists():
        from sparsedp.runs.text_config import read_config

        data = Path(read_config(settings).data)
    schema = None if data is None or not (data / "schema.json").exists() else Schema.read(data)
    if schema is not None:
        _refuse_other_data(ledger, schema, data)
    cut = None if schema is None else schema.rows_per_user
    if cut is None or cut > rows:
        found = "no data that says so was found" if cut is None else f"{data} was cut to {cut}"
        raise ValueError(
            f"rows_per_user: no user may have more than {rows} rows of the runs' data, and {found}; prepare it with "
            "--user COLUMN --rows-per-user M, and give it with --data"
        )
    notes = (*spending.notes, f"every user's rows were cut to {cut} when the data was prepared")
    of_user = replace(spending, events=events_of_users(spending.events, cut), unit="user", notes=notes)
    return of_user, None if step is None else events_of_users([(step, 1)], cut)[0][0]


def _refuse_other_data(ledger: Ledger, schema: Schema, data: Path | None) -> None:
    """The cap of data that the run beside a ledger was not trained on proves nothing."""
    from sparsedp.runs.data_location import data_record
    from sparsedp.runs.folder import RunFolder

    if data_record(RunFolder(ledger.path.parent)).get("digest") not in (None, schema.digest):
        raise ValueError(f"data: {data} holds other data than the run beside the ledger was trained on")


def _read_ledger(path: Path) -> Ledger:
    from sparsedp.accounting.ledger import Ledger

    refuse_special_file("ledger", path)
    return Ledger.read(path)


def _recorded(ledger: Ledger) -> tuple[Spending, DpEvent | None]:
    """What a ledger holds, and the kind of step that it saw begin last."""
    from sparsedp.accounting.events import MixtureOfGaussiansDpEvent, PoissonSampledDpEvent

    events = ledger.events()
    sampled = [
        event for event, _ in events if isinstance(event, PoissonSampledDpEvent | MixtureOfGaussiansDpEvent)
    ]
    private = all(run.private for run in ledger.runs)
    spending = Spending(
        events, ledger.adjacency, ledger.unit, ledger.released(events), private, ledger.notices
    )
    return spending, sampled[-1] if sampled else None


def _show_ledger(ledger: Ledger, spending: Spending, delta: float, as_json: bool) -> None:
    statement = spending.statement(delta)
    if as_json:
        from sparsedp.accounting.event_json import event_to_json

        spent = {
            "statement": statement_json(statement),
            "ledger": str(ledger.path),
            "budget": dict(zip(("epsilon", "delta"), ledger.budget, strict=True)) if ledger.budget else None,
            "runs": [asdict(run) for run in ledger.runs],
            "events": [{"event": event_to_json(event), "count": count} for event, count in spending.events],
            "reserved_steps": ledger.reserved_steps,
            "notices": list(ledger.notices),
        }
        typer.echo(json_text(spent, indent=2))
        return
    typer.echo(f"Ledger {ledger.path}: {_in_words(statement)}")
    if ledger.budget:
        epsilon, delta = ledger.budget
        protected = f"{ledger.adjacency} adjacency, unit: {ledger.unit}"
        typer.echo(
            f"Budget: epsilon {epsilon:g} at delta {delta:g}, {protected}, for all that this ledger records"
        )
    for run in ledger.runs:
        typer.echo(f"Run {run.name}, began {run.began}{'' if run.private else ' (seeded or without noise)'}")
    for event, count in spending.events:
        typer.echo(f"{count:>12,} x {event}")
    if ledger.reserved_steps:
        typer.echo(
            f"Of these, {ledger.reserved_steps:,} steps were reserved by runs that are active or were interrupted"
        )
