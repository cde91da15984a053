"""YAML settings that may be anyone's: plain values, of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from sparsedp.core.text_files import read_text

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 100_000
DEEPEST = 100

_FAULTS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises for texts that it cannot read, or whose values cannot be built (a 13th month)."""


def _loader() -> type[Any]:
    """PyYAML's safe loader, with libyaml's scanner where that is installed: five times as fast.

    Not its ``CSafeLoader``: that composes values in C without a limit, and a deeply nested text ends the process.
    """
    if not yaml.__with_libyaml__:
        return yaml.SafeLoader
    from yaml._yaml import CParser

    class Loader(Composer, CParser, SafeConstructor, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            for each in (Composer, SafeConstructor, Resolver):
                each.__init__(self)

    return Loader


LOADER = _loader()


def read_yaml(path: Path) -> Any:
    """What a YAML (or JSON) file says."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """What a YAML text says; ``where`` it stands, for the message.

    Nothing but plain values is built. References (``*name``) may repeat a value, but not so often that writing the
    settings out again would never end.
    """
    if len(text) > MOST_CHARACTERS or _brackets(text) > DEEPEST:
        raise ValueError(f"{where} is larger or nested deeper than any settings are")
    try:
        value = yaml.load(text, LOADER)
    except _FAULTS as error:
        raise ValueError(f"{where} is not YAML: {error}") from None
    if _size(value, {}, 0, where) > MOST_VALUES:
        raise ValueError(f"{where} has more than {MOST_VALUES:,} values, as no settings do")
    return value


def _brackets(text: str) -> int:
    """How many brackets are open at most: PyYAML's time grows with the square of that."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _size(value: Any, known: dict[int, int | None], depth: int, where: str) -> int:
    """How many values there are, repeated ones counted each time; every list and mapping is walked once."""
    if depth > DEEPEST:
        raise ValueError(f"{where} is nested more than {DEEPEST} deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where} has a text that is not Unicode: {value[:20]!r}") from None
    if not isinstance(value, list | dict | set | tuple):
        return 1
    if id(value) in known:
        size = known[id(value)]
        if size is None:
            raise ValueError(f"{where} has a value that contains itself")
        return size
    known[id(value)] = None
    size = 1 + sum(_size(each, known, depth + 1, where) for each in _parts(value))
    known[id(value)] = size
    return size


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    else:
        yield from value
