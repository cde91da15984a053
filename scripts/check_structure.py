"""Checks of `make lint`: tests mirror the source, no retired or unused name is left, what the docs name exists, claims
name tests.

python scripts/check_structure.py
"""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS, DOCS = ROOT / "src" / "sparsedp", ROOT / "tests", ROOT / "docs"
EXPERIMENTS = ROOT / "experiments"

TESTED_ELSEWHERE = {
    "__main__.py": "test_main.py",
    "accounting/budget.py": "accounting/ledger/test_ledger.py",
    "accounting/ledger/format.py": "accounting/ledger/test_file.py",
    "cli/app.py": "cli/test_errors.py",
    "clipping/errors.py": "clipping/test_hooks.py",
    "planning/comparison.py": "planning/test_planner.py",
    "planning/selection_plan.py": "planning/test_planner.py",
    "selection/table_counts.py": "selection/test_base_numbers.py",
    "training/optimizer_check.py": "training/test_optimizer.py",
    "training/session.py": "training/test_engine.py",
}
"""Source files without a test file of their own, and where they are tested."""

ACROSS = {
    "accounting/test_references.py",
    "clipping/test_hugging_face.py",
    "examples/test_examples.py",
    "examples/test_extending.py",
    "examples/test_glossary.py",
    "examples/test_text_page.py",
    "experiments/fest/test_studies.py",
    "experiments/sgo/test_studies.py",
    "experiments/test_data_page.py",
    "experiments/test_studies.py",
    "experiments/wide/test_studies.py",
    "fuzz/test_readers.py",
    "mechanisms/test_corrections.py",
    "mechanisms/test_scales.py",
    "randomness/test_float_attacks.py",
    "selection/test_prices.py",
    "test_docs_commands.py",
    "test_docs_notebooks.py",
    "test_docs_rooms.py",
    "test_docs_site.py",
    "test_faults.py",
    "test_installation.py",
    "test_main.py",
    "test_mutants.py",
    "test_sbom.py",
    "test_seeded_results.py",
    "test_structure.py",
    "training/test_fine_tuning.py",
    "training/test_memory.py",
    "training/test_scales.py",
}
"""Test files about several source files at once."""

RETIRED = frozenset(
    [
        "Occurrences",
        "Readings",
        "Wanted",
        "stilled",
        "Terms",
        "settle",
        "rows_owe",
        "owes",
        "pay",
        "Tally",
        "Job",
        "Watcher",
        "Refusal",
        "UnsupportedModule",
        "DOUBT",
        "Book",
        "Stepper",
        "Allowance",
        "torn",
        "Direction",
        "Outline",
        "Pace",
        "Everywhere",
        "TableSpec",
        "TablePlan",
        "RowCounts",
        "SparseVector",
        "StandIn",
        "Watch",
        "Entrance",
        "Place",
        "survey",
        "unsettled",
        "grounds_input",
        "Histogram",
        "Floats",
        "Ints",
        "divide",
        "firsts",
    ]
)
"""Names that were replaced: a name here has one word, and these are not it."""


RETIRED_WORDS = frozenset(
    [
        *("kept", "wanted", "stilled", "wish", "wishes", "forgotten"),
        *("owe", "owes", "owed", "pay", "pays", "paid", "settle", "settled", "unsettled", "torn"),
        *("tally", "outline", "doubt", "readings", "occurrence", "firsts"),
    ]
)
"""Words of the same vocabulary that must not be a part of a name either: ``_kept_rows``, ``KeptRows``."""

ALLOWED = {
    ("accounting/ledger/state.py", "_enter_settle"): "the ledger's file format has this kind of record",
    ("accounting/ledger/state.py", "settled"): "the same",
    ("accounting/pld/grid.py", "kept_p"): "the mass that stays on the grid",
    ("accounting/pld/grid.py", "kept_q"): "the same",
    ("data/row_sets.py", "kept_before"): "rows that stay in the set",
    ("training/session.py", "_warn_of_kept_pieces"): "pieces that stay in memory",
}
"""Names with such a word that say what they mean, and why."""


def main() -> int:
    """Print every fault; 1 if there is one."""
    checks = [missing_tests, stray_tests, retired_names, unused_names, long_functions]
    checks += [unknown_names, unknown_tests, loose_notes]
    faults = [fault for check in checks for fault in check()]
    for fault in faults:
        print(fault)
    return bool(faults)


def missing_tests() -> Iterator[str]:
    """Source files without tests. A study, which is a file with a `run`, is run by ``test_studies.py`` beside it."""
    for path in sorted(EXPERIMENTS.rglob("*.py")):
        study = "\ndef run(" in path.read_text()
        test = TESTS / path.relative_to(ROOT).with_name("test_studies.py" if study else f"test_{path.name}")
        if path.name != "__init__.py" and not test.exists():
            yield f"{path.relative_to(ROOT)} has no {test.relative_to(ROOT)}"
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE)
        test = TESTED_ELSEWHERE.get(own.as_posix(), own.with_name(f"test_{own.name}").as_posix())
        if path.name != "__init__.py" and not (TESTS / test).exists():
            yield f"src/sparsedp/{own} has no tests/{test}"
        if own.as_posix() in TESTED_ELSEWHERE and (TESTS / own.with_name(f"test_{own.name}")).exists():
            yield f"src/sparsedp/{own} has tests of its own: take it off TESTED_ELSEWHERE"
    for own in TESTED_ELSEWHERE:
        if not (SOURCE / own).exists():
            yield f"TESTED_ELSEWHERE names {own}, which does not exist"


def stray_tests() -> Iterator[str]:
    """Test files that mirror no source file: ``test_step_audit.py`` mirrors ``step.py``."""
    for path in sorted(TESTS.rglob("test_*.py")):
        own = path.relative_to(TESTS)
        if own.as_posix() in ACROSS:
            continue
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
        folder = (ROOT if own.parts[0] == "experiments" else SOURCE) / own.parent
        if not any((folder / f"{name}.py").exists() for name in names):
            yield f"tests/{own} mirrors no source file"


def retired_names() -> Iterator[str]:
    """Identifiers of the source that were replaced by better words."""
    for path in sorted([*SOURCE.rglob("*.py"), *EXPERIMENTS.rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _names(node):
                if name.lstrip("_") in RETIRED or _has_retired_word(path, name):
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: the name {name!r} was retired"


def _has_retired_word(path: Path, name: str) -> bool:
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    own = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else ""
    return bool(words & RETIRED_WORDS) and (own, name) not in ALLOWED


def unused_names() -> Iterator[str]:
    """Functions, classes and constants that nothing but a test uses, that no room exports and no page names."""
    used: set[str] = set()
    modules = {
        path: ast.parse(path.read_text())
        for folder in (SOURCE, EXPERIMENTS, ROOT / "benchmarks", ROOT / "examples", ROOT / "scripts")
        for path in sorted(folder.rglob("*.py"))
    }
    for tree in modules.values():
        used |= {name for node in ast.walk(tree) for name in _uses(node)}
    pages = "".join(line for _, _, line in _lines_of_pages(ROOT))
    for path, tree in modules.items():
        if not path.is_relative_to(SOURCE) and not path.is_relative_to(EXPERIMENTS):
            continue
        for node in tree.body:
            for name in _defined(node):
                if name not in used and not re.search(rf"\b{name}\b", pages):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name} is used by tests alone, or not at all"


def _uses(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value  # of an __all__, or of a table of lazily imported names


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module defines, without registered and special ones."""
    names = []
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
        names = [node.name]
    elif isinstance(node, ast.Assign):
        names = [each.id for each in node.targets if isinstance(each, ast.Name)]
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        names = [node.target.id]
    yield from (name for name in names if not name.startswith("__"))


def long_functions(limit: int = 60) -> Iterator[str]:
    """Functions of more than ``limit`` lines, docstrings not counted."""
    for path in sorted([*SOURCE.rglob("*.py"), *EXPERIMENTS.rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
                if lines > limit:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


def unknown_names(page: Path = DOCS / "papers.md") -> Iterator[str]:
    """Names of the library on the page that cannot be imported."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for name in re.findall(r"`(sparsedp(?:\.\w+)+)`", line):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                yield f"{page.name}:{number}: {name} does not exist"


def unknown_tests(root: Path = ROOT) -> Iterator[str]:
    """Tests that a page names and that do not exist: ``tests/a/test_b.py::test_c``, parameters ignored."""
    for page, number, line in _lines_of_pages(root):
        for path, inside in re.findall(r"\b(tests/[\w/]+\.py)((?:::\w+)*)", line):
            source = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
            known = re.findall(r"^\s*(?:def|class) (\w+)", source, re.MULTILINE)
            if not source or not set(inside.split("::")[1:]) <= set(known):
                yield f"{page}:{number}: {path}{inside} does not exist"


def loose_notes(root: Path = ROOT) -> Iterator[str]:
    """Footnotes, by which a claim names its tests, that lack the claim, the note, or a test."""
    marks: dict[Path, dict[str, int]] = {}
    notes: dict[Path, dict[str, int]] = {}
    for page, number, line in _lines_of_pages(root):
        note = re.match(r"\[\^([\w-]+)\]:", line)
        if note is None:
            marks.setdefault(page, {}).update(dict.fromkeys(re.findall(r"\[\^([\w-]+)\]", line), number))
            continue
        if note[1] in notes.setdefault(page, {}):
            yield f"{page}:{number}: there are two notes {note[1]}"
        notes[page][note[1]] = number
        if not re.search(r"`tests/[\w/]+\.py::test_\w+", line):
            yield f"{page}:{number}: the note {note[1]} names no test"
    for page in sorted({*marks, *notes}):
        here, there = marks.get(page, {}), notes.get(page, {})
        yield from (f"{page}:{here[name]}: there is no note {name}" for name in here if name not in there)
        yield from (f"{page}:{there[name]}: nothing refers to {name}" for name in there if name not in here)


def _lines_of_pages(root: Path) -> Iterator[tuple[Path, int, str]]:
    """(page, number, line) of the pages at the top and in ``docs/``."""
    for page in [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            yield page.relative_to(root), number, line


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.alias):
        yield node.name
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield node.attr


if __name__ == "__main__":
    sys.exit(main())
