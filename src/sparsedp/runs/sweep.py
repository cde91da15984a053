"""Sweeps: many runs over a grid of settings, in parallel, resumable, gathered into one table."""

from __future__ import annotations

import hashlib
import itertools
import os
import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl

from sparsedp.accounting import BudgetExceeded
from sparsedp.core.cores import available_cores
from sparsedp.core.durable import replace_file
from sparsedp.runs.config import RunConfig
from sparsedp.runs.data_location import refuse_among_data
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.plain_yaml import read_yaml
from sparsedp.runs.result import Diverged, read_result

RESULTS = "results.parquet"
_FIGURES = {
    "auc": "auc",
    "log_loss": "log_loss",
    "constant_log_loss": "constant_log_loss",
    "gradient_size": "gradient_size",
    "reduction": "reduction",
    "rows_per_step": "rows",
    "seconds": "seconds",
    "examples_per_second": "examples_per_second",
    "steps": "steps",
    "planned_steps": "planned_steps",
    "lost_steps": "lost_steps",
}
"""Columns and what a result calls them; the column "rows" is the setting: how many a rule keeps."""
MEASURED = (*_FIGURES, "spent_epsilon")
"""The columns of a sweep's results that were measured; the others, but for "run", are settings."""


@dataclass(frozen=True)
class Sweep:
    """Settings common to all runs, and the grids whose products the runs are."""

    base: Mapping[str, Any]
    grids: Sequence[Mapping[str, Sequence[Any]]]
    """Each grid maps fields of ``RunConfig`` to the values they take."""

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """From a YAML file with ``base`` (a mapping) and ``grid`` (a mapping of lists, or a list of such)."""
        content = read_yaml(path)
        if not isinstance(content, dict) or set(content) != {"base", "grid"}:
            raise ValueError(f"{path} must hold the two mappings 'base' and 'grid'")
        grids = content["grid"] if isinstance(content["grid"], list) else [content["grid"]]
        for name, mapping in [("base", content["base"] or {}), *(("grid", grid) for grid in grids)]:
            if not isinstance(mapping, dict):
                raise ValueError(f"{path}: {name} must be a mapping, got {reprlib.repr(mapping)}")
        for grid in grids:
            for name, values in grid.items():
                if not isinstance(values, list):
                    raise ValueError(
                        f"{path}: grid value of {name} must be a list, got {reprlib.repr(values)}"
                    )
        return cls(content["base"] or {}, grids)

    def with_base(self, settings: Mapping[str, Any]) -> Sweep:
        """The same sweep with some settings of its base replaced; those that a grid varies are refused."""
        for name in settings:
            if any(name in grid for grid in self.grids):
                raise ValueError(f"{name}: the grid varies it; leave it out here, or take it out of the grid")
        return Sweep({**self.base, **settings}, self.grids)

    def configs(self) -> list[RunConfig]:
        """Every run of the sweep, each once."""
        by_name = {}
        for grid in self.grids:
            for values in itertools.product(*grid.values()):
                config = RunConfig.parse({**self.base, **dict(zip(grid, values, strict=True))})
                by_name[run_name(config)] = config
        return list(by_name.values())


def run_name(config: RunConfig) -> str:
    """A folder name that is the same for the same settings."""
    name = (config.algorithm or "recipe").replace("+", "-plus")
    return f"{name}-{hashlib.sha256(config.to_yaml().encode()).hexdigest()[:12]}"


def sweep(
    plan: Sweep, out: str | Path, jobs: int = 1, on_progress: Callable[[int, int], None] | None = None
) -> pl.DataFrame:
    """Run what is missing and return all results, one row for each run; they are also in ``results.parquet``.

    Runs that are finished are not run again, and interrupted ones resume from their checkpoints. A run that
    epsilon or the ledger's budget leaves not a single step, or that diverges, is left out, with a warning.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    out = Path(out)
    configs = plan.configs()
    for config in configs:
        refuse_among_data(config, out / "runs" / run_name(config))
    (out / "runs").mkdir(parents=True, exist_ok=True)
    threads = max(1, available_cores() // jobs)
    for done, refusal in enumerate(_completed(configs, out / "runs", jobs, threads), start=1):
        if refusal is not None:
            warnings.warn(refusal, stacklevel=2)
        if on_progress is not None:
            on_progress(done, len(configs))
    table = gather(configs, out / "runs")
    replace_file(out / RESULTS, table.write_parquet)
    return table


def _completed(configs: list[RunConfig], folder: Path, jobs: int, threads: int) -> Iterator[str | None]:
    """Finish run after run; yield for each why it could not take a step, or None."""
    if jobs == 1:
        for config in configs:
            yield _ensure(config, folder / run_name(config), threads)
        return
    # Spawned, not forked: a forked copy of a noise stream would repeat its noise.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_exit_with_parent) as pool:
        waiting = [pool.submit(_ensure, config, folder / run_name(config), threads) for config in configs]
        for future in as_completed(waiting):
            yield future.result()


def _exit_with_parent() -> None:
    """End a worker whose sweep was killed: it would wait forever, or write to the files of the next sweep."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _ensure(config: RunConfig, path: Path, threads: int) -> str | None:
    """Start, resume or reuse one run; return why it could not take a single step, or None."""
    import torch

    from sparsedp.runs.resuming import resume, start

    torch.set_num_threads(min(threads, torch.get_num_threads()))  # fewer where OMP_NUM_THREADS says so
    folder = RunFolder(path)
    if folder.read_json("result") is not None:
        return None
    try:
        if folder.has_config:
            resume(path)
        else:
            start(config, path)
    except (BudgetExceeded, Diverged) as refusal:
        return f"{path.name}: {refusal}"
    return None


def gather(configs: Sequence[RunConfig], folder: Path) -> pl.DataFrame:
    """Settings and figures of finished runs as one table."""
    records = []
    for config in configs:
        run = RunFolder(folder / run_name(config))
        if read_result(run) is not None:
            result = run.read_json("result") or {}
            chosen = run.config().model_dump(mode="json")
            settings = {k: v for k, v in chosen.items() if not isinstance(v, dict)}
            figures = {column: result.get(name) for column, name in _FIGURES.items()}
            statement = result.get("statement") or {}
            records.append(
                {
                    **settings,
                    "model": run.config().model,
                    **figures,
                    "spent_epsilon": statement.get("epsilon"),
                    "run": run_name(config),
                }
            )
    return pl.DataFrame(records, infer_schema_length=None)
