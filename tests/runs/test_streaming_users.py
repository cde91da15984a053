"""Streams that protect users: one noise, one ledger and one epsilon for all periods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.interruptions import stop_at
from support.visits import ROWS_PER_USER, prepare_visits, visits_config

from sparsedp.accounting import (
    EpsilonCap,
    Ledger,
    PrivacyStatement,
    TradeOffCurve,
    epsilon_of,
    trade_off_curve,
)
from sparsedp.accounting.events import (
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
)
from sparsedp.data import ClickData
from sparsedp.runs import RunFolder, resume, start, stream, streaming, trainer
from sparsedp.runs.choosing import choose
from sparsedp.runs.config import RunConfig
from sparsedp.runs.evaluation import evaluate_run
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import held_out
from sparsedp.runs.trainer import PrivateTrainer
from sparsedp.selection.vocabulary import StreamingVocabulary
from sparsedp.training import UserSampler

COUNT = GaussianDpEvent(2.0)


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_visits(tmp_path_factory.mktemp("visits"))


def spent(path: Path) -> list[tuple[DpEvent, int]]:
    """What the run's one ledger holds: there are no others."""
    assert not list(path.glob("period-*"))
    return list(Ledger.read(RunFolder(path).ledger).events())


def steps_of(path: Path) -> list[int]:
    return [count for event, count in spent(path) if event != COUNT]


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_all_periods_are_one_composition(sample: str, visits: Path, tmp_path: Path) -> None:
    bounds = list[float]()
    result = stream(
        visits_config(visits, "adafest", user_sampling=sample),
        tmp_path / "run",
        lambda progress: bounds.append(progress.spent.epsilon),  # type: ignore[union-attr]
    )
    assert bounds == sorted(bounds)
    statement = PrivacyStatement(**(result.statement or {}))
    data = ClickData.open(visits)
    assert statement.delta == 1 / (10 * np.unique(data.user[data.time < 3]).size)
    assert (statement.unit, statement.adjacency) == ("user", "add-or-remove-one")
    assert statement.released == "the model after every step of every period"
    assert statement.notes[0].startswith(
        "3 periods: a user may have rows in each of them, so the periods compose in"
    )
    events = spent(tmp_path / "run")
    kind = PoissonSampledDpEvent if sample == "users" else MixtureOfGaussiansDpEvent
    assert all(isinstance(event, kind) for event, _ in events)
    assert statement.epsilon == epsilon_of(events, statement.delta)
    assert 0.98 * 4.0 < statement.epsilon <= 4.0
    assert statement.epsilon <= bounds[-1] <= 4.0
    assert max(epsilon_of([event], statement.delta) for event in events) < 0.8 * statement.epsilon
    curve = Ledger.read(RunFolder(tmp_path / "run").ledger).statement(statement.delta).trade_off
    assert statement.trade_off.advantage == pytest.approx(curve.advantage)
    costliest = TradeOffCurve.worst_of([trade_off_curve([event]) for event in events])
    assert costliest.advantage < 0.9 * curve.advantage
    assert result.period_figures is not None
    assert len({figures["noise_multiplier"] for figures in result.period_figures}) == 1
    assert [figures["steps"] for figures in result.period_figures] == [count for _, count in events]
    assert (result.lost_steps, result.stopped) == (0, None)


@pytest.mark.parametrize("sample", ["users", "rows"])
@pytest.mark.parametrize(("frequencies", "counts"), [("first", 1), ("all", 3), ("running", 3)])
def test_every_count_is_on_the_ledger(
    sample: str, frequencies: str, counts: int, visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its noise is drawn, and within epsilon; a user counts once for a row in each period."""
    observe, seen = StreamingVocabulary.observe, list[int]()
    users = np.unique(ClickData.open(visits).user)

    def observed(self: StreamingVocabulary, found: Any, *rest: Any) -> None:
        seen.append(dict(spent(tmp_path / "run"))[COUNT])
        (one,) = found.values()
        assert one.values.max() <= len(users)  # each counts once
        observe(self, found, *rest)

    monkeypatch.setattr(StreamingVocabulary, "observe", observed)
    asked = visits_config(visits, "fest", frequencies=frequencies, user_sampling=sample)
    result = stream(asked, tmp_path / "run")
    assert seen == list(range(1, counts + 1))
    assert dict(spent(tmp_path / "run"))[COUNT] == counts
    assert result.statement is not None
    assert 0.98 * 4.0 < result.statement["epsilon"] <= 4.0
    assert result.stopped is None
    assert not any("taken as one for users" in note for note in result.statement["notes"])


def test_a_cap_on_rows_holds_in_each_period(
    visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of a period has the cap, which no user passes in it: others of its rows train in other periods."""
    most, load = list[int](), trainer.loader_of

    def noting(config: RunConfig, data: ClickData, sampler: UserSampler) -> Any:
        trained = np.fromiter(sampler, np.int64)
        most.append(np.unique(data.user[trained], return_counts=True)[1].max())
        assert trained.size == sampler.population
        return load(config, data, sampler)

    monkeypatch.setattr(trainer, "loader_of", noting)
    result = stream(visits_config(visits, user_sampling="rows", rows_per_user=2), tmp_path / "run")
    assert most == [2, 2, 2]
    for event, _ in spent(tmp_path / "run"):
        assert isinstance(event, MixtureOfGaussiansDpEvent)
        assert max(event.sensitivities) == 2
    assert result.statement is not None
    assert "a cap on a user's rows is one in each period" in result.statement["notes"][0]


INTERRUPTED: list[tuple[str, dict[str, Any]]] = [
    ("adafest", {}),
    ("fest", {"frequencies": "running"}),
    ("fest", {"frequencies": "all", "user_sampling": "rows"}),
]


@pytest.mark.parametrize(("algorithm", "changes"), INTERRUPTED)
def test_a_stream_interrupted_after_a_checkpoint_ends_the_same(
    algorithm: str, changes: dict[str, Any], visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = visits_config(visits, algorithm, checkpoint_every=2, **changes)
    whole = stream(asked, tmp_path / "whole")
    save, saved = PrivateTrainer.save, [0]

    def save_and_die(self: Any, path: Path, run_stats: RunStats) -> None:
        save(self, path, run_stats)
        saved[0] += 1
        if saved[0] in (1, 4):
            raise KeyboardInterrupt

    monkeypatch.setattr(PrivateTrainer, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "broken")
    found = resume(tmp_path / "broken")
    weights = load_file(RunFolder(tmp_path / "broken").weights)
    for name, values in load_file(RunFolder(tmp_path / "whole").weights).items():
        assert torch.equal(values, weights[name]), name
    timeless = {"seconds": 0.0, "examples_per_second": 0.0}
    assert {**asdict(found), **timeless} == {**asdict(whole), **timeless}
    assert spent(tmp_path / "broken") == spent(tmp_path / "whole")
    assert resume(tmp_path / "broken") == found


@pytest.mark.parametrize(("algorithm", "changes"), INTERRUPTED)
def test_steps_that_crashes_took_are_not_taken_from_later_periods(
    algorithm: str, changes: dict[str, Any], visits: Path, tmp_path: Path
) -> None:
    """Broken one step after a checkpoint in periods 0 and 1: these take fewer, and all is within epsilon."""
    asked = visits_config(visits, algorithm, checkpoint_every=1, **changes)
    whole = stream(asked, tmp_path / "whole")
    assert whole.period_figures is not None
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "broken", stop_at(2))
    first = int(whole.period_figures[0]["steps"])
    with pytest.raises(KeyboardInterrupt):
        resume(
            tmp_path / "broken", stop_at(first - 2 + 2)
        )  # the rest of period 0, then two steps of period 1
    found = resume(tmp_path / "broken")
    assert spent(tmp_path / "broken") == spent(tmp_path / "whole")
    assert (found.steps, found.planned_steps, found.lost_steps) == (whole.steps - 2, whole.steps, 2)
    assert found.period_figures is not None
    assert [figures["lost_steps"] for figures in found.period_figures] == [1, 1, 0]
    planned = [figures["planned_steps"] for figures in found.period_figures]
    assert planned == [figures["planned_steps"] for figures in whole.period_figures]
    assert found.stopped is not None
    assert "period 0: 1 steps were lost in crashes, and epsilon, which is a cap" in found.stopped
    assert found.statement == whole.statement


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_periods_whose_steps_cost_the_same_know_their_own(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger counts them together: a lost step is of the period that lost it, and what was spent is known cheaply."""
    data, bounds = prepare_visits(tmp_path, regular=True), list[float]()
    asked = visits_config(data, user_sampling=sample, checkpoint_every=1, epochs=6)
    whole = stream(asked, tmp_path / "whole", lambda progress: bounds.append(progress.spent.epsilon))  # type: ignore[union-attr]
    assert len(spent(tmp_path / "whole")) == 1
    assert whole.lost_steps == 0
    assert whole.statement is not None
    assert bounds == sorted(bounds)
    assert whole.statement["epsilon"] <= bounds[-1] <= 4.0
    assert len(set(bounds)) < len(bounds) / 2  # not computed anew at every step
    steps = whole.steps // 3
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "broken", stop_at(steps + 2))
    found = resume(tmp_path / "broken")
    assert found.period_figures is not None
    assert [figures["lost_steps"] for figures in found.period_figures] == [0, 1, 0]
    assert [figures["steps"] for figures in found.period_figures] == [steps, steps - 1, steps]
    assert spent(tmp_path / "broken") == spent(tmp_path / "whole")


def test_crashes_without_end_stay_within_epsilon(visits: Path, tmp_path: Path) -> None:
    """Each start loses a step or pays for a count again: the run ends, and its ledger never holds more than epsilon."""
    asked = visits_config(visits, "fest", checkpoint_every=1000)
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "run", stop_at(1))
    for _ in range(40):
        try:
            found = resume(tmp_path / "run", stop_at(1))
            break
        except KeyboardInterrupt:
            continue
    cap = EpsilonCap(4.0, (found.statement or {})["delta"])
    assert epsilon_of(spent(tmp_path / "run"), cap.target_delta) <= 4.0
    assert found.lost_steps == sum(steps_of(tmp_path / "run")) - found.steps > 5


@pytest.mark.parametrize("times", [1, 3])
def test_lost_counts_are_paid_from_the_same_epsilon(
    times: int, visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between a payment and the file of the counts: they are paid for again, and steps are left out."""
    write = streaming.write_state

    def dies(state: dict[str, Any], path: Path) -> None:
        if path.name == "choice.pt":
            raise KeyboardInterrupt
        write(state, path)

    asked = visits_config(visits, "fest", frequencies="first")
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "write_state", dies)
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                stream(asked, tmp_path / "run") if not (tmp_path / "run").exists() else resume(
                    tmp_path / "run"
                )
    found = resume(tmp_path / "run")
    assert dict(spent(tmp_path / "run"))[COUNT] == times + 1
    assert found.statement is not None
    assert found.statement["epsilon"] <= 4.0
    assert found.steps < (found.planned_steps or 0)
    assert "which is a cap" in (found.stopped or "")


@pytest.mark.parametrize("when", ["counted", "between periods", "in a period"])
def test_a_ledger_that_lost_what_was_spent_is_refused(
    when: str, visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the run was broken: a new ledger would forget earlier periods."""

    def dies(*_arguments: object) -> None:
        raise KeyboardInterrupt

    if when == "between periods":
        monkeypatch.setattr(streaming._State, "save", then(streaming._State.save, dies))
    elif when == "counted":
        monkeypatch.setattr(streaming._State, "save", dies)
    else:
        monkeypatch.setattr(PrivateTrainer, "statement", dies)
    asked = visits_config(visits, "fest" if when == "counted" else "dp-sgd")
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "run")
    monkeypatch.undo()
    RunFolder(tmp_path / "run").ledger.unlink()
    with pytest.raises(ValueError, match=r"does not hold the .* bytes that were noted"):
        resume(tmp_path / "run")


def then(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def both(*arguments: Any) -> None:
        first(*arguments)
        second()

    return both


def test_a_shared_ledger_holds_all_runs(visits: Path, tmp_path: Path) -> None:
    """Each run within its own epsilon, by its name; the statement is of all that the ledger holds."""
    first, second = (
        stream(visits_config(visits, ledger=str(tmp_path / "all.ledger")), tmp_path / name) for name in "ab"
    )
    assert first.statement is not None
    assert second.statement is not None
    assert first.statement["epsilon"] <= 4.0 < second.statement["epsilon"]
    assert first.steps == second.steps
    assert len({run.name for run in Ledger.read(tmp_path / "all.ledger").runs}) == 2


def test_later_periods_are_held_out_and_users_are_on_both_sides(visits: Path, tmp_path: Path) -> None:
    asked = visits_config(visits)
    result = start(asked, tmp_path / "run")
    data = ClickData.open(visits)
    rest = held_out(asked, data)
    assert isinstance(rest, ClickData)
    assert set(rest.time) == {3}
    assert set(rest.user) & set(data.user[data.time < 3])
    assert result.held_out_rows == len(rest)
    assert evaluate_run(tmp_path / "run").auc == result.auc


def test_without_privacy_the_same_batches(visits: Path, tmp_path: Path) -> None:
    result = stream(visits_config(visits, "non-private"), tmp_path / "run")
    assert result.statement is None
    assert result.steps == stream(visits_config(visits), tmp_path / "private").steps


def test_what_is_left_open_is_chosen_for_the_users_of_a_period(visits: Path) -> None:
    """And its delta is that of all users; the noise of a step is for all periods, so a period has a part of epsilon."""
    data = ClickData.open(visits)
    asked = RunConfig.parse({"data": str(visits), "epsilon": 4.0, "unit": "user", "period": 1})
    made = choose(asked, data)
    users = [np.unique(data.user[data.time == day]).size for day in range(3)]
    assert made.config.choices.expected_batch_size <= min(users)
    assert made.examples == np.unique(data.user[data.time < 3]).size
    alone = choose(asked.model_copy(update={"train_periods": 1}), data)
    assert made.recipe.noise_multiplier > 1.2 * alone.recipe.noise_multiplier


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": "lazy"},
            "algorithm lazy releases the final model only; streaming releases every period's",
        ),
        (
            {"rows_per_user": ROWS_PER_USER + 1},
            "rows_per_user: 9 of a user were requested, and the data was cut to 8",
        ),
        ({"calibration_mu": 0.1}, "calibration_mu: is for private runs that are not streaming"),
        ({"train_periods": 4}, "train_periods must leave a period to evaluate on"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_is_made(
    visits: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stream(visits_config(visits, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stream_that_cannot_be_paid_leaves_no_folder(visits: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="alone"):
        stream(visits_config(visits, "fest", fest_mu=20.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unit: generated:400x4 does not say whose its rows are"):
        stream(visits_config(Path("generated:400x4")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_steps_that_are_not_one_release_are_refused_for_capped_users(visits: Path, tmp_path: Path) -> None:
    asked = visits_config(visits, "sparse-vector", user_sampling="rows", rows=5)
    with pytest.raises(
        ValueError, match="is not one Gaussian release, which sampling rows of capped users needs"
    ):
        stream(asked, tmp_path / "run")
