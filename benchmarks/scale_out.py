"""The FEST pCTR model, batch 2048, AdaFEST: two processes with one thread each beside one process with one thread.

python benchmarks/scale_out.py [--json]
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from timing import endless, show
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.data import VOCABULARY_SIZES
from sparsedp.distributed import DistributedEngine, init_processes
from sparsedp.models import PCTR

BATCH, EXAMPLES, ROUNDS, RANKS = 2048, 8192, 15, 2


def data() -> TensorDataset:
    generator = np.random.default_rng(0)
    ids = np.stack([(generator.zipf(1.2, EXAMPLES) - 1) % rows for rows in VOCABULARY_SIZES], axis=1)
    numeric = torch.from_numpy(generator.standard_normal((EXAMPLES, 13)).astype(np.float32))
    label = torch.from_numpy(generator.integers(0, 2, EXAMPLES).astype(np.float32))
    return TensorDataset(numeric, torch.from_numpy(ids), label)


def steps(engine: sdp.PrivacyEngine) -> Callable[[], None]:
    model = PCTR(VOCABULARY_SIZES)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=DataLoader(data(), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(),
    )
    turns = endless(private.data_loader)

    def step() -> None:
        numeric, ids, label = next(turns)
        private.optimizer.zero_grad()
        bce(private.module(numeric, ids), label).backward()
        private.optimizer.step()

    return step


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=RANKS)
    exchange = init_processes()
    together = steps(DistributedEngine())
    alone = steps(sdp.PrivacyEngine()) if number == 0 else lambda: None
    for step in (alone, alone, alone, together, together, together):
        step()
    seconds: dict[str, list[float]] = {"alone": [], "together": []}
    cpu: dict[str, list[float]] = {"alone": [], "together": []}
    exchange.traffic.clear()
    for _ in range(ROUNDS):
        for name, step in (("alone", alone), ("together", together)):
            dist.barrier()  # the others wait, blocked, while rank 0 steps alone
            began, cpu_began = time.perf_counter(), time.process_time()
            step()
            seconds[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - cpu_began)
    found = {name: median(values) for name, values in seconds.items()}
    found |= {f"{name} cpu": median(values) for name, values in cpu.items()}
    found["bytes"] = exchange.traffic.bytes / ROUNDS
    (Path(folder) / f"rank-{number}").write_text(json.dumps(found))


def run() -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank, args=(number, folder)) for number in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = [json.loads((Path(folder) / f"rank-{number}").read_text()) for number in range(RANKS)]
    alone, together = found[0]["alone"], max(each["together"] for each in found)
    cpu_alone, cpu_together = found[0]["alone cpu"], max(each["together cpu"] for each in found)
    sent = max(each["bytes"] for each in found)
    return [
        _row(1, alone, alone, cpu_alone, cpu_alone, 0.0),
        _row(RANKS, together, alone, cpu_together, cpu_alone, sent),
    ]


def _row(
    processes: int, seconds: float, alone: float, cpu: float, cpu_alone: float, sent: float
) -> dict[str, Any]:
    return {
        "processes": processes,
        "ms": 1e3 * seconds,
        "examples/s": BATCH / seconds,
        "of one": alone / seconds,
        "CPU ms of each": 1e3 * cpu,
        "of one's": cpu_alone / cpu,
        "MB sent by each": sent / 1e6,
    }


def main() -> None:
    show("scale-out", run())


if __name__ == "__main__":
    main()
