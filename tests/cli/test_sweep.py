from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from support.command_line import assert_refused, invoke
from support.runs import settings

torch.set_num_threads(1)


def plan(path: Path, grid: Any) -> Path:
    path.write_text(yaml.safe_dump({"base": settings(), "grid": grid}))
    return path


def test_a_sweep_as_table_and_as_json(tmp_path: Path) -> None:
    asked = plan(tmp_path / "sweep.yaml", {"noise_ratio": [1.0, 5.0]})
    shown = invoke("sweep", asked, "--out", tmp_path / "out", "--json")
    assert shown.exit_code == 0, shown.exception
    lines = json.loads(shown.stdout)
    assert sorted(line["noise_ratio"] for line in lines) == [1.0, 5.0]
    again = invoke("sweep", asked, "--out", tmp_path / "out")
    assert again.exit_code == 0, again.exception
    assert "noise_ratio" in again.stdout
    assert "spent_epsilon" in again.stdout
    assert "add-or-remove-one adjacency, unit: example" in again.stdout
    assert pl.read_parquet(tmp_path / "out" / "results.parquet").height == 2
    change_first(tmp_path / "out", "result.json", '"log_loss": ', '"log_loss": 9')
    change_first(tmp_path / "out", "config.yaml", "unit: example", "unit: user")
    changed = invoke("sweep", asked, "--out", tmp_path / "out").stdout
    assert "of 2 runs the log-loss is worse than that of predicting the mean rate" in changed
    assert "add-or-remove-one adjacency, unit: example or user" in changed


def change_first(out: Path, file: str, old: str, new: str) -> None:
    """As if the first run had ended otherwise."""
    path = min((out / "runs").iterdir()) / file
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_sweep_whose_runs_all_diverge_is_one_line(tmp_path: Path) -> None:
    asked = plan(tmp_path / "sweep.yaml", {"learning_rate": [1e38]})
    with pytest.warns(UserWarning, match="diverged"):
        shown = invoke("sweep", asked, "--out", tmp_path / "out")
    assert shown.exit_code == 2
    assert "no run could be finished" in shown.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: {}", "two mappings"),
        ("base: {}\ngrid: {epsilon: 3}", "epsilon must be a list"),
        ("base: {", "YAML"),
        ("base: {algorithm: sgd, data: x}\ngrid: {epsilon: [1]}", "algorithm: "),
    ],
)
def test_bad_sweeps_are_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    assert_refused(invoke("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "out", "--json"), words)
    assert not (tmp_path / "out").exists()


def test_a_file_without_end_is_one_line(tmp_path: Path) -> None:
    refused = invoke("sweep", "/dev/zero", "--out", tmp_path / "out", "--json")
    assert_refused(refused, "/dev/zero is not a regular file")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    assert_refused(invoke("sweep", tmp_path / "none.yaml", "--out", tmp_path / "out", "--json"), "none.yaml")


def test_options_replace_settings_of_the_base_and_not_of_the_grid(tmp_path: Path) -> None:
    asked = plan(tmp_path / "sweep.yaml", {"noise_ratio": [5.0]})
    out = tmp_path / "out"
    refused = invoke("sweep", asked, "--out", out, "--noise-ratio", "3", "--json")
    assert_refused(refused, "noise_ratio: the grid varies it")
    assert_refused(invoke("sweep", asked, "--out", out, "--epsilon", "many", "--json"), "epsilon: ")
    assert not out.exists()
    shown = invoke("sweep", asked, "--out", out, "--epsilon", "3", "--json")
    assert shown.exit_code == 0, shown.exception
    assert [line["epsilon"] for line in json.loads(shown.stdout)] == [3.0]
