from __future__ import annotations

import shutil
from pathlib import Path

import torch
from support.command_line import assert_refused, invoke
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.accounting import Ledger, epsilon_of
from sparsedp.report import FinishedRun
from sparsedp.report.joint import joint_costs
from sparsedp.runs import RunFolder, stream, train

torch.set_num_threads(1)


def test_a_run_a_stream_and_both_compared(tmp_path: Path) -> None:
    train(config(evaluate_every=2), tmp_path / "run")
    stream(config("fest", data="generated:600x3", expected_batch_size=100, period=1), tmp_path / "stream")
    for runs in (["run"], ["stream"], ["run", "stream"]):
        out = tmp_path / f"{'-'.join(runs)}.html"
        result = invoke("report", *[tmp_path / run for run in runs], "--out", out)
        assert result.exit_code == 0, result.exception
        assert str(out) in result.stdout.replace("\n", "")
        assert "add-or-remove-one" in out.read_text()


def test_a_stream_of_users_and_another_run_are_one_composition(tmp_path: Path) -> None:
    """All periods of it, not the costliest."""
    data = prepare_visits(tmp_path)
    stream(visits_config(data), tmp_path / "stream")
    train(visits_config(data, period=None), tmp_path / "run")
    paths = [tmp_path / "stream", tmp_path / "run"]
    result = invoke("report", *paths, "--out", tmp_path / "r.html")
    assert result.exit_code == 0, result.exception
    assert "a user may have rows in each of them" in (tmp_path / "r.html").read_text()
    (joint,) = joint_costs([FinishedRun.read(path) for path in paths])
    events = [event for path in paths for event in Ledger.read(RunFolder(path).ledger).events()]
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of(events, joint.statement.delta) > 4.0


def test_a_released_folder_and_one_that_is_not_are_one_composition(tmp_path: Path) -> None:
    data = prepare_visits(tmp_path)
    for name in "ab":
        train(visits_config(data, period=None), tmp_path / name)
    whole = joint_costs([FinishedRun.read(tmp_path / name) for name in "ab"])
    shutil.rmtree(tmp_path / "b" / "private")
    (joint,) = joint_costs([FinishedRun.read(tmp_path / name) for name in "ab"])
    assert [joint.statement] == [each.statement for each in whole]


def test_unfinished_and_missing_runs_are_one_line(tmp_path: Path) -> None:
    RunFolder(tmp_path / "begun").create(config())
    assert_refused(invoke("report", tmp_path / "begun", "--out", tmp_path / "r.html"), "is not finished")
    assert_refused(invoke("report", tmp_path / "none", "--out", tmp_path / "r.html"), "holds no run")
    assert not (tmp_path / "r.html").exists()
