"""The settings that a run began with: one that goes on has the same."""

from __future__ import annotations

from typing import Any

from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import CONFIG, RunFolder

_RECORD = "private/settings"
_FREE = {"data", "checkpoint_every", "evaluate_every", "physical_batch_size"}
"""What changes no step; that data which moved is the same, its own record says (``data_location``)."""


def record_settings(folder: RunFolder, config: RunConfig) -> None:
    """Note the settings in the run's folder, before anything is charged."""
    folder.write_json(_RECORD, _compared(config))


def check_settings(folder: RunFolder, config: RunConfig) -> None:
    """Refuse settings that differ from those the run began with, by the first of them.

    Of a stream all are compared: its state between two periods holds no account that would differ. Of other runs only that
    they are no stream: a checkpoint compares the rest. A run of an earlier version has no record, and goes on.
    """
    began = folder.read_json(_RECORD) or {}
    now = _compared(config)
    for name in began if began.get("period") is not None else began.keys() & {"period"}:
        if name in now and now[name] != began[name]:
            raise ValueError(
                f"{name}: {CONFIG} has {now[name]}, and the run began with {began[name]}; put that back, or start a new run"
            )


def _compared(config: RunConfig) -> dict[str, Any]:
    """The settings as plain values. A ledger that moved is known by what it holds, so its path does not count."""
    fields = config.model_dump(mode="json", exclude=_FREE)
    return {**fields, "ledger": "its own" if config.ledger is None else "a shared one"}
