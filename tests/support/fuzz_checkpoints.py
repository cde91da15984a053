"""The reader of checkpoints, for fuzzing."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Mapping
from typing import Any

import torch

from sparsedp.training.checkpoint import read_state
from support.checkpoints import start, train, with_instructions
from support.fuzz_data import place, workplace
from support.fuzzing import ODD_VALUES, Reader, mutate_bytes, mutate_value

ODD_TENSORS: tuple[Any, ...] = (
    *(torch.zeros(0), torch.zeros(3), torch.ones(3, dtype=torch.int64), torch.full((2, 2), float("nan"))),
    *(torch.ones(1, dtype=torch.uint8), torch.zeros(300, 4), torch.ones(2, dtype=torch.bool)),
)


@functools.lru_cache(maxsize=32)
def _state(data: bytes) -> Any:
    """What a checkpoint holds; the stored ones are mutated often, and reading one takes long."""
    return torch.load(io.BytesIO(data), weights_only=True)


def mutate_state(rng: random.Random, data: bytes) -> bytes:
    """Change a value of a checkpoint, and write it again: its checksums are right."""
    try:
        changed = mutate_value(rng, _state(data), (*ODD_VALUES, *ODD_TENSORS))
        written = io.BytesIO()
        torch.save(changed, written)
    except Exception:
        return mutate_bytes(rng, data)
    return written.getvalue()


def mutate_instructions(rng: random.Random, data: bytes) -> bytes:
    """Change the instructions by which a checkpoint's state is made; its checksums are right."""
    try:
        return with_instructions(data, lambda own: mutate_bytes(rng, own))
    except Exception:
        return mutate_bytes(rng, data)


def read_checkpoint(name: str, data: bytes) -> None:
    """A checkpoint that is taken leaves an engine with an account, which can be asked and trained on."""
    path = place(name, data)
    read_state(path)  # what `resume` does first; most inputs are refused here, and need no engine
    case = name.split(".")[0].replace("_", " ")
    engine, _ = start(case)
    engine.resume(path)
    assert engine.session.optimizer.steps_taken == 2
    assert sum(count for _, count in engine.account().events) >= 2
    engine.detach()


def checkpoint_seeds() -> Mapping[str, bytes]:
    files = {}
    for case in ("sgd", "lazy", "private top-k", "memory"):
        engine, private = start(case)
        train(private, 2)
        path = workplace() / "checkpoint.pt"
        engine.save(path)
        engine.detach()
        files[f"{case.replace(' ', '_')}.pt"] = path.read_bytes()
    return files


CHECKPOINT = Reader(
    "checkpoint",
    read_checkpoint,
    checkpoint_seeds,
    (mutate_state, mutate_state, mutate_instructions, mutate_bytes),
)
