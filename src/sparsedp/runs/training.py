"""Training a click model from a config into a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparsedp.accounting import BudgetExceeded
from sparsedp.data import ClickData
from sparsedp.runs.checkpoints import CheckpointSchedule
from sparsedp.runs.config import RunConfig
from sparsedp.runs.curves import Curves, curves
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import fresh_model, open_data, split
from sparsedp.runs.trainer import PlainTrainer, PrivateTrainer, Trainer, check_ledger, open_ledger
from sparsedp.training.checkpoint import write_weights


@dataclass(frozen=True)
class Progress:
    """What may be shown while a run is under way."""

    step: int
    total: int
    examples_per_second: float
    epsilon: float | None
    rows: float | None


OnProgress = Callable[[Progress], None]
NOT_PRIVATE = "NOT PRIVATE: trained without differential privacy"


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    auc: float
    log_loss: float
    held_out_rows: int
    steps: int
    training_rows: int
    rows: float | None
    """Embedding rows with noise per step, on average; None without privacy."""
    gradient_size: float | None
    table_coordinates: int
    reduction: float | None
    rows_per_table: dict[str, float]
    examples_per_second: float
    seconds: float
    noise_multiplier: float | None
    statement: dict[str, Any] | None
    planned_steps: int | None = None
    stopped: str | None = None
    """Why fewer steps were taken than planned: epsilon is a cap, and crashes may have used up a part of it."""
    lost_steps: int = 0
    """Steps that crashes took away: paid for, and not in the model."""


def train(config: RunConfig, path: str | Path, on_progress: OnProgress | None = None) -> Result:
    """Train a new run into the folder ``path``."""
    folder = RunFolder(path)
    if config.period is not None:
        raise ValueError("period: a streaming run is trained with sparsedp.runs.stream")
    data = open_data(config.data)
    model = fresh_model(config, data)
    check_ledger(config)
    folder.create(config)
    return _run(config, folder, data, model, on_progress)


def resume_training(folder: RunFolder, on_progress: OnProgress | None = None) -> Result:
    """Finish the run in ``folder`` from its checkpoint, or from the start where there is none."""
    config = folder.config()
    data = open_data(config.data)
    return _run(config, folder, data, fresh_model(config, data), on_progress)


def _run(
    config: RunConfig, folder: RunFolder, data: ClickData, model: nn.Module, on_progress: OnProgress | None
) -> Result:
    training, held_out = split(config, data)
    trainer: Trainer
    if config.algorithm == "non-private":
        trainer = PlainTrainer(config, model, training)
    else:
        trainer = PrivateTrainer(config, model, training, open_ledger(config, folder.ledger, folder.run_name))
    try:
        run_stats = RunStats()
        if folder.checkpoint.exists():
            run_stats = trainer.resume(folder.checkpoint)
        elif trainer.choose_once():  # a crash before the first checkpoint would pay for another choice
            trainer.save(folder.checkpoint, run_stats)
        folder.forget_after(trainer.steps_taken)
        final = _loop(config, folder, model, trainer, held_out, run_stats, on_progress)
        result = _finish(folder, model, trainer, training, final, run_stats)
    finally:
        trainer.close()
    folder.write_json("result", asdict(result))
    return result


def _loop(
    config: RunConfig,
    folder: RunFolder,
    model: nn.Module,
    trainer: Trainer,
    held_out: ClickData,
    run_stats: RunStats,
    on_progress: OnProgress | None,
) -> Evaluation:
    """Train to the end, with evaluations and checkpoints on the way; gives the last evaluation."""
    checkpoints = CheckpointSchedule(
        config.checkpoint_every, lambda: trainer.save(folder.checkpoint, run_stats)
    )
    found = None
    with curves(folder.tensorboard) as board:
        for done in take_steps(model, trainer, run_stats, on_progress):
            found = None
            if config.evaluate_every and done % config.evaluate_every == 0 and done < trainer.total_steps:
                found = evaluate(model, held_out)
                _record(folder, board, trainer, run_stats, found)
            checkpoints.after_step(done)
        checkpoints.at_the_end()
        if found is None:  # else the run ended early, just where it was evaluated
            found = evaluate(model, held_out)
            folder.forget_after(trainer.steps_taken - 1)
            _record(folder, board, trainer, run_stats, found)
    return found


def take_steps(
    model: nn.Module, trainer: Trainer, run_stats: RunStats, on_progress: OnProgress | None
) -> Iterator[int]:
    """Train to the end of the trainer; gives the number of steps taken after each of them.

    Where crashes have used up a part of epsilon, or other runs the ledger's budget, the end comes before the
    planned one: at the step that would pass it. A run that cannot take a single step raises ``BudgetExceeded``.
    """
    taken, examples, seconds = trainer.steps_taken, 0, 0.0
    while taken < trainer.total_steps:
        for features, label in trainer.batches():
            started = time.perf_counter()
            try:
                train_step(model, trainer, features, label)
            except BudgetExceeded as refusal:
                if not run_stats.steps:
                    raise
                trainer.stopped = str(refusal)
                return
            examples, seconds = examples + len(label), seconds + time.perf_counter() - started
            if trainer.is_mid_batch:
                continue
            taken = trainer.steps_taken
            run_stats.add(trainer.last_step(), examples, seconds)
            examples, seconds = 0, 0.0
            if on_progress is not None:
                on_progress(_progress(trainer, run_stats))
            yield taken
            if taken == trainer.total_steps:
                return


def train_step(model: nn.Module, trainer: Trainer, features: tuple[Any, ...], label: torch.Tensor) -> None:
    """One batch through the model."""
    trainer.zero_grad()
    cross_entropy(model(*features), label).backward()  # type: ignore[no-untyped-call]
    trainer.step()


def _progress(trainer: Trainer, run_stats: RunStats) -> Progress:
    """What a progress bar shows."""
    return Progress(
        trainer.steps_taken,
        trainer.total_steps,
        run_stats.examples_per_second,
        trainer.epsilon(),
        run_stats.mean_rows,
    )


def _record(
    folder: RunFolder, board: Curves, trainer: Trainer, run_stats: RunStats, found: Evaluation
) -> None:
    step = trainer.steps_taken
    record = {
        "step": step,
        "auc": found.auc,
        "log_loss": found.log_loss,
        "epsilon": trainer.epsilon(),
        "rows": run_stats.mean_rows,
        "gradient_size": run_stats.mean_gradient_size,
        "reduction": run_stats.reduction,
    }
    folder.log(record)
    for name, value in record.items():
        if value is not None and name != "step":
            board.add_scalar(name, value, step)


def _finish(
    folder: RunFolder,
    model: nn.Module,
    trainer: Trainer,
    training: ClickData,
    found: Evaluation,
    run_stats: RunStats,
) -> Result:
    statement = trainer.statement()
    if statement is not None:
        folder.write_json("statement", statement.to_dict())
    privacy = str(statement) if statement else NOT_PRIVATE
    # state_dict applies pending noise
    write_weights(model, folder.weights, privacy=privacy, without=trainer.withheld())
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return Result(
        auc=found.auc,
        log_loss=found.log_loss,
        held_out_rows=found.rows,
        steps=trainer.steps_taken,
        training_rows=len(training),
        rows=run_stats.mean_rows,
        gradient_size=run_stats.mean_gradient_size,
        table_coordinates=sum(table.numel() for table in tables),
        reduction=run_stats.reduction,
        rows_per_table=run_stats.mean_rows_per_table,
        examples_per_second=run_stats.examples_per_second,
        seconds=run_stats.seconds,
        noise_multiplier=trainer.engine.noise_multiplier if isinstance(trainer, PrivateTrainer) else None,
        statement=None if statement is None else statement.to_dict(),
        planned_steps=trainer.total_steps,
        stopped=trainer.stopped,
        lost_steps=trainer.lost_steps(),
    )
