"""Checkpoints of a run on several processes, which another number of processes may resume."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from sparsedp.core.durable import replace_file
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
    parts = _take_parts(session, state)
    if parts:
        exchange.permitted("checkpoint", lambda: (folder / name).mkdir(parents=True))
        tensors = _as_dtensors(parts, exchange, session.shards)
        state_dict_saver.save(tensors, checkpoint_id=folder / name / _ROWS, process_group=exchange.group)

    def finish() -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_state(state, folder / name / _STATE)
        replace_file(folder / _LATEST, lambda partial: _write(partial, name))
        for old in folder.glob("step-*"):
            if old.name != name:
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
    state = read_state(folder / name / _STATE)
    if not exchange.is_root:  # rank 0 has the ledger, and compares it
        state["ledger"], state["torch_rng"] = None, torch.get_rng_state()
    exchange.permitted("checkpoint", lambda: check_state(engine, state, folder / name))
    _load_parts(session, state, folder / name / _ROWS)
    load_state(engine, state)
    engine.reseed()
    return state


def export(engine: DistributedEngine, path: Path, *, delta: float, allow_not_private: bool) -> list[Path]:
    """Write the weights for release: rank 0 to ``path``, and each process the rows that it holds to a file beside it.

    A file of rows has, for each sharded table, the rows and under the name with ``.ids`` the id of each.
    """
    session, exchange = engine.session, engine.exchange
    names = {table: session.capture.tables[table].parameter_name for table in session.sharded}
    privacy = exchange.from_root(
        "export",
        lambda: export_weights(
            engine, path, delta=delta, allow_not_private=allow_not_private, without=[*names.values()]
        ),
    )
    if not names:
        return [path]
    own = path.with_name(f"{path.stem}.rows-{exchange.rank:05d}-of-{exchange.size:05d}{path.suffix}")
    tensors = {}
    for table, name in names.items():
        span = session.shards[table].span(exchange.rank)
        tensors[name] = session.sharded[table].detach()
        tensors[f"{name}.ids"] = torch.from_numpy(session.shards[table].ids(np.arange(span.start, span.stop)))
    replace_file(own, lambda partial: save_file(tensors, str(partial), metadata={"privacy": privacy}))
    return [path, own]


def has_checkpoint(folder: Path, exchange: Exchange) -> bool:
    """Whether ``folder`` has a complete checkpoint, as rank 0 sees it. A collective."""
    return exchange.from_root("checkpoint", (folder / _LATEST).exists)


def latest(folder: Path) -> str:
    """The name of the last complete checkpoint."""
    try:
        return (folder / _LATEST).read_text()
    except FileNotFoundError:
        raise ValueError(f"resume: {folder} holds no checkpoint of several processes") from None


def _take_parts(session: DistributedSession, state: dict[str, Any]) -> dict[str, tuple[str, Tensor]]:
    """Move what belongs to rows of sharded tables out of the state: by key, the table and this process's part."""
    parts: dict[str, tuple[str, Tensor]] = {}
    for table, parameter in session.sharded.items():
        parameter_name = session.capture.tables[table].parameter_name
        state["module"].pop(parameter_name)
        parts[parameter_name] = (table, parameter.detach())
    taken: list[list[Any]] = []
    for number, index, table, states in _optimizer_states(session, state["optimizer"]):
        for key in [key for key, value in states.items() if _is_by_row(value, session.sharded[table])]:
            value = states.pop(key)
            if value.is_sparse:
                raise ValueError(
                    f"save: the optimiser's {key!r} of the sharded table {table!r} is a sparse tensor (SGD with "
                    "momentum), which cannot be divided anew; use SGD without momentum, Adagrad or RowWiseAdagrad"
                )
            parts[f"optimizer.{number}.{index}.{key}"] = (table, value)
            taken.append([number, index, table, key, list(value.shape[1:]), str(value.dtype)])
    state["parts"] = taken
    return parts


def _load_parts(session: DistributedSession, state: dict[str, Any], folder: Path) -> None:
    """Read this process's rows, whoever wrote them, and put them back into the state."""
    parts: dict[str, tuple[str, Tensor]] = {}
    for table, parameter in session.sharded.items():
        parameter_name = session.capture.tables[table].parameter_name
        state["module"][parameter_name] = parameter.detach()
        parts[parameter_name] = (table, parameter.detach())
    by_place = {
        (number, index): states
        for number, index, _, states in _optimizer_states(session, state["optimizer"], create=True)
    }
    for number, index, table, key, rest, dtype in state["parts"]:
        rows = session.sharded[table].shape[0]
        value = torch.empty(rows, *rest, dtype=getattr(torch, dtype.removeprefix("torch.")))
        by_place[number, index][key] = value
        parts[f"optimizer.{number}.{index}.{key}"] = (table, value)
    if parts:
        tensors = _as_dtensors(parts, session.exchange, session.shards)
        state_dict_loader.load(tensors, checkpoint_id=folder, process_group=session.exchange.group)


def _optimizer_states(
    session: DistributedSession, saved: dict[str, Any], create: bool = False
) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    """(optimiser, number of the parameter, table, state) of every sharded table that has a state."""
    optimizers = session.optimizer.optimizers
    dicts = saved["optimizers"] if len(optimizers) > 1 else [saved]
    tables = {id(parameter): table for table, parameter in session.sharded.items()}
    for number, (optimizer, state_dict) in enumerate(zip(optimizers, dicts, strict=True)):
        state_dict["state"] = dict(state_dict["state"])
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(held):
            if id(parameter) in tables and (create or index in state_dict["state"]):
                states = state_dict["state"][index] = dict(state_dict["state"].get(index, {}))
                yield number, index, tables[id(parameter)], states


def _is_by_row(value: Any, parameter: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == parameter.shape[0]


def _as_dtensors(
    parts: Mapping[str, tuple[str, Tensor]], exchange: Exchange, shards: Mapping[str, RowShards]
) -> dict[str, Any]:
    """Parts of tables as torch's distributed tensors, divided along the rows."""
    group = exchange.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, "cpu")
    tensors = {}
    for key, (table, part) in parts.items():
        shape = torch.Size([shards[table].rows, *part.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        tensors[key] = DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return tensors
