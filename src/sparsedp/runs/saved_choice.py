"""What a run has chosen before its first step, rows and shares of reads, on disk as soon as it is chosen.

Each choice is paid for before its noise is drawn. A run that dies before its first checkpoint takes up what it
has paid for; to choose again would cost again, and a run that dies often would have no budget left for a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsedp.selection import Selection
from sparsedp.training import PrivacyEngine
from sparsedp.training.checkpoint import load_file, whole_state, write_state


def choose_or_take(engine: PrivacyEngine, path: Path) -> bool:
    """Make the one-off choices of a run and write them to ``path``, or take those that are there; False if it has none.

    Guarantee: what is taken was released by this run and is on its ledger; to use it again is post-processing. A
    choice of other settings or another ledger is refused. One that is damaged, or that a kill took away between its
    payment and its file, is made, and charged, again.
    """
    if not engine.session.selection.one_off_events():
        engine.session.choose_once()
        return False
    if path.exists() and (state := _take(engine, path)) is not None:
        with whole_state(path):
            engine.session.take_choice(Selection.from_state_dict(state["chosen"]))
        return True
    engine.session.choose_once()
    _write(engine, path, shares=None)
    return True


def shares_or_take(engine: PrivacyEngine, path: Path, find: Callable[[], Sequence[float]]) -> Sequence[float]:
    """Find the shares of reads, which ``find`` pays for, and write them to ``path``; or take those that are there.

    Called after ``choose_or_take``, whose choice stays in the file. Guarantee: the same.
    """
    if path.exists() and (state := _take(engine, path)) is not None and state.get("shares") is not None:
        with whole_state(path):
            return [float(share) for share in state["shares"]]
    shares = find()
    _write(engine, path, shares)
    return shares


def _settings(engine: PrivacyEngine) -> dict[str, object]:
    return {"stated": engine.session.stated.state_dict(), "private": engine.source.is_private}


def _write(engine: PrivacyEngine, path: Path, shares: Sequence[float] | None) -> None:
    selection = engine.session.selection
    state = {
        **_settings(engine),
        "ledger": None if engine.ledger is None else engine.ledger.mark,
        "chosen": selection.state_dict() if selection.one_off_events() else None,
        "shares": None if shares is None else list(shares),
        "streams": None if engine.source.is_private else engine.source.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }
    write_state(state, path)


def _take(engine: PrivacyEngine, path: Path) -> dict[str, Any] | None:
    """What was saved, with the engine's streams where they were; None if the file is damaged."""
    try:
        state: dict[str, Any] = load_file(path)
    except ValueError as damaged:
        warnings.warn(
            f"{damaged}; what is released before the first step is chosen, and paid for, again", stacklevel=3
        )
        return None
    with whole_state(path):
        if any(state[name] != value for name, value in _settings(engine).items()):
            raise ValueError(f"resume: {path} is the choice of a run with other settings")
        if engine.ledger is not None:
            engine.ledger.require_mark(state["ledger"])
        if state["streams"] is not None:
            engine.source.load_state_dict(state["streams"])
            if engine.session.loader is not None:
                engine.session.loader.reseed(engine.source.sampling.fork(0))
        torch.set_rng_state(state["torch_rng"])
    return state
