"""Audits of what a run or a search releases beside its steps: shares of reads, the calibration, the score.

One made-up data set, with and without its first unit, which moves what is released as far as a unit can: it reads the most
read row of every table, several times where it can, and its logits are alike and wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import DpEvent
from sparsedp.audit.case import Case, Claim
from sparsedp.audit.distinguishing import Statistics, repeated
from sparsedp.core.arrays import F64
from sparsedp.data import ClickData
from sparsedp.data.batch import Batch, MultiHot
from sparsedp.data.schema import Feature, Schema
from sparsedp.mechanisms import gaussian
from sparsedp.randomness import Stream
from sparsedp.runs.calibration import EDGES, calibration_events, noisy_histogram
from sparsedp.runs.read_shares import largest_counts, read_share_events, read_shares
from sparsedp.runs.score import LARGEST_LOSS, SENSITIVITY, noisy_score, score_event
from sparsedp.training.step_config import Unit

MU, DELTA, RUNS = 1.0, 0.05, 6_000
USERS, ROWS, READS = 40, 4, 4
"""Users, rows of each, and how often a bag has one id."""
_BAGS = 2
_Pair = tuple[ClickData, ClickData]
_Count = Callable[[ClickData], F64]


def cases() -> list[Case]:
    """All of them, each right form before its controls."""
    return [*_read_shares(), *_calibration(), *_score()]


def _case(
    name: str, event: DpEvent, statistics: Statistics[Any], unit: Unit, released: str, what: str, wrong: bool
) -> Case:
    def claim() -> Claim:
        return Claim(epsilon_of([(event, 1)], DELTA), DELTA, released, unit=unit)

    return Case(name, "mechanism", claim, statistics, _neighbours(unit), RUNS, what, is_control=wrong)


def _read_shares() -> list[Case]:
    """The shares of all tables move together."""

    def found(count: _Count, mu: float, data: ClickData, stream: Stream, runs: int) -> NDArray[np.float64]:
        largest = count(data)
        return np.array([read_shares(largest, USERS * ROWS, mu, stream).sum() for _ in range(runs)])

    by_example, by_user = partial(largest_counts, unit="example"), partial(largest_counts, unit="user")
    listed: list[tuple[str, _Count, float, Unit, bool]] = [
        ("read shares", by_example, MU, "example", False),
        ("read shares, of users", by_user, MU, "user", False),
        ("read shares, half the noise", by_example, 2 * MU, "example", True),
        ("read shares, a bag counted by its reads", _counted_reads, MU, "example", True),
        ("read shares, a user counted by rows", by_example, MU, "user", True),
    ]
    (event,) = read_share_events(MU)
    what = "the sum of the shares; one unit reads the most read row of every table"
    return [
        _case(name, event, partial(found, count, mu), unit, "the shares", what, wrong)
        for name, count, mu, unit, wrong in listed
    ]


def _counted_reads(data: ClickData) -> F64:
    """Known to be wrong: a bag that has an id several times counts as often."""
    batch = data.take(np.arange(len(data)))
    columns = [batch.ids[:, 0], *(bag.values for bag in batch.multi_hot)]
    return np.array([np.bincount(ids).max() for ids in columns], np.float64)


def _calibration() -> list[Case]:
    """The noisy histogram, of which the released scale and shift are made."""

    def cell(mu: float, counted: Unit) -> Statistics[ClickData]:
        def once(data: ClickData, stream: Stream) -> F64:
            return noisy_histogram(_FirstNumber(), data, mu, stream, unit=counted)

        return repeated(once, lambda noisy: float(noisy[1, np.searchsorted(EDGES, _LOGIT)]))

    listed: list[tuple[str, float, Unit, Unit, bool]] = [
        ("calibration of the output", MU, "example", "example", False),
        ("calibration of the output, for users", MU, "user", "user", False),
        ("calibration of the output, half the noise", 2 * MU, "example", "example", True),
        ("calibration of the output, a user counted by rows", MU, "example", "user", True),
    ]
    (event,) = calibration_events(MU)
    what = "the noisy histogram where all of one unit's logits and labels fall"
    return [
        _case(name, event, cell(mu, counted), unit, "the noisy histogram", what, wrong)
        for name, mu, counted, unit, wrong in listed
    ]


def _score() -> list[Case]:
    """A model's score by which a search chooses."""

    def right(noise_multiplier: float) -> Statistics[ClickData]:
        def total(data: ClickData, stream: Stream) -> float:
            score = noisy_score(_FirstNumber(), data, noise_multiplier=noise_multiplier, stream=stream)
            return score * len(data) + LARGEST_LOSS / 2 * len(data)  # the number of rows is public

        return repeated(total)

    def uncut(data: ClickData, stream: Stream, runs: int) -> NDArray[np.float64]:
        batch = data.take(np.arange(len(data)))
        logits = batch.numeric[:, 0].astype(np.float64)
        losses = np.logaddexp(0.0, np.where(batch.label > 0, -logits, logits))
        total = (LARGEST_LOSS / 2 - losses).sum()
        return gaussian(np.full(runs, total), std=SENSITIVITY / MU, stream=stream)

    listed: list[tuple[str, Statistics[ClickData], bool]] = [
        ("score of a model", right(1 / MU), False),
        ("score of a model, half the noise", right(0.5 / MU), True),
        ("score of a model, losses that are not cut", uncut, True),
    ]
    what = "the noisy sum of losses; one example is predicted as wrong as can be"
    return [
        _case(name, score_event(1 / MU), statistics, "example", "the noisy score", what, wrong)
        for name, statistics, wrong in listed
    ]


_LOGIT = -30.0
"""Of every row of the first user, each a click."""


class _FirstNumber(nn.Module):
    """The logit is an example's first number."""

    def forward(self, numeric: Tensor, *_ids: object) -> Tensor:
        return numeric[:, 0]


def _neighbours(unit: Unit) -> _Pair:
    """With the first unit and without it."""
    data = _clicks()
    return data, data.subset(np.arange(1 if unit == "example" else ROWS, len(data)))


def _clicks() -> ClickData:
    """Every other user reads row 0 of all tables, the first user several times in a bag; the others have own rows."""
    user = np.repeat(np.arange(USERS), ROWS)
    column, *bags = (Feature(f"C{n}", USERS, "made up") for n in range(1 + _BAGS))
    schema = Schema(
        label="label",
        label_rule="made up",
        numeric=("logit",),
        numeric_rule="as they are",
        categorical=(column,),
        multi_hot=tuple(bags),
        user="user",
        rows_per_user=ROWS,
    )
    numeric = np.zeros((user.size, 1), np.float32)
    numeric[user == 0, 0] = _LOGIT
    row = np.where(user % 2 == 0, 0, user).astype(np.int32)
    reads = np.where(user == 0, READS, 1)
    bag = MultiHot(np.repeat(row, reads), np.append(0, np.cumsum(reads)))
    label = (user % 2 == 0).astype(np.float32)
    return ClickData(Batch(numeric, row[:, None], label, None, (bag,) * _BAGS, user), schema)
