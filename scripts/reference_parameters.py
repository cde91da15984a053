"""For the API reference: the sections "Parameters" and "Attributes" of a docstring become lists, as they stand.

A parser of sections would give names that share a line (``epsilon, delta``) each other's types and defaults.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n(.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?)(?: : (.*))?$((?:\n[ \t]+.*)*)", re.MULTILINE)


class ParametersAsList(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = parameters_as_list(obj.docstring.value)


def parameters_as_list(docstring: str) -> str:
    """``names`` (or ``names : text``) and the indented lines below them as ``- names: text``."""
    return _SECTION.sub(lambda section: f"{section[1]}:\n\n" + _ENTRY.sub(_item, section[2]), docstring)


def _item(entry: re.Match[str]) -> str:
    names = ", ".join(f"``{name.strip()}``" for name in entry[1].split(","))
    first, rest = entry[2] or "", " ".join(entry[3].split())
    joint = ". " if "default=" in first and rest else " "  # a type, then a sentence
    return f"- {names}: {joint.join(filter(None, [first, rest]))}"
