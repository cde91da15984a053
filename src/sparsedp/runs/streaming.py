"""Streaming (FEST section 4.3): train period by period over time-ordered data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsedp.accounting import BudgetExceeded, EpsilonCap, Ledger, PrivacyStatement
from sparsedp.accounting.events import DpEvent
from sparsedp.core.tables import TableShape
from sparsedp.data import ClickData
from sparsedp.randomness import NoiseSource
from sparsedp.rows import SparseCounts
from sparsedp.runs.algorithms import count_columns, selection_of
from sparsedp.runs.checkpoints import CheckpointSchedule
from sparsedp.runs.config import RunConfig
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import fresh_model, held_out, open_data, split_periods
from sparsedp.runs.trainer import PlainTrainer, PrivateTrainer, Trainer, check_ledger, open_ledger
from sparsedp.runs.training import NOT_PRIVATE, OnProgress, take_steps
from sparsedp.selection import FEST
from sparsedp.selection.vocabulary import StreamingVocabulary
from sparsedp.training.checkpoint import write_state, write_weights


@dataclass(frozen=True)
class StreamResult:
    """What a streaming run came to."""

    auc: float
    """On all later periods together, after the last training period."""
    log_loss: float
    next_period_auc: list[float]
    """After each training period, on the period that follows it."""
    periods: int
    steps: int
    training_rows: int
    rows: float | None
    gradient_size: float | None
    table_coordinates: int
    reduction: float | None
    rows_per_table: dict[str, float]
    examples_per_second: float
    seconds: float
    statement: dict[str, Any] | None
    planned_steps: int | None = None
    stopped: str | None = None
    """Why fewer steps were taken than planned: epsilon is a cap, and crashes may have used up a part of it."""
    lost_steps: int = 0
    """Steps that crashes took away: paid for, and not in the model."""


def stream(config: RunConfig, path: str | Path, on_progress: OnProgress | None = None) -> StreamResult:
    """Train on the first periods in order, evaluate on the later ones.

    Guarantee: periods hold disjoint examples, and what an earlier period released is only post-processed by
    later ones, so the whole run satisfies what its costliest period does (parallel composition): each
    period is calibrated to the config's epsilon and delta by itself.
    """
    data = open_data(config.data)
    split_periods(config, data)
    model = fresh_model(config, data)
    check_ledger(config)
    folder = RunFolder(path)
    folder.create(config)
    return _run(config, folder, data, model, on_progress)


def resume_stream(folder: RunFolder, on_progress: OnProgress | None = None) -> StreamResult:
    """Finish a streaming run: the period that was interrupted goes on from its last checkpoint."""
    config = folder.config()
    data = open_data(config.data)
    return _run(config, folder, data, fresh_model(config, data), on_progress)


@dataclass
class _State:
    """How far a streaming run is, between two periods."""

    period: int = 0
    counted: int = 0
    """Periods whose rows were counted, with noise, for FEST."""
    planned_steps: int = 0
    stopped: str | None = None
    lost_steps: int = 0
    run_stats: RunStats = field(default_factory=RunStats)
    next_auc: list[float] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    """Buffers that training passes changed without noise."""

    def save(self, path: Path, model: nn.Module, rows: _RowsSource) -> None:
        plain = {**vars(self), "run_stats": self.run_stats.to_record()}
        state = {
            **plain,
            "module": model.state_dict(),
            "rows": rows.state(),
            "torch_rng": torch.get_rng_state(),
        }
        write_state(state, path)

    @classmethod
    def load(cls, path: Path, model: nn.Module, rows: _RowsSource) -> _State:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["module"])
        rows.restore(state["rows"])
        torch.set_rng_state(state["torch_rng"])
        fields = {name: state[name] for name in vars(cls()) if name != "run_stats"}
        return cls(**fields, run_stats=RunStats.from_record(state["run_stats"]))


def _run(
    config: RunConfig, folder: RunFolder, data: ClickData, model: nn.Module, on_progress: OnProgress | None
) -> StreamResult:
    training, later = split_periods(config, data)
    rows = _RowsSource(config, model, training)
    state = _State.load(folder.checkpoint, model, rows) if folder.checkpoint.exists() else _State()
    folder.forget_after(state.run_stats.steps)
    following = [*training[1:], later[0]]
    for number in range(state.period, len(training)):
        _count_rows(config, folder, model, state, rows, number)
        with _trainer(config, model, training[number], folder, rows, number) as trainer:
            _train_period(config, folder, model, trainer, state, number, on_progress)
            statement = trainer.statement()
        state.statements += [] if statement is None else [statement.to_dict()]
        state.next_auc.append(evaluate(model, following[number]).auc)
        state.period = number + 1
        folder.log(
            {"step": state.run_stats.steps, "period": number, "auc": state.next_auc[-1], "epsilon": None}
        )
        state.save(folder.checkpoint, model, rows)
        _mid_period(folder, number).unlink(missing_ok=True)
    return _finish(folder, model, state, training, evaluate(model, held_out(config, data)))


def _train_period(
    config: RunConfig,
    folder: RunFolder,
    model: nn.Module,
    trainer: Trainer,
    state: _State,
    number: int,
    on_progress: OnProgress | None,
) -> None:
    """Take the steps of one period, from its own checkpoint where there is one."""
    path = _mid_period(folder, number)
    if path.exists():
        state.run_stats = trainer.resume(path)
    checkpoints = CheckpointSchedule(config.checkpoint_every, lambda: trainer.save(path, state.run_stats))
    for done in take_steps(model, trainer, state.run_stats, on_progress):
        checkpoints.after_step(done)
    checkpoints.at_the_end()
    state.planned_steps += trainer.total_steps
    state.stopped = state.stopped or trainer.stopped
    state.lost_steps += trainer.lost_steps()
    state.withheld = sorted({*state.withheld, *trainer.withheld()})


def _mid_period(folder: RunFolder, number: int) -> Path:
    return folder.checkpoint.with_name(f"period-{number:03d}.pt")


def _period_ledger(config: RunConfig, folder: RunFolder, number: int) -> Ledger:
    """A ledger of its own for each period: their examples are disjoint, so their costs do not add up."""
    own = RunFolder(folder.path / f"period-{number:03d}")
    own.path.mkdir(exist_ok=True)
    return open_ledger(config, own.ledger, f"{folder.run_name}, period {number}")


def _count_rows(
    config: RunConfig, folder: RunFolder, model: nn.Module, state: _State, rows: _RowsSource, number: int
) -> None:
    """Count the rows that period ``number`` needs counted: each period's ledger is charged before the noise.

    A period whose epsilon crashes have used up is not counted again; its steps will be refused as well.
    """
    due = [each for each in rows.counted_before(number) if each >= state.counted]
    for each in due:
        assert config.epsilon is not None
        cap = EpsilonCap(config.epsilon, config.delta_for(rows.examples(each)))
        with suppress(BudgetExceeded), _period_ledger(config, folder, each) as ledger:
            ledger.spend(rows.event, cap=cap)
            rows.count(each)
            state.counted = each + 1
    if due:
        state.save(folder.checkpoint, model, rows)


def _finish(
    folder: RunFolder, model: nn.Module, state: _State, training: list[ClickData], final: Evaluation
) -> StreamResult:
    statement = _composed([PrivacyStatement(**each) for each in state.statements])
    if statement is not None:
        folder.write_json("statement", statement.to_dict())
    privacy = str(statement) if statement else NOT_PRIVATE
    write_weights(model, folder.weights, privacy=privacy, without=state.withheld)
    run_stats = state.run_stats
    result = StreamResult(
        auc=final.auc,
        log_loss=final.log_loss,
        next_period_auc=state.next_auc,
        periods=len(training),
        steps=run_stats.steps,
        training_rows=sum(len(period) for period in training),
        rows=run_stats.mean_rows,
        gradient_size=run_stats.mean_gradient_size,
        table_coordinates=run_stats.table_coordinates,
        reduction=run_stats.reduction,
        rows_per_table=run_stats.mean_rows_per_table,
        examples_per_second=run_stats.examples_per_second,
        seconds=run_stats.seconds,
        statement=None if statement is None else statement.to_dict(),
        planned_steps=state.planned_steps,
        stopped=state.stopped,
        lost_steps=state.lost_steps,
    )
    folder.write_json("result", asdict(result))
    return result


class _RowsSource:
    """Which rows FEST trains on in each period, and what that costs the period's examples."""

    def __init__(self, config: RunConfig, model: nn.Module, periods: list[ClickData]) -> None:
        self._needed = config.algorithm in ("fest", "adafest+")
        self._config, self._periods = config, periods
        if not self._needed:
            return
        names = getattr(model, "table_names", None)
        if names is None:
            raise ValueError(
                f"model {config.model} names no tables, which streaming {config.algorithm} needs"
            )
        self._names = names
        assert config.rows is not None
        shapes = []
        for name in names:
            table = model.get_submodule(name)
            assert isinstance(table, nn.Embedding | nn.EmbeddingBag)
            shapes.append(TableShape(name, table.num_embeddings, table.embedding_dim))
        self._vocabulary = StreamingVocabulary(shapes, config.rows, config.fest_mu, config.always_on_rows)
        self._stream = NoiseSource(config.seed).selection.fork(1)

    def counted_before(self, number: int) -> list[int]:
        """Which periods' counts choose the rows of period ``number``, as far as they are new to it."""
        if not self._needed:
            return []
        return {
            "first": [0],
            "all": list(range(len(self._periods))),
            "running": [number],
        }[self._config.frequencies]

    def examples(self, number: int) -> int:
        """How many examples a period has."""
        return len(self._periods[number])

    @property
    def event(self) -> DpEvent:
        """What counting a period costs its examples."""
        return self._vocabulary.event

    def count(self, number: int) -> None:
        """Add the noisy counts of period ``number``."""
        counts = count_columns(self._periods[number], self._names, self._config.always_on_rows)
        self._vocabulary.observe(counts, self._stream)

    def state(self) -> dict[str, Any] | None:
        """What a resumed run needs; the stream's state for seeded runs only."""
        if not self._needed:
            return None
        sums = self._vocabulary.sums()
        stream = None if self._config.seed is None else self._stream.state()
        return {"ids": torch.from_numpy(sums.ids), "sums": torch.from_numpy(sums.counts), "stream": stream}

    def restore(self, state: dict[str, Any] | None) -> None:
        """The reverse."""
        if state is not None:
            self._vocabulary.restore(SparseCounts(state["ids"].numpy(), state["sums"].numpy()))
            if state["stream"] is not None:
                self._stream.restore(state["stream"])

    def fest(self, number: int) -> FEST | None:
        """The row set of period ``number``, with what its own examples paid for it."""
        if not self._needed:
            return None
        pays = self._config.frequencies != "first" or number == 0
        return self._vocabulary.fest(self._vocabulary.event if pays else None)


@contextmanager
def _trainer(
    config: RunConfig, model: nn.Module, period: ClickData, folder: RunFolder, rows: _RowsSource, number: int
) -> Iterator[Trainer]:
    trainer: Trainer
    if config.algorithm == "non-private":
        trainer = PlainTrainer(config, model, period)
    else:
        settings = config if config.seed is None else config.model_copy(update={"seed": config.seed + number})
        ledger = _period_ledger(config, folder, number)
        trainer = PrivateTrainer(settings, model, period, ledger, selection_of(config, rows.fest(number)))
    try:
        yield trainer
    finally:
        trainer.close()


def _composed(statements: list[PrivacyStatement]) -> PrivacyStatement | None:
    if not statements:
        return None
    worst = max(statements, key=lambda statement: statement.epsilon)
    return PrivacyStatement(
        epsilon=worst.epsilon,
        delta=max(statement.delta for statement in statements),
        adjacency=worst.adjacency,
        unit=worst.unit,
        released="the model after every step of every period",
        private=all(statement.private for statement in statements),
        notes=(f"{len(statements)} periods of disjoint examples: the costliest one counts",),
    )
