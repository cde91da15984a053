"""Training a model from a config into a folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparsedp.accounting import BudgetExceeded, PrivacyStatement
from sparsedp.data import ClickData, TextData
from sparsedp.runs.checkpoints import CheckpointSchedule, save_checkpoint, whole_checkpoint
from sparsedp.runs.config import RunConfig
from sparsedp.runs.curves import Curves, curves
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.result import Result, finish_run
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.setup import RunSetup
from sparsedp.runs.sources import features_of, split
from sparsedp.runs.trainer import PrivateTrainer, Trainer, open_ledger


@dataclass(frozen=True)
class Progress:
    """The state of a running training, for a progress bar."""

    step: int
    total: int
    examples_per_second: float
    spent: PrivacyStatement | None
    """An upper bound on what was spent so far; None without privacy, and where another process knows it."""
    rows: float | None


OnProgress = Callable[[Progress], None]


def train(config: RunConfig, path: str | Path, on_progress: OnProgress | None = None) -> Result:
    """Train a new run into the folder ``path``."""
    if config.period is not None:
        raise ValueError("period: a streaming run is trained with sparsedp.runs.stream")
    setup = RunSetup.create(config, path)
    with setup.folder.removed_if_refused(lambda: _has_begun(setup)):
        return _run(setup, on_progress)


def resume_training(folder: RunFolder, on_progress: OnProgress | None = None) -> Result:
    """Finish the run in ``folder`` from its checkpoint, or from the start where there is none."""
    if folder.shared_checkpoint.exists():
        raise ValueError(f"{folder.path}: was trained on several processes; resume it with --nproc")
    return _run(RunSetup.reopen(folder), on_progress)


def _has_begun(setup: RunSetup) -> bool:
    """Whether anything was charged for a run; one without privacy has begun when it has a folder."""
    if not setup.config.is_private:
        return True
    return bool(open_ledger(setup.config, setup.folder.ledger, setup.folder.run_name).own_events())


def _run(setup: RunSetup, on_progress: OnProgress | None) -> Result:
    config, folder, model = setup.config, setup.folder, setup.model
    training, held_out = split(config, setup.data)
    trainer: Trainer
    if config.is_private:
        trainer = PrivateTrainer(config, model, training, open_ledger(config, folder.ledger, folder.run_name))
    else:
        trainer = PlainTrainer(config, model, training)
    try:
        run_stats = RunStats()
        if folder.checkpoint.exists():
            run_stats = trainer.resume(whole_checkpoint(folder.checkpoint))
        elif any((trainer.choose_once(folder.choice), trainer.lower_rates(config, training, folder.choice))):
            trainer.save(folder.checkpoint, run_stats)
        folder.discard_after(trainer.steps_taken)
        evaluation = _loop(setup, trainer, held_out, run_stats, on_progress)
        calibrated = trainer.calibrate(config, training)
        if calibrated:
            evaluation = evaluate(model, held_out)
        return _finish(setup, trainer, training, evaluation, run_stats, calibrated)
    finally:
        trainer.close()


def _loop(
    setup: RunSetup,
    trainer: Trainer,
    held_out: ClickData | TextData,
    run_stats: RunStats,
    on_progress: OnProgress | None,
) -> Evaluation:
    """Train to the end, with evaluations and checkpoints on the way; return the last evaluation."""
    config, folder, model = setup.config, setup.folder, setup.model
    checkpoints = CheckpointSchedule(
        config.checkpoint_every, lambda: save_checkpoint(trainer, folder.checkpoint, run_stats)
    )
    evaluation = None
    with curves(folder.tensorboard) as board:
        for done in take_steps(model, trainer, run_stats, on_progress):
            evaluation = None
            if config.evaluate_every and done % config.evaluate_every == 0 and done < trainer.total_steps:
                evaluation = evaluate(model, held_out)
                _record(folder, board, trainer, run_stats, evaluation)
            checkpoints.after_step(done)
        if (flushed := trainer.flush()) is not None:
            run_stats.add_released(flushed)
            evaluation = None
        checkpoints.at_the_end()
        if evaluation is None:  # else the run ended early, just where it was evaluated
            evaluation = evaluate(model, held_out)
            folder.discard_after(trainer.steps_taken - 1)
            _record(folder, board, trainer, run_stats, evaluation)
    return evaluation


def take_steps(
    model: nn.Module, trainer: Trainer, run_stats: RunStats, on_progress: OnProgress | None
) -> Iterator[int]:
    """Train to the last step of the trainer; yield the number of steps after each of them.

    Where crashes have used up a part of epsilon, or other runs the ledger's budget, the end comes before the
    planned one: at the step that would pass it. A run that cannot take a single step raises ``BudgetExceeded``.
    """
    taken, examples, seconds = trainer.steps_taken, 0, 0.0
    while taken < trainer.total_steps:
        for batch in trainer.batches():
            started = time.perf_counter()
            try:
                size = train_step(model, trainer, batch)
            except BudgetExceeded as refusal:
                if not run_stats.steps:
                    raise
                trainer.stopped = str(refusal)
                return
            examples, seconds = examples + size, seconds + time.perf_counter() - started
            if trainer.is_mid_batch:
                continue
            taken = trainer.steps_taken
            run_stats.add(trainer.last_step(), examples * trainer.ranks, seconds)
            examples, seconds = 0, 0.0
            if on_progress is not None:
                on_progress(_progress(trainer, run_stats))
            yield taken
            if taken == trainer.total_steps:
                return


def train_step(model: nn.Module, trainer: Trainer, batch: Any) -> int:
    """Train on one batch (or piece of one): forward, backward and step. Returns its number of examples."""
    trainer.zero_grad()
    size = len(batch["labels"]) if isinstance(batch, Mapping) else len(batch[1])
    if size or not isinstance(batch, Mapping):  # attention has no empty batch
        (trainer.weight() * _loss(model, batch)).backward()  # type: ignore[no-untyped-call]
    trainer.step()
    return size


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean loss: a text classifier's own, else that of a click."""
    if isinstance(batch, Mapping):
        return model.loss(batch)  # type: ignore[operator, no-any-return]
    features, label = batch
    return cross_entropy(model(*features), label)


def _progress(trainer: Trainer, run_stats: RunStats) -> Progress:
    """What a progress bar shows."""
    return Progress(
        trainer.steps_taken,
        trainer.total_steps,
        run_stats.examples_per_second,
        trainer.spent(),
        run_stats.mean_rows,
    )


def _record(
    folder: RunFolder, board: Curves, trainer: Trainer, run_stats: RunStats, evaluation: Evaluation
) -> None:
    step = trainer.steps_taken
    record = {
        "step": step,
        "auc": evaluation.auc,
        "log_loss": evaluation.log_loss,
        **({} if evaluation.accuracy is None else {"accuracy": evaluation.accuracy}),
        "epsilon": None if (spent := trainer.spent()) is None else spent.epsilon,
        "rows": run_stats.mean_rows,
        "gradient_size": run_stats.mean_gradient_size,
        "reduction": run_stats.reduction,
    }
    folder.log(record | {"log_loss": evaluation.log_loss if math.isfinite(evaluation.log_loss) else None})
    for name, value in record.items():
        if value is not None and name != "step":
            board.add_scalar(name, value, step)


def _finish(
    setup: RunSetup,
    trainer: Trainer,
    training: ClickData | TextData,
    evaluation: Evaluation,
    run_stats: RunStats,
    calibrated: bool,
) -> Result:
    return finish_run(
        setup.folder,
        setup.model,
        evaluation=evaluation,
        run_stats=run_stats,
        statement=trainer.statement(),
        withheld=trainer.withheld(),
        training_rows=len(training),
        **(trainer.step_figures() if isinstance(trainer, PrivateTrainer) else {}),
        features=features_of(setup.model, setup.data),
        planned_steps=trainer.total_steps,
        stopped=trainer.stopped,
        lost_steps=trainer.lost_steps(),
        calibrated=None if setup.config.calibration_mu is None else calibrated,
    )
