"""Real processes that are killed with SIGKILL at random moments, and what they did until then.

`Server` starts one Python process that imports everything and then forks a child for each command, so that
a kill costs the time of the run and not that of importing torch. Run as a script, this file is that process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch


class Server:
    """Runs commands of `sparsedp` (or the script `api`) in processes of their own."""

    def __init__(self, cache: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SPARSEDP_CACHE": str(cache)},
        )

    def start(self, arguments: list[str], updates: Path, output: Path) -> int:
        """Begin a command; gives its process. `updates` gets a byte before each update of the parameters."""
        return int(self._ask({"arguments": arguments, "updates": str(updates), "output": str(output)}))

    def wait(self, child: int) -> int:
        """The exit code of a process that has ended, or will: minus the signal's number if it was killed."""
        return os.waitstatus_to_exitcode(int(self._ask({"wait": child})))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def kill_at_random(child: int, updates: Path, rng: random.Random, seconds: float) -> None:
    """Kill after a random time, or a moment after a random number of further updates; unless it ends first."""
    deadline = time.monotonic() + rng.uniform(0.0, seconds)
    if rng.random() < 0.7:
        enough = updates.stat().st_size + rng.randrange(1, 40)
        while time.monotonic() < deadline + seconds and updates.stat().st_size < enough:
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, 0.006))
    else:
        time.sleep(max(deadline - time.monotonic(), 0.0))
    os.kill(child, signal.SIGKILL)  # the server has not waited for it: the number is still the child's


def api(folder: Path, target: float, delta: float) -> None:
    """A training loop of the Python interface that goes on from its checkpoint, where there is one."""
    import sparsedp as sdp

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(0, 50, (364, 2)), torch.rand(364).round())
    model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))
    engine = sdp.PrivacyEngine(ledger=folder / "run.ledger")
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=46),
        target_epsilon=target,
        target_delta=delta,
        epochs=8,
        max_grad_norm=1.0,
    )
    if (folder / "run.ckpt").exists():
        engine.resume(folder / "run.ckpt")
    stopped, planned = False, 8 * len(private.data_loader)
    while private.optimizer.steps_taken < planned and not stopped:
        for ids, label in private.data_loader:
            private.optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(private.module(ids)[:, 0], label).backward()
            try:
                private.optimizer.step()
            except sdp.accounting.BudgetExceeded:
                stopped = True
                break
            if private.optimizer.steps_taken % 4 == 0:
                engine.save(folder / "run.ckpt")
    print(json.dumps({"steps": private.optimizer.steps_taken, "planned_steps": planned}))
    engine.detach()


def _run(arguments: list[str], updates: str, output: str) -> int:
    """What a child does: the command, with each update of the parameters noted before it is made."""
    from sparsedp.cli.app import app

    noted = os.open(updates, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = torch.optim.SGD.step

    def noting(self: torch.optim.SGD, *given: Any) -> Any:
        os.write(noted, b".")
        return step(self, *given)

    torch.optim.SGD.step = noting  # type: ignore[method-assign]
    sys.stdout = open(output, "w")  # noqa: SIM115
    sys.stderr = sys.stdout
    if arguments[0] == "api":
        code = api(Path(arguments[1]), float(arguments[2]), float(arguments[3]))
    else:
        code = app(arguments, standalone_mode=False)
    sys.stdout.flush()
    return code or 0


def _serve() -> None:
    """Import and compile what every child needs; no noise and no backward pass before a fork."""
    import numba
    import numpy as np
    import torch._dynamo  # torch's optimisers do so when they are made
    import torch.utils.tensorboard

    from sparsedp.runs import sweep

    torch.set_num_threads(1)
    sweep.available_cores = lambda: 1
    numba.njit(lambda values: values.sum())(np.zeros(1))
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitpid(question["wait"], 0)[1]
        elif (answer := os.fork()) == 0:
            status = 1
            try:
                status = _run(**question)
            except BaseException:
                Path(question["output"]).write_text(traceback.format_exc())
            finally:
                os._exit(status)
        print(answer, flush=True)
    os._exit(0)  # without the seconds that torch takes to end


if __name__ == "__main__":
    _serve()
