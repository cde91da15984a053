"""Streaming (FEST section 4.3): train period by period over time-ordered data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsedp.accounting import BudgetExceeded, EpsilonCap, Ledger, PrivacyStatement
from sparsedp.accounting.events import DpEvent
from sparsedp.core.counts import SparseCounts
from sparsedp.core.durable import keep_previous, previous_of
from sparsedp.core.tables import TableShape
from sparsedp.data import ClickData
from sparsedp.randomness import NoiseSource
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.checkpoints import CheckpointSchedule, save_checkpoint, whole_checkpoint
from sparsedp.runs.config import RunConfig
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.result import Result, finish_run
from sparsedp.runs.row_counts import count_columns, count_user_columns
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.setup import RunSetup
from sparsedp.runs.shared_budget import BudgetShare, SharedBudget, shared_budget
from sparsedp.runs.sources import features_of, held_out, split_periods
from sparsedp.runs.stream_statement import stream_statement
from sparsedp.runs.trainer import PrivateTrainer, Trainer, open_ledger
from sparsedp.runs.training import OnProgress, take_steps
from sparsedp.runs.users import user_sampler
from sparsedp.selection import FEST, Rule
from sparsedp.selection.base import default_contribution_norm
from sparsedp.selection.vocabulary import StreamingVocabulary
from sparsedp.training.checkpoint import load_file, whole_state, write_state


def stream(config: RunConfig, path: str | Path, on_progress: OnProgress | None = None) -> Result:
    """Train on the first periods in order, evaluate on the later ones.

    Guarantee: periods hold disjoint examples, and what an earlier period released is only post-processed by
    later ones, so the whole run satisfies what its costliest period does (parallel composition): each
    period is calibrated to the config's epsilon and delta by itself. With unit "user" a user may have rows in every
    period: all of them share the config's epsilon, one noise multiplier and one ledger (``SharedBudget``).
    """
    if config.period is None:
        raise ValueError("period: a streaming run needs the length of a period")
    setup = RunSetup.create(config, path)
    with setup.folder.removed_if_refused(lambda: _has_begun(setup)):
        return _run(setup, on_progress)


def resume_stream(folder: RunFolder, on_progress: OnProgress | None = None) -> Result:
    """Finish a streaming run: the interrupted period resumes from its last checkpoint."""
    return _run(RunSetup.reopen(folder), on_progress)


@dataclass
class _State:
    """The progress of a streaming run between two periods."""

    period: int = 0
    counted: int = 0
    """Periods whose rows were counted, with noise, for FEST."""
    planned_steps: int = 0
    stopped: str | None = None
    lost_steps: int = 0
    run_stats: RunStats = field(default_factory=RunStats)
    next_auc: list[float] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)
    """What each period's own result would be (``Result.period_figures``)."""
    withheld: list[str] = field(default_factory=list)
    """Buffers that training passes changed without noise."""
    rule: dict[str, Any] = field(default_factory=dict)
    """What the selection rule keeps from step to step, across periods: a function of what was released."""
    marks: dict[int, str] = field(default_factory=dict)
    """How far the ledger of each period was: it must still hold all that."""

    def share(self, budget: SharedBudget | None) -> BudgetShare | None:
        """What the next period has of a budget that all share."""
        charged = [int(each["steps"] + each["lost_steps"]) for each in self.figures]
        return None if budget is None else budget.share(self.period, charged)

    def save(self, path: Path, model: nn.Module, rows: _PeriodRows) -> None:
        progress = {**vars(self), "run_stats": self.run_stats.to_record()}
        others = {"module": model.state_dict(), "rows": rows.state(), "torch_rng": torch.get_rng_state()}
        keep_previous(path)
        write_state({**progress, **others}, path)

    @classmethod
    def load(cls, path: Path, model: nn.Module, rows: _PeriodRows) -> _State:
        path = whole_checkpoint(path)
        state = load_file(path)
        with whole_state(path):
            model.load_state_dict(state["module"])
            rows.restore(state["rows"])
            torch.set_rng_state(state["torch_rng"])
            # An earlier version saved none of these, and the result will have none.
            state = {"figures": [], "marks": {}, **state}
            fields = {name: state[name] for name in vars(cls()) if name != "run_stats"}
            fields["marks"] = {int(number): str(mark) for number, mark in state["marks"].items()}
            return cls(**fields, run_stats=RunStats.from_record(state["run_stats"]))


def _run(setup: RunSetup, on_progress: OnProgress | None) -> Result:
    config, folder, model = setup.config, setup.folder, setup.model
    assert isinstance(setup.data, ClickData)
    training, later = split_periods(config, setup.data)
    rows = _PeriodRows(config, model, training)
    budget = shared_budget(config, training, rows.events)
    state = _State.load(folder.checkpoint, model, rows) if folder.checkpoint.exists() else _State()
    _take_counts(folder, state, rows)
    _require_marks(setup, state)
    _discard_other_periods(folder, state.period)
    folder.discard_after(state.run_stats.steps)
    following = [*training[1:], later[0]]
    earlier: Rule | None = None
    for number in range(state.period, len(training)):
        _count_rows(setup, state, rows, number, budget)
        with _trainer(setup, training[number], rows, number, state.share(budget)) as trainer:
            if earlier is None:
                trainer.load_rule_state(state.rule)
            else:
                trainer.take_over_rule(earlier)
            planned = trainer.total_steps
            _train_period(setup, trainer, state, number, on_progress)
            statement, state.rule, earlier = trainer.statement(), trainer.rule_state(), trainer.rule
            if isinstance(trainer, PrivateTrainer):
                state.figures.append(_figures(trainer, len(training[number]), planned))
                assert trainer.ledger is not None
                state.marks[number] = trainer.ledger.mark
        state.statements += [] if statement is None else [statement.to_dict()]
        state.next_auc.append(evaluate(model, following[number]).auc)
        state.period = number + 1
        folder.log(
            {"step": state.run_stats.steps, "period": number, "auc": state.next_auc[-1], "epsilon": None}
        )
        state.save(folder.checkpoint, model, rows)
        _discard_other_periods(folder, state.period)
    return _finish(setup, state, training, evaluate(model, held_out(config, setup.data)))


def _train_period(
    setup: RunSetup, trainer: Trainer, state: _State, number: int, on_progress: OnProgress | None
) -> None:
    """Take the steps of one period, from its own checkpoint where there is one.

    Where periods share a budget, one that lost steps in a crash takes as many fewer: the rest is for later periods.
    """
    path = _mid_period(setup.folder, number)
    if path.exists():
        state.run_stats = trainer.resume(whole_checkpoint(path))
    state.planned_steps += trainer.total_steps
    if setup.config.unit == "user" and (lost := trainer.lost_steps()):
        trainer.total_steps = max(trainer.total_steps - lost, 0)
        trainer.stopped = f"period {number}: {lost} steps were lost in crashes, and epsilon, which is a cap, pays for no others"
    checkpoints = CheckpointSchedule(
        setup.config.checkpoint_every, lambda: save_checkpoint(trainer, path, state.run_stats)
    )
    for done in take_steps(setup.model, trainer, state.run_stats, on_progress):
        checkpoints.after_step(done)
    checkpoints.at_the_end()
    state.stopped = state.stopped or trainer.stopped
    state.lost_steps += trainer.lost_steps()
    state.withheld = sorted({*state.withheld, *trainer.withheld()})


def _figures(trainer: PrivateTrainer, rows: int, planned: int) -> dict[str, float]:
    """What the result of a period would have, by the names of a run's result."""
    return {
        "training_rows": rows,
        "steps": trainer.steps_taken,
        "planned_steps": planned,
        "lost_steps": trainer.lost_steps(),
        **trainer.step_figures(),
    }


def _mid_period(folder: RunFolder, number: int) -> Path:
    return folder.checkpoint.with_name(f"period-{number:03d}.pt")


def _discard_other_periods(folder: RunFolder, number: int) -> None:
    """Remove the checkpoints of periods other than this one: those of later periods follow another model than its own."""
    own = _mid_period(folder, number)
    for path in own.parent.glob("period-*.pt"):
        if path not in (own, previous_of(own)):
            path.unlink()


def _period_ledger(setup: RunSetup, number: int) -> Ledger:
    """A separate ledger for each period: their examples are disjoint, so their costs do not add up. Users have one."""
    if setup.config.unit == "user":
        return open_ledger(setup.config, setup.folder.ledger, setup.folder.run_name)
    folder = setup.folder.period(number)
    folder.path.mkdir(exist_ok=True)
    return open_ledger(setup.config, folder.ledger, setup.folder.period_name(number))


def _has_begun(setup: RunSetup) -> bool:
    """Whether anything was charged for a period; a run without privacy has begun when it has a folder."""
    if not setup.config.is_private:
        return True
    reached = takewhile(lambda number: number == 0 or setup.folder.period(number).path.exists(), count())
    return any(_period_ledger(setup, number).own_events() for number in reached)


def _require_marks(setup: RunSetup, state: _State) -> None:
    """Refuse a ledger of any period that lost what it held."""
    for number, mark in state.marks.items():
        _period_ledger(setup, number).require_mark(mark)


def _count_rows(
    setup: RunSetup, state: _State, rows: _PeriodRows, number: int, budget: SharedBudget | None
) -> None:
    """Count the rows that period ``number`` needs counted: each period's ledger is charged before the noise.

    A period whose epsilon crashes have used up is not counted again; its steps will be refused as well, or, where
    periods share a budget, have the rows of earlier counts.
    """
    config = setup.config
    to_count = [each for each in rows.counted_before(number) if each >= state.counted]
    for each in to_count:
        assert config.epsilon is not None
        own = EpsilonCap(config.epsilon, config.delta_for(rows.examples(each)))
        cap = own if budget is None else budget.cap()
        counts = rows.exact_counts(each)  # before the payment: what comes between it and the file may be lost
        with suppress(BudgetExceeded), _period_ledger(setup, each) as ledger:
            ledger.spend(rows.event, cap=cap)
            rows.add_noisy(counts)
            state.counted, state.marks[each] = each + 1, ledger.mark
            saved = {"counted": state.counted, "rows": rows.state(), "marks": state.marks}
            write_state(saved, setup.folder.choice)
    if to_count:
        state.save(setup.folder.checkpoint, setup.model, rows)


def _take_counts(folder: RunFolder, state: _State, rows: _PeriodRows) -> None:
    """Take up noisy counts that were paid for after the last checkpoint, rather than pay again."""
    if not folder.choice.exists():
        return
    try:
        saved = load_file(folder.choice)
    except ValueError as damaged:
        warnings.warn(f"{damaged}; the period's rows are counted, and paid for, again", stacklevel=2)
        return
    with whole_state(folder.choice):
        if saved["counted"] > state.counted:
            rows.restore(saved["rows"])
            state.counted = saved["counted"]
            state.marks |= {int(number): str(mark) for number, mark in saved.get("marks", {}).items()}


def _finish(setup: RunSetup, state: _State, training: list[ClickData], evaluation: Evaluation) -> Result:
    _require_marks(setup, state)
    statements = [PrivacyStatement(**each) for each in state.statements]
    ledgers = [_period_ledger(setup, number) for number in range(len(statements))]
    return finish_run(
        setup.folder,
        setup.model,
        evaluation=evaluation,
        run_stats=state.run_stats,
        statement=stream_statement(setup.config, statements, ledgers),
        withheld=state.withheld,
        training_rows=sum(len(period) for period in training),
        planned_steps=state.planned_steps,
        stopped=state.stopped,
        lost_steps=state.lost_steps,
        features=features_of(setup.model, training[0]),
        periods=len(training),
        period_figures=state.figures if len(state.figures) == len(training) else None,
        next_period_auc=state.next_auc,
    )


class _PeriodRows:
    """The row set of each period, and what choosing it costs the period's examples (or users)."""

    def __init__(self, config: RunConfig, model: nn.Module, periods: list[ClickData]) -> None:
        self._needed = config.method.row_set
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
        """What counting a period costs its examples (or users)."""
        return self._vocabulary.event

    @property
    def events(self) -> list[DpEvent]:
        """What counting costs in all periods together."""
        return [self.event for number in range(len(self._periods)) if self._config.counts_rows(number)]

    def exact_counts(self, number: int) -> dict[str, SparseCounts]:
        """The counts of period ``number``. Private: noise comes after, once they are paid for.

        An example, or a user with all its rows in the period, moves them by at most C (``StreamingVocabulary``).
        """
        period, config = self._periods[number], self._config
        sampler = user_sampler(config, period)
        if sampler is None:
            return count_columns(period, self._names, config.always_on_rows)
        space, stream = self._vocabulary.space, NoiseSource(config.seed).selection.fork(2 + number)
        return count_user_columns(
            period, sampler, self._names, space, default_contribution_norm(space), stream
        )

    def add_noisy(self, counts: dict[str, SparseCounts]) -> None:
        """Add the counts of a period, with noise."""
        self._vocabulary.observe(counts, self._stream)

    def state(self) -> dict[str, Any] | None:
        """What a resumed run needs; the stream's state for seeded runs only."""
        if not self._needed:
            return None
        sums = self._vocabulary.sums
        stream = None if self._config.seed is None else self._stream.state()
        return {"ids": torch.from_numpy(sums.ids), "sums": torch.from_numpy(sums.values), "stream": stream}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore what ``state`` returned."""
        if state is not None:
            self._vocabulary.restore(state["ids"].numpy(), state["sums"].numpy())
            if state["stream"] is not None:
                self._stream.restore(state["stream"])

    def fest(self, number: int) -> FEST | None:
        """The row set of period ``number``, with what its own examples were charged for it.

        What users were charged is in the budget that the periods share.
        """
        if not self._needed:
            return None
        own = self._config.unit == "example" and self._config.counts_rows(number)
        return self._vocabulary.fest(self._vocabulary.event if own else None)


@contextmanager
def _trainer(
    setup: RunSetup, period: ClickData, rows: _PeriodRows, number: int, share: BudgetShare | None
) -> Iterator[Trainer]:
    config, model = setup.config, setup.model
    trainer: Trainer
    if config.is_private:
        settings = config if config.seed is None else config.model_copy(update={"seed": config.seed + number})
        selection = selection_of(config, rows.fest(number))
        trainer = PrivateTrainer(settings, model, period, _period_ledger(setup, number), selection, share)
    else:
        trainer = PlainTrainer(config, model, period)
    try:
        yield trainer
    finally:
        trainer.close()
