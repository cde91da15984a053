from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.cli import bench, scripts


def test_the_benchmarks_are_listed() -> None:
    names = json.loads(invoke("bench", "--list", "--json").stdout)
    assert {"step-rows", "pctr-step", "memory", "lazy"} <= set(names)
    assert invoke("bench", "--list").stdout.split() == names


def test_unknown_names_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a benchmark was started")

    monkeypatch.setattr(bench.subprocess, "run", never)
    assert_refused(
        invoke("bench", "step-rows", "nothing"), "'nothing' is not one of the benchmarks", "step-rows"
    )


@pytest.mark.parametrize("code", [0, 2])
def test_each_runs_in_a_process_of_its_own(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert invoke("bench", "memory", "step-rows", "--json").exit_code == code
    assert [command[3].rsplit("/", 1)[1] for command in started] == ["memory.py", "step_rows.py"]
    assert all(command[4:] == ["--json"] for command in started)


def test_a_copy_without_the_scripts_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(scripts, "PACKAGE", tmp_path / "lib" / "src" / "sparsedp")
    assert_refused(invoke("bench", "--list"), "benchmarks are not installed")


@pytest.mark.parametrize("installed", [True, False])
def test_the_step_is_timed_without_opacus(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripts.load("benchmarks", "pctr-step")
    monkeypatch.setattr(script, "interleaved", lambda cases, **_: dict.fromkeys(cases, 2.0))
    for case in ("batches", "plain", "private", *(["opacus_ghost"] if installed else [])):
        monkeypatch.setattr(script, case, lambda *_: None)
    if not installed:
        monkeypatch.setitem(sys.modules, "opacus", None)
    rows = script.run()
    assert ("Opacus ghost" in [row["case"] for row in rows]) == installed
    assert all(("Opacus ghost over it" in row) == installed for row in rows)
    line = "without Opacus: opacus is not installed: run pip install 'sparsedp[bench]'\n"
    assert capsys.readouterr().err == ("" if installed else line)
