"""Checkpoints of a run on several processes, which another number of processes may resume."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from sparsedp.core.durable import replace_file
from sparsedp.core.text_files import read_text
from sparsedp.distributed.exchange import Exchange
from sparsedp.distributed.session import DistributedSession
from sparsedp.distributed.shards import RowShards
from sparsedp.training.checkpoint import check_state, load_state, read_state, state_of, write_state
from sparsedp.training.checkpoint import export as export_weights

if TYPE_CHECKING:
    from sparsedp.distributed.engine import DistributedEngine

_LATEST = "latest"
_STATE = "state.pt"
_ROWS = "rows"
_NAME = re.compile(r"step-\d+-[0-9a-f]{8}")

_Part = tuple[RowShards, Tensor]
"""How a table is divided, and this process's part of it, or of what an optimiser keeps of it."""


def save(engine: DistributedEngine, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint into ``folder``, which all processes must see; the last complete one stays until then.

    Rows of sharded tables, and what optimisers keep of them, are written by their owners through
    ``torch.distributed.checkpoint``; rank 0 writes everything else, with ``extra``. A crash at any moment leaves
    the last complete checkpoint in place.
    """
    session, exchange = engine.session, engine.exchange
    name = exchange.from_root(
        "checkpoint", lambda: f"step-{session.optimizer.steps_taken}-{secrets.token_hex(4)}"
    )
    state = state_of(engine) | {"streams": None, "ranks": exchange.size, **(extra or {})}
    state["divided"] = _divided(session)
    parts = _take_parts(session, state)
    if parts:
        exchange.permitted("checkpoint", lambda: (folder / name).mkdir(parents=True))
        with _in_one_line(f"save: {folder / name / _ROWS} could not be written"):
            state_dict_saver.save(
                _as_dtensors(parts, exchange),
                storage_writer=FileSystemWriter(folder / name / _ROWS, per_thread_copy_ahead=0),
                process_group=exchange.group,
            )

    def finish() -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_state(state, folder / name / _STATE)
        replace_file(folder / _LATEST, lambda partial: _write(partial, name))
        for old in folder.iterdir():
            if _NAME.fullmatch(old.name) and old.name != name:
                shutil.rmtree(old, ignore_errors=True)

    exchange.permitted("checkpoint", finish)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def resume(engine: DistributedEngine, folder: Path) -> dict[str, Any]:
    """Continue from the last complete checkpoint in ``folder``, on any number of processes; gives all it holds.

    Steps taken since it was written stay charged on the ledger.
    """
    session, exchange = engine.session, engine.exchange
    name = exchange.from_root("checkpoint", lambda: latest(folder))
    state = exchange.everywhere("checkpoint", lambda: read_state(folder / name / _STATE))
    if not exchange.is_root:  # rank 0 has the ledger, and compares it
        state["ledger"], state["torch_rng"] = None, torch.get_rng_state()
    exchange.permitted("checkpoint", lambda: _check(engine, state, folder / name))
    _load_parts(session, state, folder / name / _ROWS)
    load_state(engine, state)
    engine.reseed()
    return state


def _check(engine: DistributedEngine, state: dict[str, Any], path: Path) -> None:
    check_state(engine, state, path)
    there, here = state.get("divided", {}), _divided(engine.session)
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            raise ValueError(
                f"resume: {path} has the table {name!r} {_how(there.get(name))}, and this run {_how(here.get(name))}"
            )


def _divided(session: DistributedSession) -> dict[str, str]:
    """By which order the rows of each sharded table are divided."""
    return {name: shards.by for name, (_, shards) in session.parts.items()}


def _how(by: str | None) -> str:
    return "whole" if by is None else f"divided by {by!r}"


@contextmanager
def _in_one_line(problem: str) -> Iterator[None]:
    """Raise torch's ``CheckpointException``, which is no ``Exception``, as one that is, without its tracebacks."""
    try:
        yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise ValueError(f"{problem} ({type(first).__name__}: {first})") from error


def export(engine: DistributedEngine, path: Path, *, delta: float, allow_not_private: bool) -> list[Path]:
    """Write the weights for release: rank 0 to ``path``, and each process the rows that it holds to a file beside it.

    A file of rows has, for each sharded table, the rows and under the name with ``.ids`` the id of each.
    """
    session, exchange = engine.session, engine.exchange
    privacy = exchange.from_root(
        "export",
        lambda: export_weights(
            engine, path, delta=delta, allow_not_private=allow_not_private, without=[*_names(session)]
        ),
    )
    if not session.parts:
        return [path]
    own = path.with_name(f"{path.stem}.rows-{exchange.rank:05d}-of-{exchange.size:05d}{path.suffix}")
    tensors = {}
    for name, (parameter, shards) in session.parts.items():
        span = shards.span(exchange.rank)
        tensors[name] = parameter.detach().cpu()
        tensors[f"{name}.ids"] = torch.from_numpy(shards.ids(np.arange(span.start, span.stop)))
    exchange.everywhere(
        "export",
        lambda: replace_file(
            own, lambda partial: save_file(tensors, str(partial), metadata={"privacy": privacy})
        ),
    )
    return [path, own]


def has_checkpoint(folder: Path, exchange: Exchange) -> bool:
    """Whether ``folder`` has a complete checkpoint, as rank 0 sees it. A collective."""
    return exchange.from_root("checkpoint", (folder / _LATEST).exists)


def latest(folder: Path) -> str:
    """The name of the last complete checkpoint."""
    try:
        return read_text(folder / _LATEST)
    except FileNotFoundError:
        raise ValueError(f"resume: {folder} holds no checkpoint of several processes") from None


def _names(session: DistributedSession) -> dict[str, str]:
    """All names in the module's state of parameters of which this process holds a part, with the first of each."""
    first = {id(parameter): name for name, (parameter, _) in session.parts.items()}
    named = session.module.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in named if id(parameter) in first}


def _take_parts(session: DistributedSession, state: dict[str, Any]) -> dict[str, _Part]:
    """Move what belongs to rows of sharded tables out of the state: by key, this process's part."""
    for name in _names(session):
        state["module"].pop(name)
    parts = {name: (shards, parameter.detach().cpu()) for name, (parameter, shards) in session.parts.items()}
    taken: list[list[Any]] = []
    for number, index, name, states in _optimizer_states(session, state["optimizer"]):
        parameter, shards = session.parts[name]
        for key in [key for key, value in states.items() if _is_by_row(value, parameter)]:
            value = states.pop(key)
            if value.is_sparse:
                raise ValueError(
                    f"save: the optimiser's {key!r} of the sharded table {name!r} is a sparse tensor (SGD with "
                    "momentum), which cannot be divided anew; use SGD without momentum, Adagrad or RowWiseAdagrad"
                )
            parts[f"optimizer.{number}.{index}.{key}"] = (shards, value.cpu())
            taken.append([number, index, name, key, list(value.shape[1:]), str(value.dtype)])
    state["parts"] = taken
    return parts


def _load_parts(session: DistributedSession, state: dict[str, Any], folder: Path) -> None:
    """Read this process's rows, whoever wrote them, and put them back into the state."""
    parts = {name: (shards, parameter.detach().cpu()) for name, (parameter, shards) in session.parts.items()}
    for name, first in _names(session).items():
        state["module"][name] = parts[first][1]
    by_place = {
        (number, index): states
        for number, index, _, states in _optimizer_states(session, state["optimizer"], create=True)
    }
    for number, index, name, key, rest, dtype in state["parts"]:
        parameter, shards = session.parts[name]
        value = torch.empty(parameter.shape[0], *rest, dtype=getattr(torch, dtype.removeprefix("torch.")))
        by_place[number, index][key] = value
        parts[f"optimizer.{number}.{index}.{key}"] = (shards, value)
    if parts:
        with _in_one_line(f"resume: {folder} is not readable"):
            state_dict_loader.load(
                _as_dtensors(parts, session.exchange),
                checkpoint_id=folder,
                process_group=session.exchange.group,
            )


def _optimizer_states(
    session: DistributedSession, saved: dict[str, Any], create: bool = False
) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    """(optimiser, number of the parameter, its name, state) of every sharded table that has a state."""
    optimizers = session.optimizer.optimizers
    dicts = saved["optimizers"] if len(optimizers) > 1 else [saved]
    names = {id(parameter): name for name, (parameter, _) in session.parts.items()}
    for number, (optimizer, state_dict) in enumerate(zip(optimizers, dicts, strict=True)):
        state_dict["state"] = dict(state_dict["state"])
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(held):
            if id(parameter) in names and (create or index in state_dict["state"]):
                states = state_dict["state"][index] = dict(state_dict["state"].get(index, {}))
                yield number, index, names[id(parameter)], states


def _is_by_row(value: Any, parameter: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == parameter.shape[0]


def _as_dtensors(parts: Mapping[str, _Part], exchange: Exchange) -> dict[str, Any]:
    """Parts of tables as torch's distributed tensors, divided along the rows."""
    group = exchange.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, "cpu")
    tensors = {}
    for key, (shards, part) in parts.items():
        shape = torch.Size([shards.rows, *part.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        tensors[key] = DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return tensors
