"""Saving and resuming a run, and exporting what may be released."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sparsedp.selection import FEST, AdaFEST, Selection

if TYPE_CHECKING:
    from sparsedp.training.engine import PrivacyEngine

FORMAT = 1


def state_of(engine: PrivacyEngine) -> dict[str, Any]:
    """Model, optimiser, lazy debts, sampler position, streams and account position, as plain values.

    The streams' state is kept for seeded runs only. A private run draws fresh randomness after a resume:
    if it could replay its noise on other data or settings, the difference would show the examples.
    """
    run = engine.run
    with run.unflushed():
        module = dict(run.module.state_dict())
    return {
        "format": FORMAT,
        "terms": asdict(run.terms),
        "rows": _chosen_rows(run.selection) if run.settled else None,
        "module": module,
        "optimizer": run.optimizer.state_dict(),
        "steps_taken": run.optimizer.steps_taken,
        "loader_position": None if run.loader is None else run.loader.position,
        "lazy": None if run.lazy is None else run.lazy.state_dict(),
        "streams": None if engine.source.is_private else engine.source.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "ledger": None if engine.ledger is None else engine.ledger.mark,
    }


def save(engine: PrivacyEngine, path: Path) -> None:
    """Write the state to ``path``."""
    write_state(state_of(engine), path)


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write beside ``path`` and rename: the file is whole or as it was, also when the disk is full."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch's own RuntimeError hides what the disk said
        raise _unwritten(path, partial, error) from error
    os.replace(partial, path)


def write_weights(module: nn.Module, path: Path, *, privacy: str) -> None:
    """Write the weights (safetensors, what they cost in the metadata), whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    partial = path.with_name(path.name + ".partial")
    try:
        save_model(module, str(partial), metadata={"privacy": privacy})
    except (OSError, SafetensorError) as error:
        raise _unwritten(path, partial, error) from error
    os.replace(partial, path)


def _unwritten(path: Path, partial: Path, error: Exception) -> OSError:
    partial.unlink(missing_ok=True)
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    return OSError(f"{path} could not be written: {cause}")


def resume(engine: PrivacyEngine, path: Path) -> None:
    """Load a state into a run that was made private on the same terms."""
    run = engine.run
    if run.optimizer.steps_taken:
        raise ValueError("resume: this run has already taken steps; resume before the first one")
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
        raise ValueError(f"resume: {path} is not a readable checkpoint ({error})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"resume: {path} is not a checkpoint of format {FORMAT}")
    differing = [name for name, value in asdict(run.terms).items() if state["terms"].get(name) != value]
    if differing:
        raise ValueError(
            f"resume: {path} was saved on other terms: "
            + ", ".join(f"{n} {state['terms'].get(n)} there, {getattr(run.terms, n)} here" for n in differing)
        )
    if state["ledger"] is not None:
        if engine.ledger is None:
            raise ValueError(f"resume: {path} was saved with a ledger; give the same ledger")
        engine.ledger.require_mark(state["ledger"])
    run.module.load_state_dict(state["module"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.optimizer.steps_taken = state["steps_taken"]
    if run.loader is not None:
        run.loader.position = state["loader_position"]
    if run.lazy is not None:
        run.lazy.load_state_dict(state["lazy"])
    if state["rows"] is not None:
        run.settle(_with_rows(run.selection, state["rows"]))
    if state["streams"] is not None and not engine.source.is_private:
        engine.source.load_state_dict(state["streams"])
        if run.loader is not None:
            run.loader.reseed(engine.source.sampling.fork(0))
    torch.set_rng_state(state["torch_rng"])


def export(engine: PrivacyEngine, path: Path, *, delta: float, allow_not_private: bool) -> None:
    """Weights and their statement, nothing else. ``state_dict`` pays lazy debts first."""
    statement = engine.statement(delta)
    if not statement.private and not allow_not_private:
        raise ValueError(
            f"export: this run is not private ({'; '.join(statement.notes)}); nothing was written"
        )
    engine.flush()
    write_weights(engine.run.module, path, privacy=str(statement))


def _chosen_rows(selection: Selection) -> dict[str, Any]:
    fest = selection.within if isinstance(selection, AdaFEST) else selection
    if not isinstance(fest, FEST):
        return {}
    return {name: torch.from_numpy(ids) for name, ids in fest.sorted_rows.items()}


def _with_rows(selection: Selection, rows: dict[str, Any]) -> Selection:
    """The selection with its one-off choice as saved: choosing again would cost again."""
    if not rows:
        return selection
    events = selection.one_off_events()
    within = selection.within if isinstance(selection, AdaFEST) else selection
    always_on = getattr(within, "always_on_rows", 1000)
    fest = FEST(
        {name: ids.numpy() for name, ids in rows.items()}, always_on, event=events[0] if events else None
    )
    return replace(selection, within=fest) if isinstance(selection, AdaFEST) else fest
