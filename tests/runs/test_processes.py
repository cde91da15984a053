"""Runs of the command line on several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import invoke
from support.distributed_runs import trained
from support.processes import Processes
from support.runs import config

from sparsedp.accounting import Ledger
from sparsedp.core.cores import available_cores
from sparsedp.runs import RunFolder, resume, train
from sparsedp.runs.processes import MOST_PER_CORE, resume_on_processes, train_on_processes
from sparsedp.runs.setup import RunSetup


@pytest.mark.parametrize("algorithm", ["adafest", "fest"])
def test_a_run_is_finished_and_resumed_by_another_number_of_processes(
    processes: Processes, tmp_path: Path, algorithm: str
) -> None:
    asked = config(algorithm, seed=None)
    folder = RunSetup.create(asked, tmp_path / "run").folder
    told = processes.run(trained, str(folder.path), ranks=2)
    result = folder.read_json("result")
    assert result is not None
    assert told == [[*range(1, result["steps"] + 1)], []]
    assert result["steps"] == result["planned_steps"]
    assert result["statement"]["epsilon"] <= asked.epsilon
    assert result["statement"]["private"]
    assert folder.weights.exists()
    steps = max(count for _, count in Ledger.read(folder.ledger).events())
    assert steps == result["steps"]
    (folder.path / "result.json").unlink()
    assert processes.run(trained, str(folder.path), ranks=4) == [[]] * 4
    again = folder.read_json("result")
    assert again is not None
    assert {**again, "statement": None} == {**result, "statement": None}
    assert again["statement"]["epsilon"] == result["statement"]["epsilon"]


def test_what_cannot_run_on_several_processes_is_refused(tmp_path: Path) -> None:
    for asked, words in (
        (config("non-private", epsilon=None), "algorithm non-private trains on one process"),
        (config("lazy"), "algorithm lazy trains on one process"),
        (config("fest-lazy"), "algorithm fest-lazy trains on one process"),
        (config("fest-turns"), "algorithm fest-turns trains on one process"),
        (config("adafest-memory"), "algorithm adafest-memory trains on one process"),
        (config(period=1), "streaming"),
    ):
        with pytest.raises(ValueError, match=words):
            train_on_processes(asked, tmp_path / "run", 2)
    with pytest.raises(ValueError, match="nproc must be at least 1"):
        train_on_processes(config(), tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


def test_far_more_processes_than_cores_are_refused(tmp_path: Path) -> None:
    cores = available_cores()
    too_many = MOST_PER_CORE * cores + 1
    words = f"^nproc: {too_many} processes are too many for the {cores} cores that they may use$"
    with pytest.raises(ValueError, match=words):
        train_on_processes(config(), tmp_path / "run", too_many)
    assert not (tmp_path / "run").exists()
    RunSetup.create(config(), tmp_path / "run")
    with pytest.raises(ValueError, match=words):
        resume_on_processes(tmp_path / "run", too_many)


def test_one_process_and_several_do_not_resume_each_other(tmp_path: Path) -> None:
    train(config(), tmp_path / "one")
    (tmp_path / "one" / "result.json").unlink()
    with pytest.raises(ValueError, match="without --nproc"):
        resume_on_processes(tmp_path / "one", 2)
    folder = RunSetup.create(config(), tmp_path / "several").folder
    folder.shared_checkpoint.mkdir()
    with pytest.raises(ValueError, match="with --nproc"):
        resume(tmp_path / "several")


@pytest.mark.slow
def test_the_command_starts_the_processes(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config(seed=None).to_yaml())
    shown = invoke(
        "train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--nproc", "2", "--json"
    )
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == RunFolder(tmp_path / "run").read_json("result")
    assert invoke("resume", tmp_path / "run", "--nproc", "2").exit_code == 0


def test_settings_that_no_noise_fits_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is spent by"):
        train_on_processes(config("fest", fest_mu=100.0), tmp_path / "run", 2)
    assert not (tmp_path / "run").exists()
