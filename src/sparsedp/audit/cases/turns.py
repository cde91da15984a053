"""Audits of rows that take turns and of the counts that pace them, and the known-bad forms that they must refute."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
from sparsedp.audit.case import Case, Claim
from sparsedp.core.arrays import F64
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import noisy_histogram
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowSpace
from sparsedp.selection import FEST
from sparsedp.selection.pace import UpdateSchedule
from sparsedp.training.noise import Noise
from sparsedp.training.pending_sums import PendingSums

_DELTA, _STEPS, _PERIOD, _SIGMA = 0.01, 4, 4, 2.0
_ROWS = 400_000
"""So many rows are so many runs: every row has noise of its own."""


class _OneStepOfNoise(Noise):
    """Sums of several steps with the noise of one. Not private; a control."""

    @override
    def noised_after(self, sums: F64, steps: int) -> F64:
        return super().noised_after(sums, min(steps, 1))


def _released(
    kind: type[Noise], saved: bool, is_read: bool, stream: Stream, runs: int
) -> NDArray[np.float64]:
    """All that is released of rows that one example reads, or does not, in each of the steps."""
    rule = FEST({"table": []}, always_on_rows=0).rule(
        RowSpace((TableShape("table", runs, 1),)),
        noise_multiplier=_SIGMA,
        max_grad_norm=1.0,
        expected_batch_size=1.0,
    )
    noise = kind(rule, 1, NoiseSource(int(stream.uint64(1)[0] >> np.uint64(2))))
    rows, value = np.arange(runs), np.full((runs, 1), float(is_read))
    pending, total = PendingSums(UpdateSchedule([rows], [np.full(runs, _PERIOD)]), [1]), np.zeros(runs)
    for step in range(1, _STEPS + 1):
        released = pending.take_turns({0: (rows, value)}, noise)
        if saved and step == _STEPS // 2:
            pending.load_state_dict(pending.state_dict(noise))
        for own, values in released:
            total[own] += values[:, 0]
    for own, values in pending.flush(noise):
        total[own] += values[:, 0]
    return total


def _counted(part: float, is_read: bool, stream: Stream, runs: int) -> NDArray[np.float64]:
    """The noisy counts of rows that one example reads, or does not."""
    rows = np.arange(runs if is_read else 0)
    return noisy_histogram(rows, np.ones(rows.size), runs, std=part * _SIGMA / 2, stream=stream)


def cases() -> list[Case]:
    """A row that one example reads in every one of four steps, clipped: that many Gaussians; and its count, once."""
    counts = [
        Case(
            name,
            "mechanism",
            partial(_claim, "every noisy count"),
            partial(_counted, part),
            (True, False),
            _ROWS,
            "the noisy count of the row of a rare id",
            is_control=part < 1.0,
        )
        for name, part in (("noisy histogram", 1.0), ("noisy histogram, half the noise", 0.5))
    ]
    listed = [
        ("rows in turns, over four steps", Noise, False),
        ("rows in turns, saved and loaded after two of four steps", Noise, True),
        ("rows in turns with the noise of one step", _OneStepOfNoise, False),
    ]
    sums = [
        Case(
            name,
            "mechanism",
            partial(_claim, "the gradient of every step"),
            partial(_released, kind, saved),
            (True, False),
            _ROWS,
            "the sum of all that is released of the row of a rare id",
            is_control=kind is _OneStepOfNoise,
        )
        for name, kind, saved in listed
    ]
    return [*counts, *sums]


def _claim(released: str) -> Claim:
    epsilon = analytic_gaussian_epsilon(_DELTA, np.sqrt(_STEPS) / _SIGMA)
    return Claim(epsilon, _DELTA, released, ADD_OR_REMOVE_ONE)
