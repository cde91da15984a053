"""tune at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.cli.tune import read_grid
from sparsedp.runs import tuning

BASE = ["tune", "--data", "generated:600", "--algorithm", "adafest", "--epsilon", "4", "--seed", "1"]
MODEL = ["--expected-batch-size", "300", "--model-options", "{hidden: [16], dims: [" + "1, " * 25 + "1]}"]


def test_a_search_prints_what_was_chosen_and_one_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 1)
    grid = ["--grid", "learning_rate=0.1,1.0", "--runs", "3"]
    shown = invoke(*BASE, *MODEL, *grid, "--out", tmp_path / "best")
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.stdout.split())
    for words in (
        "chosen: learning_rate ",
        "noisy score",
        "add-or-remove-one",
        "unit: example",
        "one price for a",
    ):
        assert words in text
    said = json.loads(invoke("account", "--ledger", tmp_path / "best" / "run.ledger", "--json").stdout)
    assert said["events"][0]["event"]["type"] == "RepeatAndSelectDpEvent"
    assert said["statement"]["epsilon"] <= 4.0
    again = invoke(*BASE, *MODEL, *grid, "--out", tmp_path / "best")
    assert_refused(again, "already holds a run")


def test_a_grid_at_the_command_line() -> None:
    assert read_grid(["learning-rate=0.1,1", "model=pctr,dlrm"]) == {
        "learning_rate": [0.1, 1],
        "model": ["pctr", "dlrm"],
    }
    assert read_grid(["model_options=[{hidden: [4]}, {hidden: [8]}]"]) == {
        "model_options": [{"hidden": [4]}, {"hidden": [8]}]
    }
    for text in ("learning_rate", "=1", "learning_rate="):
        with pytest.raises(ValueError, match=r"^grid must be SETTING=VALUE"):
            read_grid([text])


def test_bad_input_at_the_command_line_is_one_line(tmp_path: Path) -> None:
    base = [*BASE, "--out", tmp_path / "x"]
    assert_refused(invoke(*base), "grid: there is nothing to choose from")
    assert_refused(invoke(*base, "--grid", "epochs=1,2", "--epochs", "3"), "epochs: the grid varies it")
    assert_refused(invoke(*base, "--grid", "epochs=1,2", "--law", "poisson"), "law must be one of")
    assert_refused(invoke(*base, "--grid", "epochs=1,2", "--runs", "0.5"), "mean must lie between 1")
    assert not (tmp_path / "x").exists()
