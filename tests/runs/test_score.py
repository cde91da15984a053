"""The private score: what one example can do to it, and its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparsedp.accounting import GaussianDpEvent
from sparsedp.randomness import NoiseSource
from sparsedp.runs.score import LARGEST_LOSS, SENSITIVITY, centred_losses, noisy_score, score_event, score_sum
from sparsedp.runs.sources import open_data


class Constant(nn.Module):
    """Predicts one logit for every row."""

    def __init__(self, logit: float) -> None:
        super().__init__()
        self.logit = logit

    def forward(self, numeric: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.full((len(ids),), self.logit)


@given(st.floats(allow_nan=True, allow_infinity=True), st.booleans())
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(logit: float, clicked: bool) -> None:
    """Whatever the model predicts for it, also what is no number."""
    added = centred_losses(np.array([logit]), np.array([clicked]))
    assert np.isfinite(added).all()
    assert abs(added[0]) <= SENSITIVITY


def test_a_prediction_that_is_no_number_is_the_worst() -> None:
    losses = centred_losses(np.array([math.nan, 50.0, 0.0]), np.array([True, True, True]))
    assert losses.tolist() == pytest.approx([-SENSITIVITY, SENSITIVITY, SENSITIVITY - math.log(2)])


def test_the_score_is_minus_the_log_loss_with_noise_of_the_stated_size() -> None:
    data = open_data("generated:500")
    rate = float(data.label.mean())
    logit = math.log(rate / (1 - rate))
    expected = rate * math.log(rate) + (1 - rate) * math.log(1 - rate)
    model = Constant(logit)
    assert score_sum(model, data) / 500 - LARGEST_LOSS / 2 == pytest.approx(expected, abs=1e-6)
    stream = NoiseSource(seed=5).noise
    scores = np.array([noisy_score(model, data, noise_multiplier=3.0, stream=stream) for _ in range(30)])
    std = 3.0 * SENSITIVITY / 500
    assert abs(scores.mean() - expected) < 6.2 * std / math.sqrt(30)
    assert 0.3 * std < scores.std() < 2.2 * std
    assert score_event(3.0) == GaussianDpEvent(3.0)


def test_a_better_model_scores_higher() -> None:
    data = open_data("generated:500")
    rate = float(data.label.mean())
    better, worse = Constant(math.log(rate / (1 - rate))), Constant(5.0)
    assert score_sum(better, data) > score_sum(worse, data)
