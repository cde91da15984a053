"""Every setting of a run is an option, and is refused in one line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import typer
from support.command_line import assert_refused, invoke
from support.runs import config, settings
from typer.testing import CliRunner

from sparsedp.cli.app import app
from sparsedp.cli.settings import help_of
from sparsedp.planning.planner import plan
from sparsedp.runs import ALGORITHMS, RunConfig, RunFolder
from sparsedp.runs.config import IMPLIED, Group
from sparsedp.selection import AdaFEST

FIELDS = list(RunConfig.model_fields)
WRONG = {
    **dict.fromkeys(FIELDS, "many"),
    "data": "no/such/folder",
    "model": "nothing",
    "ledger": "/dev/null",
    "model_options": "[1, 2]",
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_explains_itself_in_one_panel(name: str) -> None:
    field = RunConfig.model_fields[name]
    assert field.description
    assert re.search(r"[.)]$", help_of(name))
    assert sum(isinstance(each, Group) for each in field.metadata) == 1


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_has_an_option_for_every_setting_and_the_panels(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    for name in FIELDS:
        assert f"--{name.replace('_', '-')} " in shown.stdout
    for panel in ("Data", "Privacy", "Model", "Selection", "Evaluation", "Streaming"):
        assert f"\u2500 {panel}" in shown.stdout
    assert f"How to train: {', '.join(ALGORITHMS)}." in " ".join(re.sub("\u2502", "", shown.stdout).split())


def test_help_tells_default_and_readers() -> None:
    assert help_of("noise_ratio").endswith("Default: 5. For adafest, adafest-memory, adafest+.")
    assert help_of("noise_ratio", algorithms=False).endswith("Default: 5.")
    assert help_of("holdout_by").endswith("Default: hash.")
    assert "Default" not in help_of("data")


def test_a_number_that_stands_for_none_is_the_selections_own() -> None:
    assert {"false_positives": AdaFEST().false_positives} == IMPLIED
    assert help_of("false_positives", algorithms=False).endswith("Default: 50.")


@pytest.mark.parametrize("command", ["plan", "account"])
def test_the_run_of_a_plan_or_an_account_has_the_options_of_training(command: str) -> None:
    """One word per thing: a concept that is a setting of a run has the setting's name and help elsewhere too."""
    options = {each.name: each for each in typer.main.get_command(app).commands[command].params}  # type: ignore[attr-defined]
    assert "batch" not in options
    for name in ("epochs", "expected_batch_size"):
        assert options[name].help.startswith(RunConfig.model_fields[name].description)


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_is_one_line(name: str, tmp_path: Path) -> None:
    """Also values that are no number at all: they name the setting, like a bad line of a settings file."""
    (tmp_path / "run.yaml").write_text(config().to_yaml())
    option = f"--{name.replace('_', '-')}"
    arguments = ["--config", tmp_path / "run.yaml", "--out", tmp_path / "run"]
    words = WRONG[name] if name == "data" else name
    assert_refused(invoke("train", *arguments, option, WRONG[name]), words)
    assert not (tmp_path / "run").exists()


def test_text_that_is_no_mapping(tmp_path: Path) -> None:
    arguments = ["--data", "generated:500", "--out", tmp_path / "run", "--model-options", "{"]
    assert_refused(invoke("train", *arguments), "model_options: '{' is not YAML")


def test_every_option_reaches_the_run(tmp_path: Path) -> None:
    """A run from options alone has the settings that they say, and no others."""
    given = {
        **settings("fest", rows=20, seed=3),
        "holdout": 0.25,
        "fest_mu": 0.5,
        "physical_batch_size": 300,
        "checkpoint_every": 2,
        "always_on_rows": 500,
        "table_optimizer": "adagrad",
    }
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    done = invoke("train", *options, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    assert RunFolder(tmp_path / "run").config() == RunConfig.parse(given)


def test_the_plan_has_the_defaults_of_a_run() -> None:
    """Its help takes them from the run's settings, and leaves the values to the planner."""
    defaults = {name: each.default for name, each in inspect.signature(plan).parameters.items()}
    for name in ("delta", "threshold", "noise_ratio", "contribution_norm", "always_on_rows"):
        assert RunConfig.model_fields[name].default == defaults[name]


def test_the_options_of_the_command_line_are_those_of_the_config() -> None:
    """No option of ``train`` is written by hand but where the run lies, on how many processes it trains and how it is shown."""
    command = typer.main.get_command(app)
    own = {option.name for option in command.commands["train"].params} - set(FIELDS)  # type: ignore[attr-defined]
    assert own == {"out", "config", "nproc", "as_json"}
