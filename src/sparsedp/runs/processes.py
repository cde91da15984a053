"""A run on several processes of one machine, started and, after a crash, started again by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sparsedp.core.cores import available_cores
from sparsedp.distributed import Exchange, init_processes
from sparsedp.distributed.checkpoint import has_checkpoint
from sparsedp.runs.checkpoints import CheckpointSchedule
from sparsedp.runs.choosing import completed
from sparsedp.runs.config import RunConfig
from sparsedp.runs.cost import cost_on
from sparsedp.runs.distributed_trainer import DistributedTrainer
from sparsedp.runs.evaluation import evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.result import Diverged, Result, finish_run, read_failure, read_result
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.setup import RunSetup
from sparsedp.runs.sources import features_of, split
from sparsedp.runs.text_config import TextConfig
from sparsedp.runs.trainer import open_ledger
from sparsedp.runs.training import OnProgress, take_steps

MOST_PER_CORE = 4
"""Processes for each core that they may use: more would only wait for each other, in the memory of all."""
RESTARTS = 3
"""How often torchrun starts the processes again."""
_TIMEOUT_SECONDS = 3600.0
"""On one machine a process is not cut off, and rank 0 may compute for a while."""


def train_on_processes(config: RunConfig, path: str | Path, processes: int, *, quiet: bool = False) -> Result:
    """Train a new run into the folder ``path`` on so many processes, with one thread each."""
    config, _ = completed(config, processes=True)
    _check(config, processes)
    setup = RunSetup.create(config, path)
    with setup.folder.removed_if_refused():
        examples = len(split(config, setup.data)[0])
        cost_on(config, examples, config.delta_for(examples))  # else each process would find out by itself
    return _run(setup.folder, processes, quiet)


def resume_on_processes(path: str | Path, processes: int, *, quiet: bool = False) -> Result:
    """Finish a run on several processes; their number may be another than before."""
    folder = RunFolder(path)
    _check(folder.config(), processes)
    if folder.checkpoint.exists():
        raise ValueError(f"{folder.path}: was trained on one process; resume it without --nproc")
    return _run(folder, processes, quiet)


def _check(config: RunConfig, processes: int) -> None:
    if processes < 1:
        raise ValueError(f"nproc must be at least 1, got {processes}")
    algorithm = config.method
    if not algorithm.private or algorithm.lazy_noise or algorithm.one_process:
        raise ValueError(f"nproc: algorithm {config.algorithm} trains on one process; leave --nproc out")
    for name in ("calibration_mu", "read_share_mu"):
        if getattr(config, name) is not None:
            raise ValueError(f"{name}: is for runs on one process; leave it or --nproc out")
    if isinstance(config, TextConfig):
        raise ValueError("nproc: texts train on one process; leave --nproc out")
    if config.unit == "user":
        raise ValueError("nproc: unit user trains on one process; leave --nproc out")
    if config.period is not None:
        raise ValueError("nproc: streaming runs train on one process; leave --nproc or --period out")
    if processes > MOST_PER_CORE * (cores := available_cores()):
        raise ValueError(f"nproc: {processes} processes are too many for the {cores} cores that they may use")


def _run(folder: RunFolder, processes: int, quiet: bool) -> Result:
    """Let torchrun train, and read the result."""
    finished = read_result(folder)
    if finished is None:
        torchrun = [sys.executable, "-m", "sparsedp.runs.torchrun", "--standalone"]
        torchrun += ["--nproc-per-node", str(processes), "--max-restarts", str(RESTARTS)]
        command = [
            *torchrun,
            "-m",
            "sparsedp",
            "train-rank",
            str(folder.path),
            "--launched",
            *(["--quiet"] if quiet else []),
        ]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "TORCHELASTIC_ERROR_FILE": os.devnull}
        code = _launch(command, environment)
        finished, failed = read_result(folder), read_failure(folder)
        if failed is not None:
            raise failed
        if finished is None:
            raise OSError(
                f"the processes ended with code {code}, see their messages above; steps that were charged stay "
                f"charged. Finish the run with: sparsedp resume {folder.path} --nproc {processes}"
            )
    return finished


def _launch(command: list[str], environment: dict[str, str]) -> int:
    """Run torchrun, and return its exit code. Its processes end when this one does (``end_with_starter``)."""
    torchrun = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=2)
    assert torchrun.stdin is not None
    try:
        while True:  # a wait without end would not hear an interrupt: polars has system calls go on after it
            with suppress(subprocess.TimeoutExpired):
                return torchrun.wait(timeout=60.0)
    finally:
        torchrun.stdin.close()
        torchrun.wait()


def train_rank(
    folder: RunFolder, on_progress: OnProgress | None = None, exchange: Exchange | None = None
) -> None:
    """What each of the processes does: its share of the run in ``folder``, from the last checkpoint on."""
    exchange = exchange or init_processes(_TIMEOUT_SECONDS)
    setup = RunSetup.reopen(folder)
    config, model = setup.config, setup.model
    training, held_out = split(config, setup.data)
    ledger = open_ledger(config, folder.ledger, folder.run_name) if exchange.is_root else None
    trainer = DistributedTrainer(config, model, training, ledger, exchange)
    path, run_stats = folder.shared_checkpoint, RunStats()
    try:
        if has_checkpoint(path, exchange):
            run_stats = trainer.resume(path)
        elif trainer.choose_once():
            trainer.save(path, run_stats)
        # By the clock, processes would save at different steps.
        every = config.checkpoint_every or max(1, trainer.total_steps // 50)
        checkpoints = CheckpointSchedule(every, lambda: trainer.save(path, run_stats))
        if exchange.is_root:
            folder.discard_after(trainer.steps_taken)
        for done in take_steps(model, trainer, run_stats, on_progress if exchange.is_root else None):
            checkpoints.after_step(done)
            if exchange.is_root and config.evaluate_every and done % config.evaluate_every == 0:
                evaluation = evaluate(model, held_out)
                folder.log({"step": done, "auc": evaluation.auc, "log_loss": evaluation.log_loss})
        checkpoints.at_the_end()
        if exchange.is_root:
            with suppress(Diverged):  # marked in the folder, where the parent process finds it
                finish_run(
                    folder,
                    model,
                    evaluation=evaluate(model, held_out),
                    run_stats=run_stats,
                    statement=trainer.statement(),
                    withheld=trainer.withheld(),
                    training_rows=len(training),
                    **trainer.step_figures(),
                    features=features_of(model, setup.data),
                    planned_steps=trainer.total_steps,
                    stopped=trainer.stopped,
                    lost_steps=trainer.lost_steps(),
                )
    finally:
        trainer.close()
