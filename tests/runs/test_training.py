"""Runs from config to folder: figures, files, and what an interruption leaves."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.runs import config, python, settings
from torch import nn
from typer.testing import CliRunner

from sparsedp.accounting import BudgetExceeded, GaussianDpEvent, Ledger
from sparsedp.cli.app import app
from sparsedp.data import ClickData
from sparsedp.runs import ALGORITHMS, Result, RunConfig, RunFolder, resume, train, training
from sparsedp.runs import result as run_result
from sparsedp.runs.evaluation import Evaluation, evaluate, evaluate_run
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.trainer import PrivateTrainer
from sparsedp.runs.training import Progress

FAST = [
    "non-private",
    "dp-sgd",
    "lazy",
    "fest",
    "fest-lazy",
    "fest-turns",
    "adafest",
    "adafest-memory",
    "adafest+",
    "random",
]
SLOW = ["exponential", "sparse-vector"]
"""Their joint privacy loss takes seconds to calibrate when it is not in the cache yet."""


@pytest.mark.parametrize("algorithm", [*FAST, *[pytest.param(each, marks=pytest.mark.slow) for each in SLOW]])
def test_every_algorithm_trains_into_its_folder(algorithm: str, tmp_path: Path) -> None:
    result = train(config(algorithm, evaluate_every=2), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert result.steps == 4
    assert result.training_rows + result.held_out_rows == 2000
    assert 0.2 < result.auc < 0.8
    assert 0.3 < result.log_loss < 3.0
    assert asdict(result) == folder.read_json("result")
    assert [record["step"] for record in folder.metrics()] == [2, 4]
    assert folder.metrics()[-1]["auc"] == result.auc
    assert any(folder.tensorboard.iterdir())
    with safe_open(folder.weights, "pt") as weights:
        privacy = weights.metadata()["privacy"]
    if algorithm == "non-private":
        assert (result.statement, result.reduction, result.rows) == (None, None, None)
        assert "NOT PRIVATE" in privacy
        assert not folder.ledger.exists()
        return
    assert result.statement is not None
    assert result.statement == folder.read_json("statement")
    assert 1.5 < result.statement["epsilon"] <= 2.0
    assert result.statement["delta"] == pytest.approx(1 / (10 * result.training_rows))
    assert result.statement["private"] is False  # it is seeded
    assert "NOT PRIVATE" in privacy
    assert result.noise_multiplier is not None
    assert result.noise_multiplier > 0.5
    spent = sum(count for _, count in Ledger.read(folder.ledger).events())
    assert spent == 4 + ALGORITHMS[algorithm].row_set
    assert result.reduction is not None
    assert result.gradient_size is not None
    assert result.rows == pytest.approx(sum(result.rows_per_table.values()))
    if algorithm in ("dp-sgd", "lazy"):
        assert result.reduction == 1.0
        assert result.gradient_size == result.table_coordinates
    else:
        # Four steps, and a flush of all rows that are expected to be read.
        assert result.reduction > (4 if algorithm == "fest-turns" else 50)
        assert result.reduction == pytest.approx(result.table_coordinates / result.gradient_size)


def test_an_unseeded_run_is_private_and_says_so(tmp_path: Path) -> None:
    result = train(config(seed=None), tmp_path / "run")
    assert result.statement is not None
    assert result.statement["private"] is True
    with safe_open(RunFolder(tmp_path / "run").weights, "pt") as weights:
        assert weights.metadata()["privacy"].startswith("(")


def test_a_shared_ledger_counts_all_runs(tmp_path: Path) -> None:
    ledger = tmp_path / "data.ledger"
    first = train(config(ledger=str(ledger)), tmp_path / "first")
    second = train(config(ledger=str(ledger), seed=2), tmp_path / "second")
    assert first.statement is not None
    assert second.statement is not None
    assert second.statement["epsilon"] > 1.2 * first.statement["epsilon"]
    assert sum(count for _, count in Ledger.read(ledger).events()) == 8


def stop_at(step: int) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    return on_progress


def outcome(path: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any]]:
    folder = RunFolder(path)
    result = folder.read_json("result")
    assert result is not None
    timeless = {
        name: value for name, value in result.items() if name not in ("seconds", "examples_per_second")
    }
    return load_file(folder.weights), folder.metrics(), timeless


def assert_same_outcome(first: Path, second: Path) -> None:
    expected, found = outcome(first), outcome(second)
    assert expected[0].keys() == found[0].keys()
    for name, values in expected[0].items():
        assert torch.equal(values, found[0][name]), name
    assert expected[1:] == found[1:]


def assert_same_as_far_as_it_went(whole: Path, cut_short: Path) -> None:
    """Each step was evaluated: the steps that were taken are those of the whole run, bit by bit."""
    expected, found = (
        [{**each, "epsilon": None} for each in outcome(path)[1]] for path in (whole, cut_short)
    )
    assert 0 < len(found) < len(expected)
    assert found == expected[: len(found)]


@contextmanager
def broken_after_a_checkpoint(kind: type[PrivateTrainer | PlainTrainer]) -> Iterator[None]:
    """The next checkpoint is the last thing that is done."""
    save = kind.save

    def save_and_die(self: Any, path: Path, run_stats: RunStats) -> None:
        save(self, path, run_stats)
        if run_stats.steps:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "save", save_and_die)
        yield


def test_the_result_is_that_of_the_flushed_model(tmp_path: Path) -> None:
    """Evaluated at its last step, then flushed: what the folder says is what its weights give."""
    asked = config("fest-turns", update_every=1000, evaluate_every=2)
    with pytest.MonkeyPatch.context() as patch:
        steps = iter(range(3))

        def refuse() -> None:
            raise BudgetExceeded("no more")

        def out_of_budget(self: PrivateTrainer) -> None:
            if next(steps) == 2:
                self.private.optimizer._charge = refuse
            self.private.optimizer.step()

        patch.setattr(PrivateTrainer, "step", out_of_budget)
        result = train(asked, tmp_path / "run")
    assert result.steps == 2
    assert result.auc == pytest.approx(evaluate_run(tmp_path / "run").auc)


RESUMED = [
    ("adafest", {}),
    ("adafest", {"table_optimizer": "row-wise-adagrad", "physical_batch_size": 60}),
    ("adafest+", {"table_optimizer": "adagrad"}),
    ("lazy", {}),
    ("fest", {}),
    ("fest-lazy", {}),
    ("fest-turns", {"update_every": 3}),
    ("non-private", {}),
]


@pytest.mark.parametrize(("algorithm", "changes"), RESUMED)
def test_a_run_interrupted_after_a_checkpoint_ends_the_same(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Stopped after steps 3 and 6 of 8, with nothing lost: bit by bit the run that was left alone."""
    asked = config(algorithm, expected_batch_size=250, evaluate_every=2, checkpoint_every=3, **changes)
    kind = PlainTrainer if algorithm == "non-private" else PrivateTrainer
    train(asked, tmp_path / "whole")
    with broken_after_a_checkpoint(kind), pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "broken")
    with broken_after_a_checkpoint(kind), pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "broken")
    assert RunFolder(tmp_path / "broken").read_json("result") is None
    resume(tmp_path / "broken")
    assert_same_outcome(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(("algorithm", "changes"), RESUMED[:-1])
def test_a_run_that_lost_steps_takes_fewer_and_stays_within_epsilon(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Stopped at step 1 (nothing saved yet) and at step 5 (two steps after the checkpoint): 3 of 8 are lost."""
    asked = config(algorithm, expected_batch_size=250, evaluate_every=1, checkpoint_every=3, **changes)
    whole = train(asked, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "broken", stop_at(1))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "broken", stop_at(5))
    result = resume(tmp_path / "broken")
    assert isinstance(result, Result)
    assert (whole.steps, whole.planned_steps, whole.lost_steps, whole.stopped) == (8, 8, 0, None)
    assert (result.steps, result.planned_steps, result.lost_steps) == (5, 8, 3)
    assert result.stopped is not None
    assert "target_epsilon 2" in result.stopped
    assert result.statement is not None
    assert 1.9 <= result.statement["epsilon"] <= 2.0
    if algorithm != "fest-turns":  # whose rows are all updated where it ends
        assert_same_as_far_as_it_went(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("algorithm", ["fest", "adafest+"])
def test_rows_are_chosen_and_paid_for_once(algorithm: str, tmp_path: Path) -> None:
    """Also if each attempt ends before the first step: the choice is saved as soon as it is made."""
    asked = config(algorithm, checkpoint_every=1000)
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", stop_at(1))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", stop_at(1))
    events = dict(Ledger.read(RunFolder(tmp_path / "run").ledger).events())
    assert events.pop(GaussianDpEvent(20.0)) == 1
    assert list(events.values()) == [2]


def test_a_run_that_lost_everything_says_so(tmp_path: Path) -> None:
    """No checkpoint before the end, and the end is a crash: epsilon is used up, and there is no model."""
    asked = config(checkpoint_every=1000, delta=1e-5)
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", stop_at(4))
    for _ in range(2):
        with pytest.raises(BudgetExceeded, match=r"target_epsilon 2 .* 4 steps like it"):
            resume(tmp_path / "run")
    assert Ledger.read(RunFolder(tmp_path / "run").ledger).statement(1e-5).epsilon <= 2.0


def test_a_failure_at_the_very_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(checkpoint_every=1000)
    train(asked, tmp_path / "whole")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(run_result, "write_weights", full)
        with pytest.raises(OSError, match="No space left"):
            train(asked, tmp_path / "broken")
    resume(tmp_path / "broken")
    assert_same_outcome(tmp_path / "whole", tmp_path / "broken")


def test_epochs_of_a_part_of_a_batch_are_taken_to_the_end(tmp_path: Path) -> None:
    """The last batch of a pass is begun: 16 passes of 7.9 batches are 128 steps, not 127."""
    result = train(
        config(data="generated:400", expected_batch_size=46, epochs=16, epsilon=8.0), tmp_path / "run"
    )
    passes = math.ceil(result.training_rows / 46)
    assert result.training_rows % 46
    assert (result.steps, result.planned_steps, result.stopped) == (16 * passes, 16 * passes, None)


@pytest.mark.parametrize("stale", ["missing", "older", "older and longer"])
def test_a_ledger_that_forgot_steps_is_refused(stale: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    old = tmp_path / "old.ledger"

    def copy_then_stop(progress: Progress) -> None:
        if progress.step == 1:
            shutil.copyfile(folder.ledger, old)
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(checkpoint_every=1), folder.path, copy_then_stop)
    folder.ledger.unlink()
    if stale != "missing":
        shutil.copyfile(old, folder.ledger)
    if stale == "older and longer":
        with Ledger.open(folder.ledger, run="another") as ledger:
            for _ in range(30):
                ledger.spend(GaussianDpEvent(1000.0))
    with pytest.raises(ValueError, match="older copy of the ledger, or another"):
        resume(folder.path)


def test_the_end_of_a_run_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def count(model: nn.Module, data: ClickData) -> Evaluation:
        evaluated.append(len(data))
        return evaluate(model, data)

    monkeypatch.setattr(training, "evaluate", count)
    train(config(evaluate_every=2), tmp_path / "run")
    assert len(evaluated) == 2  # after steps 2 and 4


TRAIN_AND_WAIT = """
import sys, time, torch
from pathlib import Path
from sparsedp.runs import RunConfig, train
torch.set_num_threads(1)
def on_progress(progress):
    if progress.step == 5:
        print("ready", flush=True)
        time.sleep(120)
train(RunConfig.read(Path(sys.argv[1])), sys.argv[2], on_progress)
"""


def test_a_killed_process_is_resumed_from_the_command_line(tmp_path: Path) -> None:
    asked = config("adafest", expected_batch_size=250, evaluate_every=1, checkpoint_every=3)
    (tmp_path / "config.yaml").write_text(asked.to_yaml())
    process = python(TRAIN_AND_WAIT, tmp_path / "config.yaml", tmp_path / "killed")
    whole = train(asked, tmp_path / "whole")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert RunFolder(tmp_path / "killed").checkpoint.exists()
    shown = CliRunner().invoke(app, ["resume", str(tmp_path / "killed"), "--json"])
    assert shown.exit_code == 0
    assert_same_as_far_as_it_went(tmp_path / "whole", tmp_path / "killed")
    result = json.loads(shown.stdout)
    # What the killed process may have released stays paid for, and is taken from the steps to come.
    assert (result["steps"], result["planned_steps"], result["lost_steps"]) == (6, 8, 2)
    assert whole.statement is not None
    assert whole.statement["epsilon"] <= result["statement"]["epsilon"] <= 2.0
    said = CliRunner().invoke(app, ["resume", str(tmp_path / "killed")]).stdout
    assert "stopped after 6 of 8 planned steps" in said
    assert "2 steps lost in interruptions stay charged" in said


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = train(config(), tmp_path / "run")
    before = RunFolder(tmp_path / "run").weights.stat().st_mtime_ns
    assert resume(tmp_path / "run", stop_at(1)) == first
    assert RunFolder(tmp_path / "run").weights.stat().st_mtime_ns == before


def test_watchers_see_public_figures_only(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = train(config(), tmp_path / "run", seen.append)
    assert [progress.step for progress in seen] == [1, 2, 3, 4]
    assert {progress.total for progress in seen} == {4}
    stated = [progress.spent for progress in seen if progress.spent is not None]
    epsilons = [each.epsilon for each in stated]
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons)
    assert result.statement is not None
    for name in ("delta", "adjacency", "unit", "released"):
        assert {getattr(each, name) for each in stated} == {result.statement[name]}
    assert epsilons[-1] == pytest.approx(result.statement["epsilon"], rel=1e-3)


def test_a_period_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^period: "):
        train(config(period=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nowhere"}, "nowhere"),
        ({"data": "generated:1"}, "^data: "),
        ({"data": "generated:10x0"}, "^data: "),
        ({"model": "nothing"}, "^model must"),
        ({"model_options": {"widths": 3}}, "^model pctr cannot be built"),
    ],
)
def test_bad_input_leaves_no_folder(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(RunConfig.parse(settings(**changes)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"algorithm": "fest", "fest_mu": 100.0}, "is spent by"),
        ({"algorithm": "dp-sgd", "epsilon": 1e-9}, "too small"),
        ({"algorithm": "adafest", "noise_ratio": 1e-9}, "lattice cells"),
    ],
)
def test_settings_that_cannot_be_trained_leave_no_folder(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        train(config(**given), tmp_path / "run")
    assert not (tmp_path / "run").exists()
