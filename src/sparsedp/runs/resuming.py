"""Starting and resuming a run, streaming or not."""

from __future__ import annotations

from pathlib import Path

from sparsedp.runs.config import RunConfig
from sparsedp.runs.data_location import locate_data
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.result import Diverged, Result, read_failure, read_result
from sparsedp.runs.streaming import resume_stream, stream
from sparsedp.runs.training import OnProgress, resume_training, train


def start(config: RunConfig, path: str | Path, on_progress: OnProgress | None = None) -> Result:
    """Train a new run into the folder ``path``, period by period where the config has a ``period``."""
    run = train if config.period is None else stream
    return run(config, path, on_progress)


def resume(path: str | Path, on_progress: OnProgress | None = None, *, run_data: str | None = None) -> Result:
    """Finish the run in the folder ``path``; a finished one is only read. ``run_data``: where its data is now, if it moved."""
    folder = RunFolder(path)
    config, finished = folder.config(), read_result(folder)
    if run_data is not None:
        locate_data(folder, run_data)  # and remember it
    if finished is not None:
        return finished
    failed = read_failure(folder)
    if failed is not None:
        raise Diverged(f"{failed}; start a new run")
    finish = resume_training if config.period is None else resume_stream
    return finish(folder, on_progress)
