"""Streaming (FEST section 4.3): train period by period over time-ordered data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsedp.accounting import PrivacyStatement
from sparsedp.data import ClickData
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowCounts, TableShape
from sparsedp.runs.algorithms import count_columns, selection_of
from sparsedp.runs.config import RunConfig
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.job import Job, PlainJob, PrivateJob
from sparsedp.runs.sources import fresh_model, held_out, open_data, split_periods
from sparsedp.runs.tally import Tally
from sparsedp.runs.trainer import NOT_PRIVATE, Watcher, take_steps
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


def stream(config: RunConfig, path: str | Path, watch: Watcher | None = None) -> StreamResult:
    """Train on the first periods in order, evaluate on the later ones.

    Guarantee: periods hold disjoint examples, and what an earlier period released is only post-processed by
    later ones, so the whole run satisfies what its costliest period does (parallel composition): each
    period is calibrated to the config's epsilon and delta by itself.
    """
    data = open_data(config.data)
    split_periods(config, data)
    model = fresh_model(config, data)
    folder = RunFolder(path)
    folder.create(config)
    return _run(config, folder, data, model, watch)


def resume_stream(folder: RunFolder, watch: Watcher | None = None) -> StreamResult:
    """Finish a streaming run: the period that was interrupted begins anew, and pays for both attempts."""
    config = folder.config()
    data = open_data(config.data)
    return _run(config, folder, data, fresh_model(config, data), watch)


@dataclass
class _State:
    """How far a streaming run is, between two periods."""

    period: int = 0
    tally: Tally = field(default_factory=Tally)
    next_auc: list[float] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)

    def save(self, path: Path, model: nn.Module, rows: _RowsSource) -> None:
        plain = {**vars(self), "tally": self.tally.to_record()}
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
        tally = Tally.from_record(state["tally"])
        return cls(state["period"], tally, state["next_auc"], state["statements"])


def _run(
    config: RunConfig, folder: RunFolder, data: ClickData, model: nn.Module, watch: Watcher | None
) -> StreamResult:
    training, later = split_periods(config, data)
    rows = _RowsSource(config, model, training)
    if folder.checkpoint.exists():
        state = _State.load(folder.checkpoint, model, rows)
    else:
        rows.observe_ahead()
        state = _State()
        state.save(folder.checkpoint, model, rows)
    folder.forget_after(state.tally.steps)
    following = [*training[1:], later[0]]
    for number in range(state.period, len(training)):
        with _job(config, model, training[number], folder, rows, number) as job:
            for _ in take_steps(model, job, state.tally, watch):
                pass
            statement = job.statement()
        state.statements += [] if statement is None else [statement.to_dict()]
        state.next_auc.append(evaluate(model, following[number]).auc)
        state.period = number + 1
        folder.log({"step": state.tally.steps, "period": number, "auc": state.next_auc[-1], "epsilon": None})
        state.save(folder.checkpoint, model, rows)
    return _finish(folder, model, state, training, evaluate(model, held_out(config, data)))


def _finish(
    folder: RunFolder, model: nn.Module, state: _State, training: list[ClickData], final: Evaluation
) -> StreamResult:
    statement = _composed([PrivacyStatement(**each) for each in state.statements])
    if statement is not None:
        folder.write_json("statement", statement.to_dict())
    write_weights(model, folder.weights, privacy=str(statement) if statement else NOT_PRIVATE)
    tally = state.tally
    result = StreamResult(
        auc=final.auc,
        log_loss=final.log_loss,
        next_period_auc=state.next_auc,
        periods=len(training),
        steps=tally.steps,
        training_rows=sum(len(period) for period in training),
        rows=tally.mean_rows,
        gradient_size=tally.mean_gradient_size,
        table_coordinates=tally.table_coordinates,
        reduction=tally.reduction,
        rows_per_table=tally.mean_rows_per_table,
        examples_per_second=tally.examples_per_second,
        seconds=tally.seconds,
        statement=None if statement is None else statement.to_dict(),
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

    def observe_ahead(self) -> None:
        """Count all periods before the first is trained on, where all of them choose the rows."""
        if self._needed and self._config.frequencies == "all":
            for period in self._periods:
                self._observe(period)

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
            self._vocabulary.restore(RowCounts(state["ids"].numpy(), state["sums"].numpy()))
            if state["stream"] is not None:
                self._stream.restore(state["stream"])

    def _observe(self, period: ClickData) -> None:
        counts = count_columns(period, self._names, self._config.always_on_rows)
        self._vocabulary.observe(counts, self._stream)

    def fest(self, number: int) -> FEST | None:
        """The row set of period ``number``."""
        if not self._needed:
            return None
        source = self._config.frequencies
        if source == "running" or (source == "first" and number == 0):
            self._observe(self._periods[number])
        pays = source != "first" or number == 0
        return self._vocabulary.fest(self._vocabulary.event if pays else None)


@contextmanager
def _job(
    config: RunConfig, model: nn.Module, period: ClickData, folder: RunFolder, rows: _RowsSource, number: int
) -> Iterator[Job]:
    job: Job
    if config.algorithm == "non-private":
        job = PlainJob(config, model, period)
    else:
        # A ledger of its own for each period: their examples are disjoint, so their costs do not add up.
        own = RunFolder(folder.path / f"period-{number:03d}")
        own.path.mkdir(exist_ok=True)
        settings = config if config.seed is None else config.model_copy(update={"seed": config.seed + number})
        job = PrivateJob(settings, model, period, own, selection_of(config, rows.fest(number)))
    try:
        yield job
    finally:
        job.close()


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
