"""Sweeps: every run once, finished ones kept, interrupted ones continued, in parallel the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from support.runs import python, settings

from experiments.fest.figures import averaged
from sparsedp.accounting import Ledger
from sparsedp.runs import RunFolder, resuming, training
from sparsedp.runs.sweep import RESULTS, Sweep, run_name, sweep

TIMES = ("seconds", "examples_per_second")


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gets its share of the cores, and sums over several threads differ in their last bits."""
    monkeypatch.setattr("sparsedp.runs.sweep.available_cores", lambda: 1)


def plan(**grid: list[Any]) -> Sweep:
    base = settings(checkpoint_every=2)
    return Sweep(base, [grid or {"noise_ratio": [1.0, 5.0], "false_positives": [3.0, 30.0]}])


def test_the_table_has_settings_and_figures_of_every_run(tmp_path: Path) -> None:
    table = sweep(plan(), tmp_path)
    assert table.height == 4
    assert table.equals(pl.read_parquet(tmp_path / RESULTS))
    expected = {
        "algorithm", "epsilon", "noise_ratio", "false_positives", "seed", "auc", "log_loss", "gradient_size",
        "reduction", "rows", "seconds", "examples_per_second", "steps", "spent_epsilon", "run",
    }  # fmt: skip
    assert expected <= set(table.columns)
    assert "model_options" not in table.columns
    assert sorted(table.select("noise_ratio", "false_positives").rows()) == [
        (1.0, 3.0), (1.0, 30.0), (5.0, 3.0), (5.0, 30.0),
    ]  # fmt: skip
    assert (table["spent_epsilon"] <= 2.0).all()
    for name in table["run"]:
        assert RunFolder(tmp_path / "runs" / name).read_json("result") is not None


def test_threads_that_are_fewer_than_cores_stay_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsedp.runs.sweep.available_cores", lambda: 64)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sweep(plan(seed=[0]), tmp_path)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_seeds_of_a_setting_average_to_one_line(tmp_path: Path) -> None:
    found = averaged(sweep(plan(seed=[0, 1]), tmp_path))
    assert found["seeds"].to_list() == [2]
    assert found["auc_spread"].item() > 0


def test_finished_runs_are_not_run_again_and_new_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(plan(noise_ratio=[1.0]), tmp_path)
    started: list[float] = []
    start = resuming.start

    def counted(config: Any, path: Any) -> Any:
        started.append(config.noise_ratio)
        return start(config, path)

    monkeypatch.setattr(resuming, "start", counted)
    seen: list[tuple[int, int]] = []
    again = sweep(plan(noise_ratio=[1.0, 2.0]), tmp_path, on_progress=lambda *progress: seen.append(progress))
    assert started == [2.0]
    assert seen == [(1, 2), (2, 2)]
    assert again.filter(pl.col("noise_ratio") == 1.0).equals(first)


@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_an_interrupted_run_goes_on_from_its_checkpoint(
    checkpoint_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint after each step nothing is lost; else the lost step stays paid for, within epsilon."""
    asked = Sweep(settings(checkpoint_every=checkpoint_every), [{"noise_ratio": [1.0, 2.0]}])
    whole = sweep(asked, tmp_path / "whole")
    step, taken = training.train_step, [0]

    def breaking(*arguments: Any) -> Any:
        taken[0] += 1
        if taken[0] == 4 + 4:  # in the second run, before its last step
            raise KeyboardInterrupt
        return step(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(training, "train_step", breaking)
        with pytest.raises(KeyboardInterrupt):
            sweep(asked, tmp_path / "broken")
    assert not (tmp_path / "broken" / RESULTS).exists()
    found = sweep(asked, tmp_path / "broken")
    assert found["steps"].to_list() == [4, 4 if checkpoint_every == 1 else 3]
    assert (found["spent_epsilon"] <= 2.0).all()
    same = found if checkpoint_every == 1 else found[:1]
    assert same.drop(*TIMES).equals(whole[: same.height].drop(*TIMES))


def test_runs_on_one_ledger_each_have_their_epsilon(tmp_path: Path) -> None:
    """They add up on the ledger, and none of them counts another's steps towards its own cap."""
    asked = Sweep(settings(ledger=str(tmp_path / "data.ledger")), [{"learning_rate": [0.5, 1.0]}])
    found = sweep(asked, tmp_path / "out")
    assert found["steps"].to_list() == [4, 4]
    assert found["spent_epsilon"].to_list()[1] > 2.0
    assert len({run.name for run in Ledger.read(tmp_path / "data.ledger").runs}) == 2


def test_a_budget_that_runs_out_keeps_the_runs_before(tmp_path: Path) -> None:
    ledger = tmp_path / "data.ledger"
    Ledger.open(ledger, budget=(2.0, 1e-4))
    asked = Sweep(settings(ledger=str(ledger), delta=1e-4), [{"learning_rate": [0.5, 1.0]}])
    for _ in range(2):  # nor does it come back when the sweep is run again
        with pytest.warns(UserWarning, match="the budget of epsilon 2"):
            found = sweep(asked, tmp_path / "out")
        assert found["learning_rate"].to_list() == [0.5]
    assert Ledger.read(ledger).statement().epsilon <= 2.0


SWEEP = """
import sys
from pathlib import Path
from sparsedp.runs.sweep import Sweep, sweep
if __name__ == "__main__":
    sweep(Sweep.read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_killed_sweep_in_two_processes_ends_as_one_in_one_process(tmp_path: Path) -> None:
    """Killed when its first run is done; continued with one trainer: within epsilon, and whole runs are the same."""
    asked = plan(noise_ratio=[1.0, 2.0, 5.0])
    whole = sweep(asked, tmp_path / "whole")
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump({"base": dict(asked.base), "grid": dict(asked.grids[0])})
    )
    script = tmp_path / "script.py"
    script.write_text(SWEEP)
    code = f"import runpy, sys; runpy.run_path({str(script)!r}, run_name='__main__')"
    process = python(code, tmp_path / "sweep.yaml", tmp_path / "killed", "2")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("runs/*/result.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()  # the workers end when their parent is gone
    found = sweep(asked, tmp_path / "killed")
    assert found.height == 3
    assert (found["spent_epsilon"] <= 2.0).all()
    unbroken = found["steps"] == 4
    assert unbroken.any()
    dropped = (*TIMES, "spent_epsilon", "lost_steps")
    assert found.filter(unbroken).drop(*dropped).equals(whole.filter(unbroken).drop(*dropped))


@pytest.mark.slow
def test_two_jobs_give_what_one_gives(tmp_path: Path) -> None:
    asked = plan(noise_ratio=[1.0, 2.0, 5.0])
    one, two = sweep(asked, tmp_path / "one"), sweep(asked, tmp_path / "two", jobs=2)
    assert one.drop(*TIMES).equals(two.drop(*TIMES))


def test_grids_are_united_and_repeats_run_once() -> None:
    asked = Sweep(settings(), [{"epsilon": [1.0, 2.0]}, {"epsilon": [2.0], "noise_ratio": [5.0, 1.0]}])
    configs = asked.configs()
    assert sorted((each.epsilon or 0, each.noise_ratio) for each in configs) == [(1, 5), (2, 1), (2, 5)]
    assert len({run_name(each) for each in configs}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: {}", "two mappings"),
        ("[1]", "two mappings"),
        ("base: {}\ngrid: {epsilon: 3}", "epsilon must be a list"),
        ("base: {}\ngrid: 3", "grid"),
        ("base: [1]\ngrid: {epsilon: [3]}", "base"),
        ("base: {", "YAML"),
    ],
)
def test_a_file_that_is_no_sweep(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Sweep.read(path)


def test_a_bad_value_in_the_grid_is_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^epsilon: "):
        sweep(plan(epsilon=[1.0, -1.0]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r"^jobs must"):
        sweep(plan(), tmp_path / "out", jobs=0)


def test_a_foreign_result_among_the_runs_is_refused_in_words(tmp_path: Path) -> None:
    asked = plan(noise_ratio=[1.0])
    sweep(asked, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    (run / "result.json").write_text('{"statement": 5}')
    with pytest.raises(ValueError, match=r"result.json is not the result of a run"):
        sweep(asked, tmp_path)
