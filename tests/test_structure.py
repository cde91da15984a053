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
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "page.md").write_text(f"`{known}[a-1]` `tests/test_main.py`\n`{unknown[0]}`\n")
    (tmp_path / "docs" / "deep" / "page.md").write_text(f"`{unknown[1]}`\n")
    (tmp_path / "README.md").write_text(f"`{unknown[0]}`\n")
    assert list(check.unknown_tests(tmp_path)) == [
        f"README.md:1: {unknown[0]} does not exist",
        f"docs/deep/page.md:1: {unknown[1]} does not exist",
        f"docs/page.md:2: {unknown[0]} does not exist",
    ]


def test_claims_and_notes_that_do_not_match_are_found(check: ModuleType, tmp_path: Path) -> None:
    test = "`tests/test_structure.py::test_claims_and_notes_that_do_not_match_are_found`"
    (tmp_path / "README.md").write_text(
        f"Held.[^held] Bare.[^bare] Lost.[^lost]\n\n[^held]: {test}\n[^held]: {test}\n[^bare]: nothing\n[^idle]: {test}\n"
    )
    assert list(check.loose_notes(tmp_path)) == [
        "README.md:4: there are two notes held",
        "README.md:5: the note bare names no test",
        "README.md:1: there is no note lost",
        "README.md:6: nothing refers to idle",
    ]


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
    assert not [*check.unknown_names(), *check.unknown_tests(), *check.loose_notes()]
    named = (check.DOCS / "papers.md").read_text()
    assert named.count("`sparsedp.") > 100
    assert named.count("`tests/") > 100


@pytest.mark.parametrize(
    ("page", "tests"),
    [
        ("README.md", 15),
        ("docs/convex.md", 15),
        ("docs/corrections.md", 60),
        ("docs/first-hour.md", 8),
        ("docs/from-opacus.md", 10),
        ("docs/optimisers.md", 10),
        ("docs/privacy.md", 60),
        ("docs/your-model.md", 30),
    ],
)
def test_claims_name_their_tests(check: ModuleType, page: str, tests: int) -> None:
    assert (check.ROOT / page).read_text().count("::test_") >= tests


@pytest.fixture
def small_package(check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package and empty folders beside it, which the checks look at."""
    package = tmp_path / "src" / "sparsedp"
    for folder in (package, tmp_path / "experiments"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "SOURCE", package)
    monkeypatch.setattr(check, "EXPERIMENTS", tmp_path / "experiments")
    return package


def test_retired_words_are_found_inside_names(check: ModuleType, small_package: Path) -> None:
    (small_package / "a.py").write_text("class KeptRows: ...\ndef _rows_owed(): ...\nkeptic, upkeep = 1, 2\n")
    assert list(check.retired_names()) == [
        "src/sparsedp/a.py:1: the name 'KeptRows' was retired",
        "src/sparsedp/a.py:2: the name '_rows_owed' was retired",
    ]


def test_names_that_only_tests_use_are_found(check: ModuleType, small_package: Path) -> None:
    (small_package / "__init__.py").write_text('__all__ = ["exported"]\n')
    (small_package / "a.py").write_text(
        "LIMIT = 3\nIDLE = 4\ndef exported(): return helper()\ndef helper(): return LIMIT\n"
        "def idle(): ...\ndef documented(): ...\n@register\ndef registered(): ...\n"
    )
    (small_package.parents[1] / "README.md").write_text("`documented` is for you.\n")
    assert list(check.unused_names()) == [
        "src/sparsedp/a.py:2: IDLE is used by tests alone, or not at all",
        "src/sparsedp/a.py:5: idle is used by tests alone, or not at all",
    ]


def test_long_functions_are_found(check: ModuleType, small_package: Path) -> None:
    doc = '    """\n' + "    words\n" * 80 + '    """\n'
    (small_package / "a.py").write_text(
        "def fits():\n" + doc + "    x = 1\n" * 58 + "\n\ndef long():\n" + doc + "    x = 1\n" * 61
    )
    assert [fault.split(": ")[1] for fault in check.long_functions()] == ["long has 62 lines"]
