"""What docs/architecture.md says of the rooms is what the source imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sparsedp"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def imported() -> dict[str, set[str]]:
    """The rooms that each room imports when it runs."""
    rooms = {path.parent.name: set[str]() for path in SOURCE.glob("*/__init__.py")}
    for room, found in rooms.items():
        for path in (SOURCE / room).rglob("*.py"):
            for name in _imports(ast.parse(path.read_text())):
                parts = name.split(".")
                if parts[0] == "sparsedp" and len(parts) > 1 and parts[1] in rooms and parts[1] != room:
                    found.add(parts[1])
    return rooms


def listed() -> dict[str, set[str]]:
    """The rooms that each room builds on, as the table has it."""
    lines = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", PAGE.split("\n## ")[1], flags=re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", below)) for room, below in lines}


def _imports(tree: ast.AST) -> list[str]:
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return []
    if isinstance(tree, ast.ImportFrom):
        return [tree.module or ""]
    if isinstance(tree, ast.Import):
        return [alias.name for alias in tree.names]
    return [name for child in ast.iter_child_nodes(tree) for name in _imports(child)]


def _below(room: str, graph: dict[str, set[str]]) -> set[str]:
    return graph[room].union(*(_below(other, graph) for other in graph[room]))


def test_what_a_room_builds_on_is_what_it_imports() -> None:
    page, source = listed(), imported()
    assert set(page) == set(source)
    for room, rooms in source.items():
        assert page[room] <= rooms, room
        assert rooms <= _below(room, page), room
        nearest = {
            each for each in page[room] if not any(each in _below(other, page) for other in page[room])
        }
        assert page[room] == nearest, room


def test_every_room_is_in_the_drawing() -> None:
    drawing = PAGE.split("```text")[1].split("```")[0]
    assert sorted(re.findall(r"\w+", drawing)) == sorted(imported())
