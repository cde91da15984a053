from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.cli import scripts

STUDY = """
import neighbour


def run(out, quick=False):
    (out / "table.csv").write_text("1")
    return {"quick": quick, "answer": neighbour.ANSWER}
"""


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one study and a helper beside it."""
    folder = tmp_path / "checkout" / "experiments"
    folder.mkdir(parents=True)
    (folder / "my_study.py").write_text(STUDY)
    (folder / "neighbour.py").write_text("ANSWER = 42\n")
    monkeypatch.setattr(scripts, "PACKAGE", tmp_path / "checkout" / "src" / "sparsedp")
    return folder


def test_a_study_is_run_into_its_folder(studies: Path, tmp_path: Path) -> None:
    assert invoke("reproduce", "--list").stdout.split() == ["my-study"]
    found = invoke("reproduce", "my-study", "--quick", "--out", tmp_path / "out", "--json")
    assert json.loads(found.stdout) == {"quick": True, "answer": 42}
    assert (tmp_path / "out" / "my-study" / "table.csv").exists()
    assert "table.csv" in invoke("reproduce", "my-study", "--out", tmp_path / "out").stdout


def test_an_unknown_name_is_one_line(tmp_path: Path) -> None:
    assert_refused(invoke("reproduce", "nothing", "--out", tmp_path / "out"), "'nothing' is not one of the")
    assert not (tmp_path / "out").exists()


def test_the_real_studies_are_listed() -> None:
    assert len(json.loads(invoke("reproduce", "--list", "--json").stdout)) >= 3
