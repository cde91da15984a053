"""Saving and resuming a run, and exporting what may be released."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsedp.accounting import BudgetExceeded
from sparsedp.accounting.event_json import event_from_json, event_to_json
from sparsedp.core.durable import replace_file
from sparsedp.selection import Selection
from sparsedp.training.account import Account

if TYPE_CHECKING:
    from sparsedp.training.engine import PrivacyEngine
    from sparsedp.training.session import TrainingSession

FORMAT = 2
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,
)
"""What the checksums of a file that is no checkpoint, or of a damaged one, raise."""
_FIRST_PART = b"PK\x03\x04"
"""How a file begins from which torch reads the parts; from any other it reads its old form, which has no checksums."""


def state_of(engine: PrivacyEngine) -> dict[str, Any]:
    """Everything that a resumed run needs or is compared with, as tensors and plain values.

    The streams' state is saved for seeded runs only. A private run draws fresh randomness after a resume:
    replaying its noise on other data or settings would reveal the examples by the difference.
    """
    session = engine.session
    with session.without_pending_noise():
        module = dict(session.module.state_dict())
    return {
        "format": FORMAT,
        "step_config": asdict(session.step_config),
        "selection": session.stated.state_dict(),
        "chosen": session.selection.state_dict() if session.is_selection_final else None,
        "lost_choices": [event_to_json(event) for event in session.lost_choices],
        "private": engine.source.is_private,
        "account": engine.account().state_dict(),
        "earlier": [account.state_dict() for account in engine.earlier],
        "ledger": None if engine.ledger is None else engine.ledger.mark,
        "optimizers": _optimizer_names(session),
        "module": module,
        "buffers": session.buffers.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "last_rates": session.optimizer.last_rates,
        "steps_taken": session.optimizer.steps_taken,
        "loader_position": None if session.loader is None else session.loader.position,
        "lazy": None if session.lazy is None else session.lazy.state_dict(),
        "pending": session.pending_state(),
        "rule": session.rule_state(),
        "streams": None if engine.source.is_private else engine.source.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }


def save(engine: PrivacyEngine, path: Path) -> None:
    """Write the state to ``path``."""
    write_state(state_of(engine), path)


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a state, complete and on disk when this returns; on failure the old file stays."""

    def write(partial: Path) -> None:
        with open(partial, "wb") as file:
            torch.save(_portable(state), file)

    replace_file(path, write)


def _portable(value: Any) -> Any:
    """Tensors in main memory and NumPy scalars as Python numbers: torch reads both back anywhere, without pickle."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_portable(key): _portable(item) for key, item in value.items()}
    return [_portable(item) for item in value] if isinstance(value, list) else value


def write_weights(module: nn.Module, path: Path, *, privacy: str, without: Collection[str] = ()) -> None:
    """Write the weights atomically (safetensors, the privacy statement in the metadata).

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
    """A module's state dict without some of its entries, in the form that safetensors takes."""

    def __init__(self, module: nn.Module, without: Collection[str]) -> None:
        self._module, self._without = module, frozenset(without)

    def state_dict(self) -> dict[str, Tensor]:
        entries = self._module.state_dict()
        return {name: tensor for name, tensor in entries.items() if name not in self._without}


def resume(engine: PrivacyEngine, path: Path) -> None:
    """Load a state into a run that was made private in the same way; refuse differences by name.

    The run continues the saved account.
    """
    state = read_state(path)
    with whole_state(path):
        check_state(engine, state, path)
        load_state(engine, state)


_MALFORMED = (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError, ZeroDivisionError)
"""What reading a state raises that lacks something, or has something else in its place."""


@contextmanager
def whole_state(path: Path) -> Iterator[None]:
    """Refuse a state whose parts are missing or of another kind, though its checksums are right."""
    try:
        yield
    except BudgetExceeded:
        raise
    except _MALFORMED as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(
            f"resume: {path} is not a whole checkpoint ({reason}); make the engine and the model again before you go on"
        ) from error


def check_file(path: Path) -> None:
    """Refuse a damaged file: the parts of a checkpoint have checksums."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_FIRST_PART)) == _FIRST_PART
            with zipfile.ZipFile(file) as parts:
                damaged = parts.testzip()
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise ValueError(f"resume: {path} is not a readable checkpoint ({error})") from error
    if not begins:
        raise ValueError(f"resume: {path} is not a readable checkpoint (other bytes stand before its parts)")
    if damaged is not None:
        raise ValueError(f"resume: {path} is not a readable checkpoint (its part {damaged} is damaged)")


def load_file(path: Path) -> Any:
    """What ``write_state`` wrote, if it is whole; executes nothing."""
    check_file(path)
    try:
        return torch.load(path, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # of many kinds; torch's own words advise to execute the file
        raise ValueError(
            f"resume: {path} is not a readable checkpoint (it holds other things than tensors and plain values)"
        ) from error


def read_state(path: Path) -> dict[str, Any]:
    """A state from a file; refuses any other file."""
    state = load_file(path)
    if not isinstance(state, dict) or type(form := state.get("format")) is not int or form != FORMAT:
        raise ValueError(f"resume: {path} is not a checkpoint of format {FORMAT}")
    return state


def check_state(engine: PrivacyEngine, state: Mapping[str, Any], path: Path) -> None:
    """Refuse a state of another kind of run, or one whose account differs."""
    session = engine.session
    if session.has_resumed:
        raise ValueError(
            "resume: this run has loaded a saved one already; make the engine and the model again"
        )
    if session.optimizer.steps_taken:
        raise ValueError("resume: this run has already taken steps; resume before the first one")
    if differing := [*_differences(engine, state)]:
        raise ValueError(
            f"resume: {path} was saved by another kind of run, whose account this one cannot continue: "
            + ", ".join(differing)
        )
    if engine.ledger is not None:
        engine.ledger.require_mark(state["ledger"])
    _check_account(session, state, path)
    rates = state.get("last_rates", ())
    if rates and len(rates) != len(session.optimizer.param_groups):
        raise ValueError(f"resume: {path} has the learning rates of {len(rates)} groups, this run has others")
    saved = [Account.from_state_dict(account) for account in (*state["earlier"], state["account"])]
    session.check_resume([spent for account in saved for spent in account.events])


def load_state(engine: PrivacyEngine, state: dict[str, Any]) -> None:
    """Load the account first: after an error the weights may be incomplete, the account never is."""
    session = engine.session
    session.has_resumed = True
    engine.earlier += [Account.from_state_dict(account) for account in state["earlier"]]
    session.optimizer.steps_taken = state["steps_taken"]
    chosen = state["chosen"]
    session.resume_choice(
        None if chosen is None else Selection.from_state_dict(chosen),
        [event_from_json(event) for event in state.get("lost_choices", ())],
    )
    if chosen is not None:
        session.load_pending_state(state.get("pending"))
    session.buffers.load_state_dict(state["buffers"])
    session.module.load_state_dict(state["module"])
    try:
        session.optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise ValueError(f"resume: the saved state of the optimiser does not fit ({error})") from error
    session.optimizer.last_rates = list(state.get("last_rates", ()))
    if session.loader is not None:
        session.loader.position = state["loader_position"]
    if session.lazy is not None:
        session.lazy.load_state_dict(state["lazy"])
    session.load_rule_state(state["rule"])
    if state["streams"] is not None:
        engine.source.load_state_dict(state["streams"])
        if session.loader is not None:
            session.loader.reseed(engine.source.sampling.fork(0))
    torch.set_rng_state(state["torch_rng"])


def _differences(engine: PrivacyEngine, state: Mapping[str, Any]) -> Iterator[str]:
    """Every setting in which the saved run differs from this one, by name."""
    session = engine.session
    noise = {True: "private", False: "seeded"}
    yield from _compare("noise", noise[state["private"]], noise[engine.source.is_private])
    yield from _compare("selection", state["selection"], session.stated.state_dict())
    saved, current = dict(state["step_config"]), asdict(session.step_config)
    if _is_lower_cap(current, saved):  # a lower cap leaves the account valid
        saved |= {name: current[name] for name in ("target_epsilon", "target_delta", "planned_steps")}
    yield from _compare("", saved, current)
    yield from _compare("optimizer", ", ".join(state["optimizers"]), ", ".join(_optimizer_names(session)))
    yield from _compare("ledger", _whether(state["ledger"]), _whether(engine.ledger))


def _is_lower_cap(current: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    if current["target_epsilon"] is None:
        return False
    same_delta = saved["target_delta"] in (None, current["target_delta"])
    return bool(same_delta and current["target_epsilon"] <= (saved["target_epsilon"] or math.inf))


def _compare(name: str, saved: Any, current: Any) -> Iterator[str]:
    """Differing leaves of two trees of plain values and tensors."""
    if isinstance(saved, dict) and isinstance(current, dict) and saved.get("kind") == current.get("kind"):
        for key in {**saved, **current}:
            yield from _compare(f"{name}.{key}" if name else key, saved.get(key), current.get(key))
    elif isinstance(saved, Tensor) and isinstance(current, Tensor):
        if not torch.equal(saved, current):
            yield f"{name} has other values there than here"
    elif saved != current:
        yield f"{name} {_shown(saved)} there, {_shown(current)} here"


def _shown(value: Any) -> str:
    return str(value.get("kind", "an event")) if isinstance(value, dict) else str(value)


def _whether(ledger: object) -> str:
    return "none" if ledger is None else "one"


def _optimizer_names(session: TrainingSession) -> list[str]:
    return [type(optimizer).__name__ for optimizer in session.optimizer.optimizers]


def _check_account(session: TrainingSession, state: Mapping[str, Any], path: Path) -> None:
    """The saved account must equal what this run would count, exactly; else it would silently change."""
    one_off = [event_to_json(event) for event in session.stated.one_off_events()]
    lost, steps = state.get("lost_choices", []), state["steps_taken"]
    made = [*(event for event in lost if event in one_off), *(one_off if state["chosen"] is not None else ())]
    events = [[event, 1] for event in made]
    if steps:
        events.append([event_to_json(session.step_config.event(session.stated)), steps])
    if events != state["account"]["events"]:
        raise ValueError(
            f"resume: {path} has an account that this run would not have: {state['account']['events']} there, "
            f"{events} here"
        )


def export(
    engine: PrivacyEngine, path: Path, *, delta: float, allow_not_private: bool, without: Sequence[str] = ()
) -> str:
    """Write weights and statement only: pending noise applied, without buffers that training changed.

    ``without`` names further entries to leave out. Returns the statement.
    """
    statement = engine.statement(delta)
    if not statement.private and not allow_not_private:
        raise ValueError(
            f"export: this run is not private ({'; '.join(statement.notes)}); nothing was written"
        )
    added = engine.session.identity.added()
    if added and not allow_not_private:
        raise ValueError(
            f"export: the parameters {added} were added to the module after make_private, and the statement does not "
            "cover how they were trained; nothing was written. Add them before make_private, or keep them outside the module"
        )
    engine.flush()
    changed = engine.session.buffers.changed()
    if changed:
        warnings.warn(
            f"export: the buffers {changed} were changed by training passes, without noise; they are left out",
            stacklevel=3,
        )
    write_weights(engine.session.module, path, privacy=str(statement), without=[*changed, *without])
    return str(statement)
