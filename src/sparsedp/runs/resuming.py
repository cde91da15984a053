"""Going on with an interrupted run, of whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from sparsedp.runs.folder import RunFolder
from sparsedp.runs.streaming import StreamResult, resume_stream
from sparsedp.runs.training import OnProgress, Result, resume_training


def resume(path: str | Path, on_progress: OnProgress | None = None) -> Result | StreamResult:
    """Finish the run in the folder ``path``; a finished one is only read."""
    folder = RunFolder(path)
    streaming = folder.config().period is not None
    finished = folder.read_json("result")
    if finished is not None:
        return StreamResult(**finished) if streaming else Result(**finished)
    return resume_stream(folder, on_progress) if streaming else resume_training(folder, on_progress)
