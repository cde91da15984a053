"""Jobs that train a run of the command line on several processes."""

from __future__ import annotations

from typing import Any

from sparsedp.distributed import Exchange
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.processes import train_rank
from sparsedp.runs.row_counts import private_rows
from sparsedp.runs.sources import fresh_model, open_data


def trained(exchange: Exchange, folder: str) -> list[int]:
    """Train the run in the folder; gives the steps that this process was told of."""
    seen: list[int] = []
    train_rank(RunFolder(folder), lambda progress: seen.append(progress.step), exchange)
    return seen


def counted(exchange: Exchange, settings: dict[str, Any]) -> dict[str, Any]:
    """The counts from which the rows are chosen."""
    config = RunConfig.parse(settings)
    data = open_data(config.data)
    rows = private_rows(config, fresh_model(config, data), data, exchange)
    assert rows is not None
    return {name: (counts.ids, counts.values) for name, counts in rows.source.items()}
