"""Epochs in steps: every step that is begun counts."""

from __future__ import annotations

import pytest

from sparsedp.core.steps import steps_in, steps_per_epoch


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        *[(1.0, 1), (0.9, 2), (0.5, 2), (0.4, 3), (1 / 3, 3), (0.3, 4), (0.1, 10)],
        *[(46 / 364, 8), (1 / 49, 49), (2048 / 45_000_000, 21973)],
    ],
)
def test_a_pass_counts_every_step_that_is_begun(rate: float, steps: int) -> None:
    assert steps_per_epoch(rate) == steps


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "steps"),
    [
        *[(0.1, 3, 1), (1, 3, 3), (1.5, 3, 5), (2, 3, 6), (2.01, 3, 7)],
        *[(1, 8, 8), (16, 8, 128), (0.5, 8, 4), (0.3, 8, 3), (0.01, 8, 1), (0.1 * 3, 10, 3)],
    ],
)
def test_passes_have_as_many_steps_as_a_loop_takes(epochs: float, per_epoch: int, steps: int) -> None:
    assert steps_in(epochs, per_epoch) == steps
