"""Dataclasses that come from files: every field has the type that the class says."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints


def check_fields(instance: Any) -> None:
    """Refuse an instance of a dataclass with a field of another type; a whole number is a float, True is no number."""
    hints = _hints(cast(Hashable, type(instance)))
    for field in fields(instance):
        value = getattr(instance, field.name)
        if not _fits(value, hints[field.name]):
            raise ValueError(f"{field.name} cannot be {reprlib.repr(value)}")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(_fits(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if origin in (list, dict, Mapping):
        return _container_fits(value, origin, inner)
    if is_dataclass(kind):
        if not isinstance(value, kind):  # type: ignore[arg-type]
            return False
        check_fields(value)
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind or NoneType) and (kind is bool or not isinstance(value, bool))


def _container_fits(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if not isinstance(value, origin):
        return False
    if origin is list:
        return all(_fits(each, inner[0]) for each in value)
    return all(_fits(name, inner[0]) and _fits(each, inner[1]) for name, each in value.items())
