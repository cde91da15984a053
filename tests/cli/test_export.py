"""``sparsedp export``: says what it wrote and how private it is."""

from __future__ import annotations

from pathlib import Path

from support.command_line import assert_refused, invoke
from support.runs import config
from support.served import Served

from sparsedp.runs import RunFolder


def test_a_run_is_exported_and_says_loudly_that_it_is_not_private(served: Served, tmp_path: Path) -> None:
    result = invoke("export", served.run, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "out" / "serve.py") in result.stdout.replace("\n", "")
    assert "NOT PRIVATE" in result.stderr
    assert_refused(invoke("export", served.run, "--out", tmp_path / "out"), "out: ", "exists")


def test_bad_input_is_one_line(own: Served, exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_refused(invoke("export", own.run, "--out", out), "--trust")
    assert_refused(invoke("export", exported, "--out", out), "is an exported model already")
    assert_refused(invoke("export", tmp_path, "--out", out), "holds neither a run")
    RunFolder(tmp_path / "begun").create(config("lazy"))
    assert_refused(invoke("export", tmp_path / "begun", "--out", out), "has no trained model yet")
    assert_refused(invoke("export", tmp_path / "begun", "--out", out, "--unfinished"), "no schema.json")
    assert not out.exists()
