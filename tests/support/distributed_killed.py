"""A run on two processes that is killed at random moments and started again, as torchrun does it.

Run as a script under torchrun it is the training script itself.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TARGET, DELTA, EPOCHS, EVERY, ROWS = 2.0, 1e-3, 6, 3, 60


def train(folder: Path) -> dict[str, Any]:
    """A training loop that goes on from its checkpoint, where there is one; before each draw it leaves a mark."""
    import sparsedp as sdp
    from sparsedp.distributed import DistributedEngine, ShardedEmbedding
    from sparsedp.selection.adafest import ContributionMap

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(0, ROWS, (364, 2)), torch.rand(364).round())
    engine = DistributedEngine(ledger=folder / "run.ledger")
    rank = engine.exchange.rank
    marks = os.open(folder / f"draws-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    survivors = ContributionMap.survivors

    def marking(self: Any, *arguments: Any) -> Any:
        os.write(marks, b".")
        return survivors(self, *arguments)

    ContributionMap.survivors = marking  # type: ignore[method-assign]
    model = torch.nn.Sequential(
        ShardedEmbedding(ROWS, 4, exchange=engine.exchange), torch.nn.Flatten(), torch.nn.Linear(8, 1)
    )
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=46),
        target_epsilon=TARGET,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(always_on_rows=0, false_positives=5),
    )
    if engine.has_checkpoint(folder / "checkpoint"):
        engine.resume(folder / "checkpoint")
    stopped, planned = False, EPOCHS * len(private.data_loader)
    while private.optimizer.steps_taken < planned and not stopped:
        for ids, label in private.data_loader:
            private.optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(private.module(ids)[:, 0], label).backward()
            try:
                private.optimizer.step()
            except sdp.accounting.BudgetExceeded:
                stopped = True
                break
            if private.optimizer.steps_taken % EVERY == 0:
                engine.save(folder / "checkpoint")
            if pause := float(os.environ.get("PAUSE", 0)):
                time.sleep(pause)
    result = {"steps": private.optimizer.steps_taken, "planned": planned, "stopped": stopped, "rank": rank}
    engine.detach()
    return result


def _one(folder: str, rank: int, ranks: int, meeting: str) -> None:
    sys.stderr = open(Path(folder) / f"errors-{rank}", "w")  # noqa: SIM115
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30)
    )
    result = train(Path(folder))
    (Path(folder) / f"result-{rank}").write_text(json.dumps(result))
    os._exit(0)


def run_with_kills(folder: Path, kills: int, seed: int, ranks: int = 2) -> list[dict[str, Any]]:
    """Train to the end, with a random process killed ``kills`` times; all are started again each time."""
    rng = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    for attempt in range(kills + 1):
        meeting = str(folder / f"meeting-{attempt}")
        running = [
            context.Process(target=_one, args=(str(folder), rank, ranks, meeting)) for rank in range(ranks)
        ]
        for process in running:
            process.start()
        if attempt < kills:
            _kill_one(running, folder, rng)
        deadline = time.monotonic() + 60
        for process in running:
            process.join(max(deadline - time.monotonic(), 0.1))
        assert not any(process.is_alive() for process in running), "a rank waits for one that is gone"
        if all(process.exitcode == 0 for process in running):
            break
        errors = [(folder / f"errors-{rank}").read_text() for rank in range(ranks)]
        assert attempt < kills, errors
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(ranks)]


def _kill_one(running: list[Any], folder: Path, rng: random.Random) -> None:
    """After a random number of further draws, and a moment more."""
    chosen = rng.randrange(len(running))
    marks = folder / f"draws-{chosen}"
    enough = (marks.stat().st_size if marks.exists() else 0) + rng.randrange(1, 6)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and all(process.is_alive() for process in running):
        if marks.exists() and marks.stat().st_size >= enough:
            break
        time.sleep(0.0005)
    time.sleep(rng.uniform(0.0, 0.01))
    if running[chosen].is_alive():
        os.kill(running[chosen].pid, signal.SIGKILL)


def draws(folder: Path, ranks: int = 2) -> list[int]:
    """How often each process began to draw."""
    return [(folder / f"draws-{rank}").stat().st_size for rank in range(ranks)]


if __name__ == "__main__":
    found = train(Path(sys.argv[1]))
    (Path(sys.argv[1]) / f"result-{found['rank']}").write_text(json.dumps(found))
