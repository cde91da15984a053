"""Events to JSON and back, for the ledger; parsing is strict."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import numbers
from typing import Any

import attr
from dp_accounting import dp_event

from sparsedp.accounting import events as package_events

Json = dict[str, Any]


def event_to_json(event: dp_event.DpEvent) -> Json:
    """The event as `{"type": class name, field: value, ...}`, nested events included.

    Raises `ValueError` for a class the reader would not know and for values that JSON cannot hold exactly
    (NaN, arrays, objects): what cannot be read back must not be counted as recorded.
    """
    kind = type(event)
    if _known_events().get(kind.__name__) is not kind:
        raise ValueError(f"event must be a known DpEvent, got {kind.__module__}.{kind.__qualname__}")
    fields = {name: _value_to_json(name, getattr(event, name)) for name in _field_names(kind)}
    return {"type": kind.__name__, **fields}


def event_from_json(data: Any) -> dp_event.DpEvent:
    """The event of `event_to_json`; an unknown type, a missing or an additional field is a `ValueError`."""
    name = data.get("type") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in _known_events():
        raise ValueError(f"event is of no known type: {data!r}")
    kind = _known_events()[name]
    expected = {"type", *_field_names(kind)}
    if set(data) != expected:
        raise ValueError(f"event {kind.__name__} must have the fields {sorted(expected)}, got {sorted(data)}")
    fields = {name: _value_from_json(value) for name, value in data.items() if name != "type"}
    for name, value in fields.items():
        _check_kind(name, value)
    try:
        return kind(**fields)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"event {kind.__name__} cannot be made of {sorted(fields)}: {error}") from error


def event_key(event: dp_event.DpEvent) -> str:
    """A canonical string for an event: equal exactly for events with the same fields."""
    return json.dumps(event_to_json(event), separators=(",", ":"), allow_nan=False)


@functools.cache
def _known_events() -> dict[str, type[dp_event.DpEvent]]:
    """Every event class a ledger may name: dp_accounting's and this package's."""
    named = {**vars(dp_event), **vars(package_events)}
    return {
        kind.__name__: kind
        for kind in named.values()
        if isinstance(kind, type) and issubclass(kind, dp_event.DpEvent) and kind is not dp_event.DpEvent
    }


def _field_names(kind: type[dp_event.DpEvent]) -> tuple[str, ...]:
    # The base class is an attrs class, so a dataclass below it looks like an empty attrs class: check that first.
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(field.name for field in attr.fields(kind))


def _value_to_json(name: str, value: Any) -> Any:
    if isinstance(value, dp_event.DpEvent):
        return event_to_json(value)
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return _float_to_json(name, float(value))
    if isinstance(value, (list, tuple)):
        return [_value_to_json(name, item) for item in value]
    if hasattr(value, "tolist"):  # a numpy array; its scalars are numbers already
        return _value_to_json(name, value.tolist())
    raise ValueError(f"event field {name} cannot be recorded: {value!r}")


def _float_to_json(name: str, value: float) -> float | Json:
    if math.isnan(value):
        raise ValueError(f"event field {name} must be a number, got NaN")
    # JSON has no infinity; a noise multiplier may be infinite (no information released).
    return value if math.isfinite(value) else {"float": "inf" if value > 0 else "-inf"}


def _check_kind(name: str, value: Any) -> None:
    """Fields called event or events hold events; all others hold numbers, or several."""
    items = value if isinstance(value, tuple) and name != "event" else (value,)
    kind = dp_event.DpEvent if name in ("event", "events") else numbers.Real
    if (name == "events" and not isinstance(value, tuple)) or not all(
        isinstance(item, kind) and not isinstance(item, bool) for item in items
    ):
        raise ValueError(f"event field {name} cannot be {value!r:.80}")


def _value_from_json(value: Any) -> Any:
    if isinstance(value, list):  # a tuple, so that the event can be hashed
        return tuple(_value_from_json(item) for item in value)
    if isinstance(value, dict):
        if set(value) == {"float"} and value["float"] in ("inf", "-inf"):
            return float(value["float"])
        return event_from_json(value)
    return value
