"""``sparsedp tune``: the best of many settings, chosen privately."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.settings import with_settings
from sparsedp.cli.train import progress_bar, show_result
from sparsedp.core.strict_json import json_text
from sparsedp.runs.plain_yaml import parse_yaml


@refuse_bad_input
@with_settings
def tune(
    out: Annotated[Path, typer.Option(help="Folder for the best run; an interrupted search goes on in it.")],
    settings: dict[str, Any],
    grid: Annotated[
        list[str] | None,
        typer.Option(help="A setting and the values to try: learning_rate=0.1,0.5; may be repeated."),
    ] = None,
    runs: Annotated[
        float | None, typer.Option(help="Runs on average. Default: as many as the grid has points.")
    ] = None,
    law: Annotated[
        str, typer.Option(help="How the number of runs is drawn: geometric or logarithmic (more often few).")
    ] = "geometric",
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Choose settings by private runs; epsilon is the price of the whole search.

    The number of runs is random and not released: keep what this command shows while it runs to yourself.
    """
    from sparsedp.runs.config import RunConfig
    from sparsedp.runs.data_location import fit_to_data
    from sparsedp.runs.folder import RunFolder

    values = read_grid(grid or ())
    config = RunConfig.parse({**{name: each[0] for name, each in values.items()}, **settings})
    twice = [name for name in values if name in settings]
    if twice:
        raise ValueError(f"{twice[0]}: the grid varies it; leave it out here, or take it out of the grid")
    fit_to_data(config)
    from sparsedp.runs.tuning import tune as search

    with progress_bar("tune", quiet=as_json) as on_progress:
        result = search(config, values, out, runs=runs, law=law, on_progress=on_progress)  # type: ignore[arg-type]
    chosen = RunFolder(out).read_json("tuning") or {}
    if as_json:
        typer.echo(json_text({**vars(result), "tuning": chosen}))
        return
    settings_chosen = ", ".join(f"{name} {value}" for name, value in chosen["chosen"].items())
    typer.echo(
        f"chosen: {settings_chosen} (noisy score {chosen['score']:.4f}, its noise has standard deviation "
        f"{chosen['score_std']:.2g})"
    )
    show_result(out, vars(result), as_json)


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each setting: numbers and words with commas between them, or a YAML list."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, _, written = text.partition("=")
        name = name.strip().replace("-", "_")
        listed = written if written.lstrip().startswith("[") else f"[{written}]"
        values = parse_yaml(listed, f"grid: {text[:80]!r}")
        if not name or not values or not isinstance(values, list):
            raise ValueError(f"grid must be SETTING=VALUE,VALUE,..., got {text!r}")
        if name in found:
            raise ValueError(f"grid: {name} is given twice; put all its values into one")
        found[name] = values
    return found
