"""A privacy guarantee with its adjacency, unit and release: never a bare epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any

from sparsedp.accounting.trade_off import REPORTED_RATES, TradeOffCurve
from sparsedp.core.rounding_up import rounded_up
from sparsedp.core.typed_fields import check_fields
from sparsedp.core.validation import check_number, check_probability

ADD_OR_REMOVE_ONE = "add-or-remove-one"
REPLACE_ONE = "replace-one"
ZERO_OUT = "zero-out"
"""Neighbours differ in one example, whose record is replaced by an empty one."""

_ADJACENCIES = (ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT)


@dataclass(frozen=True)
class PrivacyStatement:
    """A guarantee with everything needed to interpret it: privacy unit, adjacency and what was released.

    `private` is False when the numbers do not hold for the run: the noise came from a known seed, or there was
    none. `notes` carry qualifications (for instance: "valid for the final model only").

    `trade_off` is the curve of an attacker's error rates, or its JSON form; left out, it is what follows from epsilon
    and delta alone, which is less than is known of most mechanisms. It is computed when it is first read.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    released: str
    private: bool = True
    notes: tuple[str, ...] = ()
    trade_off: TradeOffCurve = field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon))
        if self.epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {self.epsilon}")
        object.__setattr__(self, "delta", check_probability("delta", self.delta))
        if self.adjacency not in _ADJACENCIES:
            raise ValueError(f"adjacency must be one of {', '.join(_ADJACENCIES)}, got {self.adjacency!r}")
        for name in ("unit", "released"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty: a guarantee without it cannot be read")
        object.__setattr__(self, "notes", tuple(self.notes))
        written = self.trade_off if isinstance(self.trade_off, Mapping) else None
        object.__setattr__(self, "_written", written)  # read and written again it is the same
        object.__setattr__(self, "trade_off", self._curve(self.trade_off))

    def _curve(self, given: TradeOffCurve | Mapping[str, Any] | None) -> TradeOffCurve:
        stated = (self.epsilon, self.delta)
        if isinstance(given, TradeOffCurve):
            return given.with_point(*stated)
        if given is None:
            return TradeOffCurve([stated])
        try:
            return TradeOffCurve([stated, *given["profile"]])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"trade_off must have a profile of pairs (epsilon, delta) ({error})") from None

    def __str__(self) -> str:
        guarantee = (
            f"({rounded_up(self.epsilon, 4)}, {rounded_up(self.delta, 3)})-DP, {self.adjacency} adjacency, "
            f"unit: {self.unit}, released: {self.released}"
        )
        if not self.private:
            guarantee = f"NOT PRIVATE (a run with secure noise would be {guarantee})"
        return "; ".join([guarantee, *self.notes])

    @property
    def terms(self) -> str:
        """What must stand beside epsilon, for the name of a curve or of a logged value."""
        return f"delta {rounded_up(self.delta, 3)}, {self.adjacency} {self.unit}; released: {self.released}"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], where: str) -> PrivacyStatement:
        """The reverse of ``to_dict``; ``where`` the fields stand, for the message. Other fields are passed over."""
        try:
            fields = {"trade_off": None, **fields}  # which earlier versions did not write
            known = {each.name: fields[each.name] for each in dataclass_fields(cls)}
            for name, kinds in {
                "epsilon": (int, float),
                "delta": (int, float),
                "notes": (list, tuple),
            }.items():
                if type(known[name]) not in kinds:
                    raise ValueError(f"{name} cannot be {known[name]!r:.40}")
            statement = cls(**known)
            check_fields(statement)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where} is no privacy statement ({error})") from error
        return statement

    def attack_text(self) -> str:
        """What the best attacker can do, in words, with all that is needed to interpret it."""
        curve = self.trade_off
        found = " and ".join(
            f"{curve.true_positive_rate(rate):.3g} at a false positive rate of {rate:g}"
            for rate in REPORTED_RATES
        )
        words = (
            f"Best attack on one {self.unit} ({self.adjacency} adjacency, released: {self.released}): advantage at most "
            f"{curve.advantage:.3g}; true positive rate at most {found}"
        )
        if math.isfinite(mu := curve.mu(self.delta)):
            words += f"; no better than telling N(0, 1) from N({mu:.3g}, 1), up to delta"
        return words if self.private else f"NOT PRIVATE (a run with secure noise would have this: {words})"

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "released": self.released,
            "private": self.private,
            "notes": list(self.notes),
            "trade_off": getattr(self, "_written", None) or self.trade_off.to_json(self.delta),
        }
