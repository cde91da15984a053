"""`sparsedp calibrate`: the noise multiplier for an epsilon."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparsedp.cli.account import sampling_rate_of, steps_of
from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.settings import help_of
from sparsedp.core.strict_json import json_text


@refuse_bad_input
def calibrate(
    epsilon: Annotated[float, typer.Option(help="What the whole run may spend.")],
    sampling_rate: Annotated[
        float | None, typer.Option(help="Or give --examples and --expected-batch-size.")
    ] = None,
    examples: Annotated[float | None, typer.Option(help="Examples in the data set.")] = None,
    expected_batch_size: Annotated[
        float | None, typer.Option(help=help_of("expected_batch_size", default=False))
    ] = None,
    steps: Annotated[float | None, typer.Option(help="Or give --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help=help_of("epochs", default=False))] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1 / (10 examples).")] = None,
    algorithm: Annotated[str, typer.Option(help=help_of("algorithm"))] = "dp-sgd",
    noise_ratio: Annotated[float | None, typer.Option(help=help_of("noise_ratio"))] = None,
    rows: Annotated[int | None, typer.Option(help=help_of("rows"))] = None,
    fest_mu: Annotated[float | None, typer.Option(help=help_of("fest_mu"))] = None,
    selection_epsilon: Annotated[float | None, typer.Option(help=help_of("selection_epsilon"))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The smallest noise multiplier with which a run stays within epsilon, for any algorithm."""
    from sparsedp.core.validation import check_count, check_delta, check_epsilon
    from sparsedp.runs.config import RunConfig

    check_epsilon(epsilon)
    given = {
        "noise_ratio": noise_ratio,
        "rows": rows,
        "fest_mu": fest_mu,
        "selection_epsilon": selection_epsilon,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    config = RunConfig.parse({"data": "generated:2", "algorithm": algorithm, "epsilon": epsilon, **settings})
    if examples is not None:
        examples = check_count("examples", examples)
    rate = sampling_rate_of(sampling_rate, examples, expected_batch_size)
    taken = steps_of(steps, epochs, rate)
    if delta is None and examples is None:
        raise ValueError("delta is missing: give --delta, or --examples for 1 / (10 examples)")
    delta = check_delta(config.delta_for(int(examples or 0)) if delta is None else delta)
    from sparsedp.runs.cost import run_cost

    cost = run_cost(config, rate, taken, delta)
    statement = cost.statement(delta)
    if as_json:
        answer: dict[str, Any] = {
            **cost.noise_multipliers,
            "sampling_rate": rate,
            "steps": taken,
            "statement": statement.to_dict(),
        }
        typer.echo(json_text(answer, indent=2))
        return
    for name, value in cost.noise_multipliers.items():
        typer.echo(f"{name}: {value:.6g}")
    typer.echo(f"{algorithm}, sampling rate {rate:.4g}: {statement}")
