"""The command line, called in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from sparsedp.cli.app import app


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, *words: str) -> None:
    """Exit code 2, exactly one line on standard error with these words, nothing on standard output."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("sparsedp: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
