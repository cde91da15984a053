"""Whatever goes wrong at the command line is one line and exit code 2; help is always there."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from support.command_line import assert_refused, invoke
from support.runs import config
from typer.testing import CliRunner

from sparsedp.accounting import BudgetExceeded
from sparsedp.cli.app import app
from sparsedp.cli.errors import refuse_bad_input
from sparsedp.core.extras import MissingExtra
from sparsedp.runs import RunFolder

COMMANDS = [
    [],
    *[[name] for name in ("demo", "prepare", "train", "resume", "evaluate", "sweep", "plan", "account")],
    *[[name] for name in ("bench", "reproduce", "report", "calibrate")],
    ["prepare", "criteo"],
    ["prepare", "table"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert result.stderr == ""


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SPARSEDP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "sparsedp re")
    monkeypatch.setenv("COMP_CWORD", "1")
    result = CliRunner().invoke(app, [], prog_name="sparsedp")
    assert result.stdout.split() == ["resume", "reproduce", "report"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("sparsedp train --alg", ["--algorithm"]),
        ("sparsedp train --algorithm ada", ["adafest", "adafest-memory", "adafest+"]),
        ("sparsedp train --holdout-by t", ["time"]),
    ],
)
def test_the_shell_completes_options_and_their_values(
    words: str, completed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SPARSEDP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    result = CliRunner().invoke(app, [], prog_name="sparsedp")
    assert result.stdout.split() == completed


HEAVY = ("torch", "numpy", "scipy", "dp_accounting", "polars", "plotly")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["train", "--bogus"], 2),
        (["train", "--data", "x", "--algorithm", "adafest", "--epsilon", "-1", "--out", "y"], 2),
        (["train", "--data", "no/such", "--algorithm", "adafest", "--epsilon", "1", "--out", "y"], 2),
        (["account", "--bogus"], 2),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_before_anything_heavy_is_imported(arguments: list[str], code: int) -> None:
    source = (
        "import sys; sys.argv = ['sparsedp', *sys.argv[1:]]\n"
        "from sparsedp.__main__ import main\n"
        "try:\n    main()\nfinally:\n"
        f"    print([name for name in {HEAVY} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("epsilon must be positive,\n  got -1"), "sparsedp: epsilon must be positive, got -1\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), "No space left on device: 'x'\n"),
        (FileNotFoundError(errno.ENOENT, "No such file", "data"), "No such file: 'data'\n"),
        (BudgetExceeded("step 5 would pass the budget"), "sparsedp: step 5 would pass the budget\n"),
        (ValueError(), "sparsedp: ValueError\n"),
        (MissingExtra("polars"), "sparsedp: polars is not installed: run pip install 'sparsedp[data]'\n"),
        (ModuleNotFoundError(name="polars"), "run pip install 'sparsedp[data]'\n"),
    ],
)
def test_errors_a_person_can_act_on_are_one_line(error: Exception, line: str) -> None:
    app = typer.Typer()

    @app.command()
    @refuse_bad_input
    def command() -> None:
        raise error

    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith(line)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("a bug"), ModuleNotFoundError(name="sparsedp.nothing")])
def test_a_mistake_of_ours_is_not_hidden(error: Exception) -> None:
    app = typer.Typer()

    @app.command()
    @refuse_bad_input
    def command() -> None:
        raise error

    assert CliRunner().invoke(app, []).exception is error


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes: a large one fails half-way, as on a full disk."""
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("algorithm", ["adafest", "non-private"])
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(algorithm: str, tmp_path: Path) -> None:
    asked = config(algorithm, expected_batch_size=250, checkpoint_every=3)
    (tmp_path / "run.yaml").write_text(asked.to_yaml())
    with small_files(200_000):
        result = invoke("train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json")
    assert_refused(result, "checkpoint.pt", "File too large")
    assert not list((tmp_path / "run").rglob("*.partial"))
    resumed = invoke("resume", tmp_path / "run", "--json")
    assert resumed.exit_code == 0
    assert RunFolder(tmp_path / "run").weights.exists()


def test_a_disk_that_is_full_at_the_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(config("adafest").to_yaml())
    train = ["train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json"]
    with monkeypatch.context() as patched, small_files(200_000):
        patched.setattr("sparsedp.runs.trainer.write_state", lambda *_: None)  # checkpoints are larger still
        result = invoke(*train)
    assert_refused(result, "model.safetensors", "File too large")
    assert not list((tmp_path / "run").rglob("*.partial"))


@pytest.mark.parametrize("ledger", ["/dev/zero", "/dev/null", "/dev", "no/such/folder/data.ledger"])
@pytest.mark.parametrize("period", [None, 1])
def test_a_ledger_that_cannot_be_one_is_one_line_and_no_folder(
    ledger: str, period: int | None, tmp_path: Path
) -> None:
    asked = config("adafest", data="generated:600x3", ledger=ledger, period=period)
    (tmp_path / "run.yaml").write_text(asked.to_yaml())
    arguments = ["--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json"]
    words = "is not a folder" if "no/such" in ledger else "ledger must be a regular file"
    assert_refused(invoke("train", *arguments), words)
    assert not (tmp_path / "run").exists()


def test_epsilon_that_interruptions_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps paid for, none saved: one line, exit code 2."""
    (tmp_path / "run.yaml").write_text(config("adafest").to_yaml())
    with monkeypatch.context() as patched:
        patched.setattr("sparsedp.runs.trainer.write_state", lambda *_: None)
        patched.setattr("sparsedp.runs.training._finish", lambda *_: exit(1))
        invoke("train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json")
    assert_refused(invoke("resume", tmp_path / "run", "--json"), "target_epsilon 2", "which is a cap")
