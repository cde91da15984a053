"""The ledger of a run on several processes: one writer, a budget for all, and nothing unpaid when a process dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import distributed_killed
from support.distributed_killed import DELTA, TARGET, draws, run_with_kills
from support.distributed_sessions import (
    budget,
    charged_first,
    ledger_refusal,
    refusals,
    sampled,
    shard_refusals,
    shard_sampling,
    unlike_settings,
)
from support.processes import Processes

from sparsedp.accounting import Ledger


def test_the_budget_is_one_for_all_ranks_and_rank_0_writes(processes: Processes, tmp_path: Path) -> None:
    results = processes.run(budget, str(tmp_path / "run.ledger"), ranks=2)
    steps = {result["steps"] for result in results}
    assert len(steps) == 1
    assert all("budget" in result["refusal"] for result in results)
    ledger = Ledger.read(tmp_path / "run.ledger")
    assert [count for _, count in ledger.events()] == [*steps]
    assert ledger.statement(1e-3).epsilon <= 1.0
    assert len(ledger.runs) == 1
    assert results[0]["epsilon"] == pytest.approx(ledger.statement(1e-3).epsilon)
    assert "ask rank 0" in results[1]["epsilon"]


def test_no_rank_draws_before_the_step_is_charged(processes: Processes, tmp_path: Path) -> None:
    for seen in processes.run(charged_first, str(tmp_path), ranks=2):
        assert seen == [1, 2, 3]


def test_ranks_sample_disjoint_parts_that_cover_the_data(processes: Processes) -> None:
    """Each example comes from one rank only, at the common rate (z-test, error below 1e-8)."""
    results = processes.run(sampled, ranks=4)
    examples, steps, rate = 120, 400, 10 / 120
    by_rank = [set(result["indices"]) for result in results]
    assert sum(map(len, by_rank)) == len(set().union(*by_rank)) == examples
    total = sum(len(result["indices"]) for result in results)
    mean, deviation = examples * steps * rate, (examples * steps * rate * (1 - rate)) ** 0.5
    assert abs(total - mean) < 6 * deviation
    for first in range(4):
        for second in range(first):
            assert results[first]["sizes"] != results[second]["sizes"], "independent streams"
    assert {result["rate"] for result in results} == {rate}


def test_the_rate_of_shards_is_that_of_the_whole(processes: Processes) -> None:
    for rank, (rate, batch, largest) in enumerate(processes.run(shard_sampling, ranks=2)):
        assert rate == 6 / (30 + 60)
        assert batch == 6
        assert largest < 30 * (rank + 1)


def test_what_several_ranks_cannot_do_is_refused_by_name(processes: Processes) -> None:
    for messages in processes.run(refusals, ranks=2):
        for start, message in messages.items():
            assert start in message


def test_settings_that_differ_between_ranks_are_refused(processes: Processes, tmp_path: Path) -> None:
    """A rank with a seed above all: the noise of its rows would be known, and rank 0 would claim epsilon."""
    engine = {"noise", "seed", "data", "ledger"}
    for messages in processes.run(unlike_settings, str(tmp_path), ranks=2):
        for name, message in messages.items():
            who = "DistributedEngine" if name in engine else "make_private"
            assert message.startswith(f"{who}: must be the same in all processes"), (name, message)


def test_shards_are_refused_in_all_ranks_or_in_none(processes: Processes) -> None:
    first, second = processes.run(shard_refusals, ranks=2)
    assert second["empty"] == "data_loader has an empty dataset"
    assert first["empty"] == "rank 1: data_loader has an empty dataset"
    for messages in (first, second):
        assert messages["large"] == "nothing"
        assert messages["larger"].startswith("expected_batch_size 70 is larger than the dataset of 60")


def test_a_ledger_that_rank_0_cannot_open_is_an_error_of_all(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "run.ledger").write_text("something else")
    for message in processes.run(ledger_refusal, str(tmp_path / "run.ledger"), ranks=2):
        assert "run.ledger" in message


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_rank_leaves_nothing_unpaid(processes: Processes, tmp_path: Path, kills: int) -> None:
    results = run_with_kills(tmp_path, kills, seed=kills)
    _check_paid(tmp_path)
    assert len({result["steps"] for result in results}) == 1
    assert results[0]["steps"] == results[0]["planned"] or results[0]["stopped"]


def _check_paid(folder: Path) -> None:
    ledger = Ledger.read(folder / "run.ledger")
    charged = sum(count for _, count in ledger.events())
    assert charged >= max(draws(folder))
    assert ledger.statement(DELTA).epsilon <= TARGET


@pytest.mark.slow
def test_torchrun_starts_a_killed_run_again(tmp_path: Path) -> None:
    script = Path(distributed_killed.__file__)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PAUSE": "0.1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    running = subprocess.Popen([*command, "--max-restarts", "3", str(script), str(tmp_path)], env=environment)
    killed: set[int] = set()
    while running.poll() is None and len(killed) < 2:
        marks, pid = tmp_path / "draws-1", tmp_path / "pid-1"
        if marks.exists() and marks.stat().st_size >= 5 * (len(killed) + 1):
            process = int(pid.read_text())
            if process not in killed:
                os.kill(process, signal.SIGKILL)
                killed.add(process)
        time.sleep(0.02)
    assert running.wait(300) == 0
    assert len(killed) == 2
    result = json.loads((tmp_path / "result-0").read_text())
    assert result["steps"] == result["planned"] or result["stopped"]
    _check_paid(tmp_path)
