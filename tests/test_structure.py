"""The structure check finds what the docs name and the library or its tests do not have."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_structure.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_structure", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_that_cannot_be_imported_are_found(check: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    page.write_text("`sparsedp.selection.AdaFEST.rule`\n`sparsedp.selection.NoFEST`, `sparsedp.nowhere.f`\n")
    assert list(check.unknown_names(page)) == [
        "papers.md:2: sparsedp.selection.NoFEST does not exist",
        "papers.md:2: sparsedp.nowhere.f does not exist",
    ]


def test_tests_that_do_not_exist_are_found(check: ModuleType, tmp_path: Path) -> None:
    known = "tests/test_structure.py::test_tests_that_do_not_exist_are_found"
    unknown = "tests/test_structure" + ".py::test_nothing", "tests/test_no" + "where.py"
    (tmp_path / "page.md").write_text(f"`{known}[a-1]` `tests/test_main.py`\n`{unknown[0]}` `{unknown[1]}`\n")
    assert list(check.unknown_tests(tmp_path)) == [f"page.md:2: {each} does not exist" for each in unknown]


def test_a_study_or_helper_without_tests_is_found(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments" / "paper").mkdir(parents=True)
    (tmp_path / "experiments" / "paper" / "figure1.py").write_text("x = 1\n\n\ndef run(study): ...\n")
    (tmp_path / "experiments" / "paper" / "helper.py").write_text("def settle(): ...\n")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(check, "EXPERIMENTS", tmp_path / "experiments")
    monkeypatch.setattr(check, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(check, "TESTED_ELSEWHERE", {})
    assert list(check.missing_tests()) == [
        "experiments/paper/figure1.py has no tests/experiments/paper/test_studies.py",
        "experiments/paper/helper.py has no tests/experiments/paper/test_helper.py",
    ]
    assert list(check.retired_names()) == ["experiments/paper/helper.py:1: the name 'settle' was retired"]


def test_the_docs_name_nothing_unknown(check: ModuleType) -> None:
    assert not [*check.unknown_names(), *check.unknown_tests()]
    named = (check.DOCS / "papers.md").read_text()
    assert named.count("`sparsedp.") > 100
    assert named.count("`tests/") > 100
