"""Defaults that several rooms share stand in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsedp.core import defaults

SOURCE = Path(defaults.__file__).parents[1]
SHARED = frozenset({"always_on_rows", "noise_ratio", "false_positives", "fest_mu", "mu", "beta"})
OWN = {"data/partition_selection.py": "false_positives"}
"""Another number of the same name: keys that a learned vocabulary lists by chance."""


def literal_defaults(tree: ast.AST) -> Iterator[str]:
    """Parameters and fields of a shared name whose default is written out as a number."""
    for node in ast.walk(tree):
        given: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = [*node.args.posonlyargs, *node.args.args]
            last = positional[len(positional) - len(node.args.defaults) :]
            given = [(each.arg, value) for each, value in zip(last, node.args.defaults, strict=True)]
            given += [
                (each.arg, value)
                for each, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            ]
        elif isinstance(node, ast.ClassDef):
            given = [
                (each.target.id, each.value)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
        for name, value in given:
            if name in SHARED and isinstance(value, ast.Constant) and value.value:
                yield name


def test_no_shared_default_is_written_out_again() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in literal_defaults(ast.parse(path.read_text()))
    }
    assert found == set(OWN.items())


@pytest.mark.parametrize(
    "code",
    [
        "def plan(*, noise_ratio: float = 5.0): ...",
        "def top_k(k, mu=0.05): ...",
        "class AdaFEST:\n    always_on_rows: int = 1000",
    ],
)
def test_the_search_finds_what_it_is_for(code: str) -> None:
    assert list(literal_defaults(ast.parse(code)))


def test_one_over_ten_n_is_written_once() -> None:
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py") if path.name != "defaults.py"}
    wrong = [
        path
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.BinOp)
        and isinstance(node.right.op, ast.Mult)
        and isinstance(node.right.left, ast.Constant)
        and node.right.left.value == 10
    ]
    assert wrong == []


def test_values() -> None:
    """Runs of earlier versions are resumed with these: a change of one is a change of what they spend."""
    assert (defaults.DEFAULT_ALWAYS_ON_ROWS, defaults.DEFAULT_NOISE_RATIO) == (1000, 5.0)
    assert (defaults.DEFAULT_FALSE_POSITIVES, defaults.DEFAULT_MU) == (50.0, 0.05)
    assert [defaults.default_mu(n) for n in (1, 100_000, 100_001)] == [0.02, 0.02, 0.05]
    assert defaults.default_delta(45_000_000) == 1 / 450_000_000
