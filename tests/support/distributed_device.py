"""Training on several processes, in main memory and on a device that stands in for an accelerator.

Torch wants to know its devices before the first backward pass, so each process runs this file: ``FOLDER RANK``.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

RANKS = 2


def train(folder: Path, device: Any, sharded: bool, selection: str) -> dict[str, Tensor]:
    """The whole weights after some steps with seeded noise, a checkpoint in the middle."""
    from sparsedp.distributed import DistributedEngine, init_processes
    from support.distributed_jobs import SELECTIONS, Model, data, optimizers
    from support.other_device_cases import moved

    exchange = init_processes()
    for part in range(2):
        torch.manual_seed(3)
        model = moved(Model(exchange if sharded else None), device)
        engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
        private = engine.make_private(
            module=model,
            optimizer=optimizers(model),
            data_loader=DataLoader(data(), batch_size=12),
            noise_multiplier=0.5,
            max_grad_norm=0.7,
            selection=SELECTIONS[selection](),
        )
        if part:
            engine.resume(folder)
        for ids, bag, small, label in private.data_loader:
            private.optimizer.zero_grad()
            outputs = private.module(ids.to(device), bag.to(device), small.to(device))
            (outputs - label.to(device)).square().mean().backward()
            private.optimizer.step()
            if not part and private.optimizer.steps_taken == 2:
                break
        engine.save(folder)
        engine.detach()
    tables = {"rows": model.rows, "bags": model.bags} if sharded else {}
    wholes = {f"{name}.weight": table.whole_table() for name, table in tables.items()}
    return {name: wholes.get(name, value.detach().cpu()) for name, value in model.named_parameters()}


def main(folder: Path, rank: int) -> None:
    from support.other_device import NAME, other_device

    other_device()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    for sharded, selection in (
        (True, "AdaFEST"),
        (False, "AdaFEST"),
        (True, "DPSGD"),
        (False, "exponential"),
    ):
        here, there = (
            train(folder / f"{name} {sharded} {selection}", torch.device(name), sharded, selection)
            for name in ("cpu", NAME)
        )
        for name, value in here.items():
            torch.testing.assert_close(there[name], value, rtol=1e-5, atol=1e-6, msg=f"{selection} {name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
