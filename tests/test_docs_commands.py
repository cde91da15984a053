"""Every `sparsedp` command that the README or a page shows exists, with the options that it is given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sparsedp.cli.app import app
from sparsedp.runs import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACEHOLDER = re.compile(r"[A-Z]+")
"""``sparsedp reproduce NAME`` names no study."""


def commands() -> list[str]:
    """Each command once: the lines of code blocks, and code within a line."""
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines() if line.startswith("sparsedp ")]
        for line in [*lines, *re.findall(r"`(sparsedp [^`]+)`", rest)]:
            found[" ".join(line.split())] = page
    return list(found)


def test_commands_are_found() -> None:
    found = commands()
    assert len(found) > 30
    assert "sparsedp report run --out report.html" in found


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_docs_exists_with_its_options(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    is_group = hasattr(command, "commands") and not command.invoke_without_command
    alone = all(word.startswith("--") for word in words)  # options of a group of commands
    assert not is_group or alone, f"there is no such command: {words}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options | {"--help"}


def test_settings_of_the_docs_are_fields_of_the_config() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text()
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", page))
    assert len(named) > 12
    assert named <= set(RunConfig.model_fields)


@pytest.mark.parametrize("command", ["reproduce", "bench"])
def test_studies_and_benchmarks_of_the_docs_exist(command: str) -> None:
    named = {line.split()[2].strip(",;") for line in commands() if line.startswith(f"sparsedp {command} ")}
    named = {name for name in named if not PLACEHOLDER.fullmatch(name) and not name.startswith("-")}
    assert len(named) > 5
    listed = (
        CliRunner().invoke(app, [command, "--help"]).output
        + CliRunner().invoke(app, [command, "none"]).output
    )
    assert not [name for name in named if name not in listed]
