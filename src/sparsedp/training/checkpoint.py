"""Saving and resuming a run, and exporting what may be released."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsedp.accounting.event_json import event_to_json
from sparsedp.core.durable import replace_file
from sparsedp.selection import Selection
from sparsedp.training.account import Account

if TYPE_CHECKING:
    from sparsedp.training.engine import PrivacyEngine
    from sparsedp.training.session import TrainingSession

FORMAT = 2


def state_of(engine: PrivacyEngine) -> dict[str, Any]:
    """Everything that a resumed run needs or is compared with, as tensors and plain values.

    The streams' state is kept for seeded runs only. A private run draws fresh randomness after a resume:
    if it could replay its noise on other data or settings, the difference would show the examples.
    """
    session = engine.session
    with session.without_pending_noise():
        module = dict(session.module.state_dict())
    return {
        "format": FORMAT,
        "step_config": asdict(session.step_config),
        "selection": session.stated.state_dict(),
        "chosen": session.selection.state_dict() if session.is_selection_final else None,
        "private": engine.source.is_private,
        "account": engine.account().state_dict(),
        "earlier": [account.state_dict() for account in engine.earlier],
        "ledger": None if engine.ledger is None else engine.ledger.mark,
        "optimizers": _kinds(session),
        "module": module,
        "buffers": session.buffers.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "steps_taken": session.optimizer.steps_taken,
        "loader_position": None if session.loader is None else session.loader.position,
        "lazy": None if session.lazy is None else session.lazy.state_dict(),
        "streams": None if engine.source.is_private else engine.source.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }


def save(engine: PrivacyEngine, path: Path) -> None:
    """Write the state to ``path``."""
    write_state(state_of(engine), path)


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a state that is whole and on disk when this returns; the old file stays if it cannot be."""

    def write(partial: Path) -> None:
        with open(partial, "wb") as file:
            torch.save(_without_numpy(state), file)

    replace_file(path, write)


def _without_numpy(value: Any) -> Any:
    """Numbers as Python's own: what torch reads back without unpickling objects."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_without_numpy(key): _without_numpy(each) for key, each in value.items()}
    return [_without_numpy(each) for each in value] if isinstance(value, list) else value


def write_weights(module: nn.Module, path: Path, *, privacy: str, without: Collection[str] = ()) -> None:
    """Write the weights (safetensors, what they cost in the metadata), whole or not at all.

    ``without`` names entries of the state dict that are left out.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    def write(partial: Path) -> None:
        try:
            save_model(_Part(module, without), str(partial), metadata={"privacy": privacy})  # type: ignore[arg-type]
        except SafetensorError as error:
            raise OSError(str(error)) from error

    replace_file(path, write)


class _Part:
    """A module's state dict without some of its entries: all that safetensors asks of a model."""

    def __init__(self, module: nn.Module, without: Collection[str]) -> None:
        self._module, self._without = module, frozenset(without)

    def state_dict(self) -> dict[str, Tensor]:
        entries = self._module.state_dict()
        return {name: tensor for name, tensor in entries.items() if name not in self._without}


def resume(engine: PrivacyEngine, path: Path) -> None:
    """Load a state into a run that was made private in the same way; refuse by name what differs.

    The account is the saved one, and what is spent from here on comes on top.
    """
    session = engine.session
    if session.optimizer.steps_taken:
        raise ValueError("resume: this run has already taken steps; resume before the first one")
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
        raise ValueError(f"resume: {path} is not a readable checkpoint ({error})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"resume: {path} is not a checkpoint of format {FORMAT}")
    if differing := [*_differences(engine, state)]:
        raise ValueError(
            f"resume: {path} was saved by another kind of run, whose account this one cannot go on with: "
            + ", ".join(differing)
        )
    if engine.ledger is not None:
        engine.ledger.require_mark(state["ledger"])
    _check_account(session, state, path)
    _load(engine, state)


def _load(engine: PrivacyEngine, state: dict[str, Any]) -> None:
    """The account first: an error on the way leaves part of the weights, and all that they cost."""
    session = engine.session
    engine.earlier += [Account.from_state_dict(account) for account in state["earlier"]]
    if state["chosen"] is not None:
        session.finalize_selection(Selection.from_state_dict(state["chosen"]))
    session.optimizer.steps_taken = state["steps_taken"]
    session.buffers.load_state_dict(state["buffers"])
    session.module.load_state_dict(state["module"])
    session.optimizer.load_state_dict(state["optimizer"])
    if session.loader is not None:
        session.loader.position = state["loader_position"]
    if session.lazy is not None:
        session.lazy.load_state_dict(state["lazy"])
    if state["streams"] is not None:
        engine.source.load_state_dict(state["streams"])
        if session.loader is not None:
            session.loader.reseed(engine.source.sampling.fork(0))
    torch.set_rng_state(state["torch_rng"])


def _differences(engine: PrivacyEngine, state: Mapping[str, Any]) -> Iterator[str]:
    """Everything about the saved run that is not so in this one, by name."""
    session = engine.session
    noise = {True: "private", False: "seeded"}
    yield from _compare("noise", noise[state["private"]], noise[engine.source.is_private])
    yield from _compare("selection", state["selection"], session.stated.state_dict())
    there, here = dict(state["step_config"]), asdict(session.step_config)
    if _is_lower_cap(here, there):  # which takes nothing from the account
        there |= {name: here[name] for name in ("target_epsilon", "target_delta", "planned_steps")}
    yield from _compare("", there, here)
    yield from _compare("optimizer", ", ".join(state["optimizers"]), ", ".join(_kinds(session)))
    yield from _compare("ledger", _whether(state["ledger"]), _whether(engine.ledger))


def _is_lower_cap(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    if here["target_epsilon"] is None:
        return False
    same_delta = there["target_delta"] in (None, here["target_delta"])
    return bool(same_delta and here["target_epsilon"] <= (there["target_epsilon"] or math.inf))


def _compare(name: str, there: Any, here: Any) -> Iterator[str]:
    """Differing leaves of two trees of plain values and tensors."""
    if isinstance(there, dict) and isinstance(here, dict) and there.get("kind") == here.get("kind"):
        for key in {**there, **here}:
            yield from _compare(f"{name}.{key}" if name else key, there.get(key), here.get(key))
    elif isinstance(there, Tensor) and isinstance(here, Tensor):
        if not torch.equal(there, here):
            yield f"{name} has other values there than here"
    elif there != here:
        yield f"{name} {_shown(there)} there, {_shown(here)} here"


def _shown(value: Any) -> str:
    return str(value.get("kind", "an event")) if isinstance(value, dict) else str(value)


def _whether(ledger: object) -> str:
    return "none" if ledger is None else "one"


def _kinds(session: TrainingSession) -> list[str]:
    return [type(optimizer).__name__ for optimizer in session.optimizer.optimizers]


def _check_account(session: TrainingSession, state: Mapping[str, Any], path: Path) -> None:
    """The saved account must be what this run counts, to the last digit; else it would silently change."""
    chosen = state["chosen"]
    once = session.stated.one_off_events() if chosen is not None else ()
    steps = state["steps_taken"]
    events = [[event_to_json(event), 1] for event in once]
    if steps:
        events.append([event_to_json(session.step_config.event(session.stated)), steps])
    if events != state["account"]["events"]:
        raise ValueError(
            f"resume: {path} has an account that this run would not have: {state['account']['events']} there, "
            f"{events} here"
        )


def export(engine: PrivacyEngine, path: Path, *, delta: float, allow_not_private: bool) -> None:
    """Weights and their statement, nothing else: pending noise applied, buffers that training changed left out."""
    statement = engine.statement(delta)
    if not statement.private and not allow_not_private:
        raise ValueError(
            f"export: this run is not private ({'; '.join(statement.notes)}); nothing was written"
        )
    added = engine.session.identity.added()
    if added and not allow_not_private:
        raise ValueError(
            f"export: the parameters {added} came into the module after make_private, and the statement does not cover "
            "how they were trained; nothing was written. Add them before make_private, or keep them outside the module"
        )
    engine.flush()
    changed = engine.session.buffers.changed()
    if changed:
        warnings.warn(
            f"export: the buffers {changed} were changed by training passes, without noise; they are left out",
            stacklevel=3,
        )
    write_weights(engine.session.module, path, privacy=str(statement), without=changed)
