"""The names in the glossary are names of the source, and each word stands there once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text()


def test_every_name_is_in_the_source() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    known = set(re.findall(r"\w+", source))
    names = set(re.findall(r"`(\w+)`", PAGE))
    assert len(names) > 20
    assert not names - known


def test_every_word_has_one_line() -> None:
    words = [word for word in re.findall(r"^\| (.+?) \| .+ \|$", PAGE, flags=re.MULTILINE) if word != "word"]
    assert len(words) > 40
    assert len(set(words)) == len(words)
