"""Protecting users: drawing users against drawing rows of capped users, at the same budget and the same work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sparsedp.accounting.statement import PrivacyStatement
from sparsedp.accounting.users import user_step_event
from sparsedp.core.defaults import default_delta
from sparsedp.core.validation import check_count
from sparsedp.planning.budget import RunBudget


@dataclass(frozen=True)
class UserPlan:
    """Both ways to protect users who have ``rows_per_user`` rows each.

    Both draw at ``sampling_rate``, users or rows, for ``steps`` steps: so many rows a step on average either way. Noise
    is ``user_noise_multiplier`` times the clipping norm of a user's summed gradient, or ``row_noise_multiplier`` times
    that of a row's. The signal, the sum over all rows, is the same. So drawing users has less noise where the sum
    over a user's rows is less than ``break_even`` times as long as a row's gradient: that is the square root of
    ``rows_per_user`` where a user's rows have nothing in common, and ``rows_per_user`` where they are all the same.
    """

    statement: PrivacyStatement
    users: int
    rows_per_user: int
    expected_users: float
    """In a batch, where users are drawn."""
    expected_rows: int
    """In a batch, either way."""
    sampling_rate: float
    steps: int
    user_noise_multiplier: float
    row_noise_multiplier: float

    @property
    def break_even(self) -> float:
        """How many times longer a user's sum may be than a row's gradient for drawing users to be better."""
        return self.row_noise_multiplier / self.user_noise_multiplier

    @property
    def better(self) -> Literal["users", "rows", "it depends"]:
        """What to draw, where the numbers alone say so."""
        if self.break_even >= self.rows_per_user:
            return "users"
        return "rows" if self.break_even <= math.sqrt(self.rows_per_user) else "it depends"

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        own = {"break_even": self.break_even, "better": self.better}
        return {**asdict(self), "statement": self.statement.to_dict(), **own}


def plan_users(
    *,
    epsilon: float,
    delta: float | None = None,
    users: int,
    rows_per_user: int,
    expected_batch_size: int,
    epochs: float = 1.0,
) -> UserPlan:
    """Compare both ways for a budget; ``expected_batch_size`` counts rows, delta defaults to 1 / (10 users)."""
    users, rows = check_count("users", users), check_count("rows_per_user", rows_per_user)
    delta = default_delta(users) if delta is None else delta
    budget = RunBudget.checked(epsilon, delta, users * rows, expected_batch_size, epochs)
    row_noise_multiplier = budget.calibrate(
        step_event=lambda sigma: user_step_event(sigma, budget.sampling_rate, rows)
    )
    return UserPlan(
        statement=replace(budget.statement(), unit="user"),
        users=users,
        rows_per_user=rows,
        expected_users=budget.expected_batch_size / rows,
        expected_rows=budget.expected_batch_size,
        sampling_rate=budget.sampling_rate,
        steps=budget.steps,
        user_noise_multiplier=budget.calibrate(),
        row_noise_multiplier=row_noise_multiplier,
    )
