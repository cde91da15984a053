"""Streaming: periods one after the other, each with a ledger and a budget of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.interruptions import stop_at
from support.runs import config

from sparsedp.accounting import Ledger, PrivacyStatement, TradeOffCurve
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.runs import RunConfig, RunFolder, resume, stream, streaming
from sparsedp.runs.evaluation import evaluate_run
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import held_out, open_data, split_periods
from sparsedp.runs.trainer import PrivateTrainer
from sparsedp.selection.row_memory import RowMemory
from sparsedp.selection.vocabulary import StreamingVocabulary
from sparsedp.training import checkpoint


def asked(algorithm: str = "adafest", **changes: Any) -> RunConfig:
    fields = {"data": "generated:1200x4", "period": 1, "expected_batch_size": 100, "fest_mu": 0.5, **changes}
    return config(algorithm, **fields)


def test_periods_are_disjoint_and_later_ones_are_held_out() -> None:
    data = open_data("generated:1200x4")
    training, later = split_periods(asked(), data)
    assert [set(period.time.tolist()) for period in training] == [{0}, {1}, {2}]
    assert [set(period.time.tolist()) for period in later] == [{3}]
    training, later = split_periods(asked(period=3), data)  # of two periods one trains
    assert (len(training), len(later)) == (1, 1)
    assert set(held_out(asked(train_periods=1), data).time.tolist()) == {1, 2, 3}
    with pytest.raises(ValueError, match=r"^train_periods must leave"):
        split_periods(asked(train_periods=4), data)
    with pytest.raises(ValueError, match=r"^train_periods must leave"):
        split_periods(asked(period=10), data)


def test_the_costliest_period_counts(tmp_path: Path) -> None:
    result = stream(asked(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert result.periods == 3
    assert result.steps == 9
    assert result.training_rows == 900
    assert len(result.next_period_auc) == 3
    assert [record["step"] for record in folder.metrics()] == [3, 6, 9]
    assert folder.read_json("result") == asdict(result)
    assert result.statement == folder.read_json("statement")
    assert result.statement is not None
    # Three periods at epsilon 2 each: composed one after the other they would cost far more.
    assert 1.5 < result.statement["epsilon"] <= 2.0
    assert result.statement["delta"] == pytest.approx(1 / 3000)
    assert "disjoint" in result.statement["notes"][0]
    curve, alone = PrivacyStatement(**result.statement).trade_off, (result.statement["epsilon"], 1 / 3000)
    periods = [
        Ledger.read(path).statement(1 / 3000) for path in sorted(folder.path.glob("period-*/run.ledger"))
    ]
    assert len(periods) == 3
    worst = max(period.trade_off.advantage for period in periods)
    assert worst <= curve.advantage + 1e-9 <= 1.01 * worst
    assert curve.advantage < TradeOffCurve([alone]).advantage  # which epsilon and delta alone would say
    assert "delta is that of the smallest period: by default a period's is 1 / (10 x" in str(
        PrivacyStatement(**result.statement)
    )


def test_a_result_has_the_figures_of_each_period(tmp_path: Path) -> None:
    """By the names of a whole run's result, and as the ledgers of the periods have them."""
    result = stream(asked("adafest", delta=1e-4), tmp_path / "run")
    assert result.period_figures is not None
    assert len(result.period_figures) == 3
    for number, figures in enumerate(result.period_figures):
        ((event, count),) = Ledger.read(RunFolder(tmp_path / "run").period(number).ledger).events()
        assert (figures["steps"], figures["planned_steps"], figures["lost_steps"]) == (count, count, 0)
        assert event == PoissonSampledDpEvent(
            100 / figures["training_rows"], GaussianDpEvent(figures["noise_multiplier"])
        )
        assert figures["threshold"] > 0.0
    assert result.noise_multiplier is None


def test_a_stream_begun_before_periods_had_figures_is_finished_without(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stream(asked("dp-sgd"), tmp_path / "run", stop_at(4))
    path = RunFolder(tmp_path / "run").checkpoint
    state = checkpoint.load_file(path)
    assert len(state.pop("figures")) == 1
    checkpoint.write_state(state, path)
    result = resume(tmp_path / "run")
    assert result.periods == 3
    assert result.period_figures is None


def test_a_given_delta_is_said_to_be_each_periods(tmp_path: Path) -> None:
    result = stream(asked(delta=1e-4), tmp_path / "run")
    assert result.statement is not None
    assert result.statement["delta"] == 1e-4
    assert result.statement["notes"][1] == "each period has this delta"
    for number in range(3):
        ((event, count),) = Ledger.read(tmp_path / "run" / f"period-{number:03d}" / "run.ledger").events()
        assert isinstance(event, PoissonSampledDpEvent)
        assert count == 3


@pytest.mark.parametrize(
    ("frequencies", "paid"), [("first", [1, 0, 0]), ("all", [1, 1, 1]), ("running", [1, 1, 1])]
)
@pytest.mark.parametrize("algorithm", ["fest", "adafest+"])
def test_who_is_counted_pays(algorithm: str, frequencies: str, paid: list[int], tmp_path: Path) -> None:
    """Each period's ledger has one Gaussian for its own counts, if they were looked at."""
    result = stream(asked(algorithm, frequencies=frequencies), tmp_path / "run")
    for number, expected in enumerate(paid):
        events = Ledger.read(tmp_path / "run" / f"period-{number:03d}" / "run.ledger").events()
        assert sum(count for event, count in events if event == GaussianDpEvent(2.0)) == expected
        assert sum(count for event, count in events if event != GaussianDpEvent(2.0)) == 3
    assert result.statement is not None
    assert result.statement["epsilon"] <= 2.0
    assert result.reduction is not None
    assert result.reduction > 50


def test_which_periods_choose_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    count = streaming.count_columns

    for frequencies, expected in {
        "first": [(0, 0)],
        "all": [(0, 0), (0, 1), (0, 2)],
        "running": [(0, 0), (1, 1), (2, 2)],
    }.items():
        trained: list[int] = []
        jobs = streaming._trainer
        observed = seen.setdefault(frequencies, [])

        def counted(period: Any, *rest: Any, to: Any = observed, done: list[int] = trained) -> Any:
            to.append((len(done), int(period.time[0])))
            return count(period, *rest)

        def trainer(*arguments: Any, done: list[int] = trained, jobs: Any = jobs) -> Any:
            entered = jobs(*arguments)
            leave = entered.__exit__

            class Noted:
                def __enter__(self) -> Any:
                    return entered.__enter__()

                def __exit__(self, *error: Any) -> Any:
                    done.append(1)
                    return leave(*error)

            return Noted()

        with monkeypatch.context() as patched:
            patched.setattr(streaming, "count_columns", counted)
            patched.setattr(streaming, "_trainer", trainer)
            stream(asked("fest", frequencies=frequencies), tmp_path / frequencies)
        assert observed == expected


def test_without_privacy_there_is_nothing_to_state(tmp_path: Path) -> None:
    result = stream(asked("non-private"), tmp_path / "run")
    assert result.statement is None
    assert result.steps == 9
    assert not list((tmp_path / "run").glob("period-*"))


def test_memory_goes_from_one_period_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its sums, where nothing was interrupted."""
    observe, before, after = RowMemory.observe, list[int](), list[int]()

    def observed(self: RowMemory, *step: Any) -> Any:
        before.append(self._sums.known)
        found = observe(self, *step)
        after.append(self._sums.known)
        return found

    monkeypatch.setattr(RowMemory, "observe", observed)
    stream(asked("adafest-memory", memory_steps=100), tmp_path / "run")
    assert len(before) == 9
    assert before == [0, *after[:-1]]
    assert min(after) > 0


def test_a_stream_that_goes_on_from_a_file_has_the_chosen_rows_and_new_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost steps went on with the sums: they must not go on twice."""
    observe, seen = RowMemory.observe, list[tuple[int, int, int]]()

    def observed(self: RowMemory, *step: Any) -> Any:
        seen.append((self._step, self._sums.known, self._chosen[0].ids.size))
        if len(seen) == 5:
            raise KeyboardInterrupt  # in the second step of the second period
        return observe(self, *step)

    monkeypatch.setattr(RowMemory, "observe", observed)
    with pytest.raises(KeyboardInterrupt):
        stream(asked("adafest-memory", memory_steps=100, checkpoint_every=50), tmp_path / "run")
    resume(tmp_path / "run")
    step, known, chosen = seen[5]
    assert (step, known) == (3, 0)
    assert chosen > 0
    assert seen[3][:2] == (3, seen[3][1])
    assert seen[3][1] > 0


INTERRUPTED: list[tuple[str, dict[str, Any]]] = [
    ("adafest", {}),
    ("fest", {}),
    ("fest", {"frequencies": "all"}),
    ("adafest+", {"frequencies": "first"}),
    ("non-private", {}),
]


def steps_on_ledgers(path: Path) -> list[int]:
    return [
        sum(n for event, n in Ledger.read(ledger).events() if isinstance(event, PoissonSampledDpEvent))
        for ledger in sorted(path.glob("period-*/run.ledger"))
    ]


@pytest.mark.parametrize(("algorithm", "changes"), INTERRUPTED)
def test_a_stream_interrupted_after_a_checkpoint_ends_the_same(
    algorithm: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken after the second step of the first and of the second period: nothing lost, the same bits."""
    wanted = asked(algorithm, checkpoint_every=2, **changes)
    whole = stream(wanted, tmp_path / "whole")
    kind = PlainTrainer if algorithm == "non-private" else PrivateTrainer
    save, saved = kind.save, [0]

    def save_and_die(self: Any, path: Path, run_stats: RunStats) -> None:
        save(self, path, run_stats)
        saved[0] += 1
        if saved[0] in (1, 3):  # after step 2 of period 0; there the end is saved too, then period 1
            raise KeyboardInterrupt

    monkeypatch.setattr(kind, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        stream(wanted, tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "broken")
    found = resume(tmp_path / "broken")
    weights = load_file(RunFolder(tmp_path / "broken").weights)
    for name, values in load_file(RunFolder(tmp_path / "whole").weights).items():
        assert torch.equal(values, weights[name]), name
    timeless = {"seconds": 0.0, "examples_per_second": 0.0}
    assert {**asdict(found), **timeless} == {**asdict(whole), **timeless}
    assert RunFolder(tmp_path / "broken").metrics() == RunFolder(tmp_path / "whole").metrics()
    assert resume(tmp_path / "broken") == found
    assert not list((tmp_path / "broken" / "private").glob("period-*"))
    if whole.statement is not None:
        assert steps_on_ledgers(tmp_path / "broken") == [3, 3, 3]


@pytest.mark.parametrize(("algorithm", "changes"), INTERRUPTED[:-1])
def test_a_period_that_lost_steps_takes_fewer_and_stays_within_epsilon(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Broken at the second step of periods 0 and 1, one step after their checkpoints."""
    wanted = asked(algorithm, checkpoint_every=1, **changes)
    with pytest.raises(KeyboardInterrupt):
        stream(wanted, tmp_path / "broken", stop_at(2))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "broken", stop_at(3))  # step 2 of period 0, steps 1 and 2 of period 1
    found = resume(tmp_path / "broken")
    assert steps_on_ledgers(tmp_path / "broken") == [3, 3, 3]
    assert (found.steps, found.planned_steps, found.lost_steps) == (2 + 2 + 3, 9, 2)
    assert found.stopped is not None
    assert "which is a cap" in found.stopped
    assert found.statement is not None
    assert found.statement["epsilon"] <= 2.0
    for number in range(3):  # the choice of the rows was saved, and is not made and paid for again
        events = Ledger.read(tmp_path / "broken" / f"period-{number:03d}" / "run.ledger").events()
        assert sum(n for event, n in events if event == GaussianDpEvent(2.0)) <= 1


@pytest.mark.parametrize("frequencies", ["first", "all", "running"])
def test_counts_are_paid_for_before_their_noise_is_drawn(
    frequencies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is counted has the price on the ledger already, also for a period that trains much later."""
    observe = StreamingVocabulary.observe
    counted = []

    def observed(self: StreamingVocabulary, *arguments: Any) -> None:
        counted.append(len(counted))
        ledger = Ledger.read(tmp_path / "run" / f"period-{counted[-1]:03d}" / "run.ledger")
        assert dict(ledger.events())[GaussianDpEvent(2.0)] == 1
        observe(self, *arguments)

    monkeypatch.setattr(StreamingVocabulary, "observe", observed)
    stream(asked("fest", frequencies=frequencies), tmp_path / "run")
    assert counted == ([0] if frequencies == "first" else [0, 1, 2])


def test_the_model_is_evaluated_on_later_periods(tmp_path: Path) -> None:
    result = stream(asked(), tmp_path / "run")
    again = evaluate_run(tmp_path / "run")
    assert again.auc == result.auc
    assert again.rows == 300


def test_a_period_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^period: "):
        stream(asked(period=None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_time_is_named() -> None:
    data = open_data("generated:100")
    examples = data.take(np.arange(100))
    timeless = type(examples)(examples.numeric, examples.ids, examples.label)
    from sparsedp.data import ClickData

    with pytest.raises(ValueError, match=r"^time: "):
        split_periods(asked(), ClickData(timeless, data.schema))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("frequencies", ["first", "all", "running"])
def test_a_stream_that_cannot_be_paid_leaves_no_folder(
    frequencies: str, shared: bool, tmp_path: Path
) -> None:
    """The counts alone exceed epsilon: nothing is charged, and the next try may have the folder."""
    ledger = {"ledger": str(tmp_path / "shared.ledger")} if shared else {}
    dear = asked("fest", fest_mu=20.0, frequencies=frequencies, **ledger)
    with pytest.raises(ValueError, match="alone"):
        stream(dear, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert stream(asked("fest", train_periods=1, **ledger), tmp_path / "run").steps == 3


def test_a_stream_that_was_charged_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "_train_period", fail)
        with pytest.raises(ValueError, match="a fault"):
            stream(asked("fest", frequencies="all"), tmp_path / "run")
        with pytest.raises(ValueError, match="a fault"):
            stream(asked("non-private"), tmp_path / "plain")
    assert resume(tmp_path / "run").steps == 9
    assert RunFolder(tmp_path / "plain").has_config
