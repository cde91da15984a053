"""User canaries: users with several rows each, all of them on one rare row, over a whole training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.audit.canary_run import CanaryData, CanaryTraining
from sparsedp.audit.cases.trainings import DELTA, RATE, STEPS, rare_rows
from sparsedp.audit.one_run_case import OneRunCase
from sparsedp.selection import DPSGD, AdaFEST, Selection

ROWS, USERS = 10, 1000
SIGMA = 2.0
CONTROL_SIGMA = 6.0


def cases() -> list[OneRunCase]:
    """Users drawn and rows of capped users drawn, and the price of an example quoted for a user."""
    adafest = AdaFEST(noise_ratio=1.0, threshold=1.0, always_on_rows=0, contribution_norm=1.0)
    listed: list[tuple[str, Selection, Literal["users", "rows"], float]] = [
        ("DP-SGD, users drawn", DPSGD(), "users", SIGMA),
        ("DP-AdaFEST, users drawn", adafest, "users", SIGMA),
        ("DP-SGD, rows of capped users drawn", DPSGD(), "rows", ROWS * SIGMA),
        ("DP-AdaFEST, rows of capped users drawn", adafest, "rows", ROWS * SIGMA),
    ]
    what = "how often the row of a user's rare id was trained, its gradients, its loss"
    right = [
        OneRunCase(
            name,
            "user",
            partial(_of_users, selection, noise_multiplier=sigma, unit="user", user_sample=sample),
            DELTA,
            what,
            USERS,
        )
        for name, selection, sample, sigma in listed
    ]
    return [
        *right,
        _control("an example's epsilon quoted for a user", partial(_of_users, DPSGD(), unit="example"), what),
        _control(
            "rows of capped users, priced as one row",
            partial(_of_users, DPSGD(), unit="user", user_sample="rows"),
            what,
        ),
    ]


def _of_users(selection: Selection, users: int, **options: Any) -> CanaryTraining:
    """``ROWS`` rows of user ``n`` read row ``n``; the fillers are users with as many rows."""
    given: dict[str, Any] = {"noise_multiplier": CONTROL_SIGMA, **options}
    ids = torch.arange(users).repeat_interleave(ROWS)
    fillers = users + torch.arange(20 * ROWS) % 10
    data = CanaryData((fillers,), (ids,), rows_per_canary=ROWS)
    return rare_rows(selection, users, data=data, **given)


def _control(name: str, training: Callable[[int], CanaryTraining], what: str) -> OneRunCase:
    def claimed() -> float:
        return epsilon_of([(PoissonSampledDpEvent(RATE, GaussianDpEvent(CONTROL_SIGMA)), STEPS)], DELTA)

    return OneRunCase(name, "user", training, DELTA, what, USERS, claimed, is_control=True)
