"""`sparsedp plan`: noise, threshold and gradient size of a run before any data is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.settings import help_of
from sparsedp.core.strict_json import json_text

if TYPE_CHECKING:
    from rich.table import Table

    from sparsedp.core.tables import TableShape
    from sparsedp.planning.planner import Plan
    from sparsedp.planning.users import UserPlan


def _setting(name: str, *, default: bool = True) -> Any:
    """An option that means what the run's setting of the same name does."""
    return typer.Option(help=help_of(name, algorithms=False, default=default))


def _data_setting(name: str) -> Any:
    """The same of a run on --data."""
    return typer.Option(help=f"With --data: {help_of(name)}")


DataToTrain = Annotated[
    str | None,
    typer.Option(
        help="Prepared data (or generated:ROWS): print what `train` would choose for it, with reasons."
    ),
]
OneTable = Annotated[
    list[str] | None,
    typer.Option(help="ROWSxDIM, ROWSxDIMxVALUES or NAME=ROWSxDIM; once for each table."),
]
AllTables = Annotated[
    str | None, typer.Option(help="`criteo`, or a JSON file: a list of {rows, dim, values, name}.")
]
GradientSize = Annotated[
    float | None, typer.Option(help="Embedding coordinates with noise in a step, at most.")
]
FestRows = Annotated[
    int | None, typer.Option(help="Rows that FEST selects. Default: as many as fit the same gradient size.")
]
FestMu = Annotated[
    float | None,
    typer.Option(help="Gaussian-DP parameter of FEST's top-k. Default: by the number of examples."),
]
DenseParameters = Annotated[
    int | None, typer.Option(help="Trainable coordinates outside the tables. Default: 0.")
]
Users = Annotated[
    int | None, typer.Option(help="Compare two ways to protect users too, of whom there are so many.")
]
RowsPerUser = Annotated[
    int | None, typer.Option(help="With --users: the rows of each. With --unit user: as for `train`.")
]
NEEDS_DATA = {
    "algorithm": "is for a recipe, give --data too; a plan without data compares three",
    "unit": "is for a recipe, give --data too; a plan without data has --users and --rows-per-user",
    "user_sampling": "is for a recipe, give --data too; a plan without data compares both",
}
"""Options that a plan without data does not take, and why."""
OF_A_RECIPE = (*NEEDS_DATA, "rows_per_user")
"""Options of a recipe that `train` takes too."""


@refuse_bad_input
def plan(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the whole run.")],
    data: DataToTrain = None,
    algorithm: Annotated[
        str | None, typer.Option(help="With --data: the recipe for this one. Default: the recipe's.")
    ] = None,
    unit: Annotated[str | None, _data_setting("unit")] = None,
    user_sampling: Annotated[str | None, _data_setting("user_sampling")] = None,
    examples: Annotated[float | None, typer.Option(help="Examples in the data set.")] = None,
    expected_batch_size: Annotated[float | None, _setting("expected_batch_size", default=False)] = None,
    epochs: Annotated[float | None, _setting("epochs", default=False)] = None,
    delta: Annotated[float | None, _setting("delta")] = None,
    table: OneTable = None,
    tables: AllTables = None,
    gradient_size: GradientSize = None,
    false_positives: Annotated[float | None, _setting("false_positives")] = None,
    threshold: Annotated[float | None, _setting("threshold")] = None,
    noise_ratio: Annotated[float | None, _setting("noise_ratio")] = None,
    contribution_norm: Annotated[float | None, _setting("contribution_norm")] = None,
    always_on_rows: Annotated[int | None, _setting("always_on_rows")] = None,
    fest_rows: FestRows = None,
    fest_mu: FestMu = None,
    dense_parameters: DenseParameters = None,
    users: Users = None,
    rows_per_user: RowsPerUser = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan a private run: noise multipliers, threshold and gradient size, for AdaFEST, FEST and DP-SGD."""
    given = {
        name: value for name, value in context.params.items() if value is not None and value not in ([], ())
    }
    given.pop("as_json")
    if data is not None:
        _recipe_for(given, as_json)
        return
    for name, reason in NEEDS_DATA.items():
        if name in given:
            raise ValueError(f"{name}: {reason}")
    for name in ("examples", "expected_batch_size"):
        if context.params[name] is None:
            raise ValueError(f"{name}: it must be given, or --data for a recipe")
    from sparsedp.planning.planner import plan as make_plan

    users_given = given.pop("users", None), given.pop("rows_per_user", None)
    shapes = _tables(given.pop("table", []), given.pop("tables", None))
    made = make_plan(**given, tables=shapes)
    _show_both(made, _users(made, delta, *users_given), as_json)


def _show_both(made: Plan, for_users: UserPlan | None, as_json: bool) -> None:
    """Print a plan and, where it was asked for, that of the same run for users."""
    if as_json:
        both = {} if for_users is None else {"users": for_users.to_dict()}
        typer.echo(json_text({**made.to_dict(), **both}, indent=2))
        return
    _show(made)
    if for_users is not None:
        _show_users(for_users)


def _users(made: Plan, delta: float | None, users: int | None, rows_per_user: int | None) -> UserPlan | None:
    """The same run for users, where they are asked for."""
    from sparsedp.planning.users import plan_users

    if users is None and rows_per_user is None:
        return None
    if users is None or rows_per_user is None:
        raise ValueError("users and rows_per_user belong together: give both, or neither")
    return plan_users(
        epsilon=made.statement.epsilon,
        delta=delta,
        users=users,
        rows_per_user=rows_per_user,
        expected_batch_size=made.expected_batch_size,
        epochs=made.epochs,
    )


def _recipe_for(given: dict[str, Any], as_json: bool) -> None:
    """Print the recipe of a run on this data."""
    if "users" in given:
        raise ValueError("users: with --data they are counted; give --unit user")
    others = [name for name in given if name not in ("data", "epsilon", "delta", *OF_A_RECIPE)]
    if others:
        raise ValueError(
            f"{others[0]}: with --data the recipe chooses; give it to train, or leave --data out"
        )
    from sparsedp.runs.choosing import plan_for

    data, epsilon = given.pop("data"), given["epsilon"]
    chosen = plan_for(data, **given)
    if as_json:
        typer.echo(json_text({**chosen.recipe.to_dict(), "settings": chosen.config.model_dump(mode="json")}))
        return
    config = chosen.config
    typer.echo(
        f"Recipe for {data} at epsilon {epsilon:g}, delta {chosen.delta:.3g} (add-or-remove-one "
        f"{config.unit}; released: {'the final model only' if config.method.lazy_noise else 'the model after every step'})"
    )
    typer.echo("\n".join(chosen.lines()))
    named = ("delta", *OF_A_RECIPE)
    asked = "".join(f" --{name.replace('_', '-')} {given[name]}" for name in named if name in given)
    typer.echo(
        f"train with it: sparsedp train --data {config.data} --epsilon {epsilon:g}{asked} --out FOLDER"
    )


def _tables(written: list[str], source: str | None) -> list[TableShape]:
    from sparsedp.planning.tables import criteo_tables, parse_table, read_tables

    if written and source is not None:
        raise ValueError("table and tables exclude each other: give the tables in one way")
    if source is None:
        return [parse_table(text) for text in written]
    return list(criteo_tables() if source == "criteo" else read_tables(Path(source)))


def _show(made: Plan) -> None:
    from rich.console import Console

    console = Console(markup=False)
    console.print(f"Plan for {made.statement}", highlight=False)
    console.print(
        f"{made.examples:,} examples, Poisson batches of {made.expected_batch_size:,} in expectation "
        f"(sampling rate {made.sampling_rate:.4g}), {made.steps:,} steps",
        highlight=False,
    )
    console.print(_methods(made))
    console.print(_adafest(made))
    console.print(_per_table(made))
    console.print(
        "Gradient sizes are embedding coordinates with noise in one step. AdaFEST's is an upper bound in "
        "expectation that holds for any data; which touched rows survive is not known before data is read.",
        style="dim",
    )


def _show_users(made: UserPlan) -> None:
    """Both ways to protect users."""
    rows, length = made.rows_per_user, f"{made.break_even:.3g}"
    typer.echo(f"To protect {made.users:,} users of {rows:,} rows instead: {made.statement}")
    typer.echo(
        f"  draw users ({made.expected_users:,.4g} a step): noise multiplier {made.user_noise_multiplier:.4f} "
        "times the clipping norm of a user's summed gradient"
    )
    typer.echo(
        f"  draw rows ({made.expected_rows:,} a step): noise multiplier {made.row_noise_multiplier:.4f} "
        "times the clipping norm of a row's gradient"
    )
    typer.echo(
        f"  Drawing users has less noise where a user's sum is less than {length} times as long as a row's gradient "
        f"(unrelated rows: {math.sqrt(rows):.3g} times, equal rows: {rows:,}). Better: {made.better}"
    )


def _methods(made: Plan) -> Table:
    from rich.table import Table

    fest = made.fest
    shown = Table("", "AdaFEST", "FEST", "DP-SGD", title="Three ways to spend it", title_justify="left")
    rows = [
        (
            "noise multiplier of the gradient",
            made.gradient_noise_multiplier,
            fest.noise_multiplier,
            made.dpsgd.noise_multiplier,
        ),
        ("gradient size", made.gradient_size, fest.gradient_size, made.dpsgd.gradient_size),
        ("reduction against DP-SGD", made.reduction, fest.reduction, 1.0),
        ("gradient it may lose, FEST eq. (2)", made.largest_truncation, fest.largest_truncation, None),
    ]
    formats = ("{:.4f}", "{:,.0f}", "{:,.1f}x", "{:.3%}")
    for (name, *values), form in zip(rows, formats, strict=True):
        shown.add_row(name, *("-" if value is None else form.format(value) for value in values))
    shown.add_row(
        "what the selection costs",
        f"noise +{made.gradient_noise_multiplier / made.noise_multiplier - 1:.2%}",
        f"noise +{fest.price:.2%}",
        "nothing",
    )
    return _right_aligned(shown)


def _adafest(made: Plan) -> Table:
    from rich.table import Table

    shown = Table("AdaFEST", "", title_justify="left")
    share = made.count_half / made.expected_batch_size
    for name, value in [
        ("noise multiplier of a step, effective", f"{made.noise_multiplier:.4f}"),
        ("noise multiplier of the contribution map (sigma1)", f"{made.map_noise_multiplier:.4f}"),
        ("noise multiplier of the gradient (sigma2)", f"{made.gradient_noise_multiplier:.4f}"),
        ("contribution norm, C1", f"{made.contribution_norm:.4f}"),
        ("threshold, tau", f"{made.threshold:.4f}"),
        ("false-positive rows in a step, expected", f"{made.false_positives:,.4g}"),
        ("gradient size: always-on tables", f"{made.always_on_size:,}"),
        ("gradient size: false positives", f"{made.false_positive_size:,.0f}"),
        ("gradient size: touched rows that survive, at most", f"{made.touched_size_bound:,.0f}"),
        ("examples to survive with probability 1/2", f"{made.count_half:,.1f} ({share:.2%} of a batch)"),
        ("examples to survive with probability 0.95", f"{made.count_95:,.1f}"),
        (f"FEST beside it: {made.fest.rows:,} rows, mu", f"{made.fest.mu:g}"),
        ("FEST: noise on a row's count in the data set", f"{made.fest.histogram_std:,.1f}"),
    ]:
        shown.add_row(name, value)
    return _right_aligned(shown)


def _per_table(made: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(
        "table",
        "rows",
        "dim",
        "values",
        "false pos.",
        "touched at most",
        "row noise, C2/B",
        title_justify="left",
    )
    for planned in made.tables:
        table, noise = planned.table, f"{planned.row_noise:.3f}"
        selected = (
            ("always", "on")
            if planned.always_on
            else (f"{planned.false_positives:.3g}", f"{planned.touched_bound:,.1f}")
        )
        shown.add_row(
            escape(table.name), f"{table.rows:,}", str(table.dim), str(table.values), *selected, noise
        )
    return _right_aligned(shown)


def _right_aligned(shown: Table) -> Table:
    for column in shown.columns[1:]:
        column.justify = "right"
    return shown
