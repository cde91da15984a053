"""A private score of a model: its mean log-loss on held-out rows, with noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsedp.accounting.events import DpEvent
from sparsedp.data import ClickData
from sparsedp.mechanisms import gaussian, gaussian_event
from sparsedp.randomness import Stream
from sparsedp.runs.evaluation import BATCH

LARGEST_LOSS = 4.0
"""What an example adds to the log-loss, at most: that of a click predicted at 1.8%."""
SENSITIVITY = LARGEST_LOSS / 2
"""How far one example moves the sum of centred losses."""


def noisy_score(model: nn.Module, data: ClickData, *, noise_multiplier: float, stream: Stream) -> float:
    """Minus the mean log-loss of ``model`` on ``data``, the higher the better, with noise.

    Guarantee: add-or-remove-one example of ``data``, for a model that does not depend on it. Each example adds
    ``LARGEST_LOSS / 2`` minus its loss, cut to ``[0, LARGEST_LOSS]``, to a sum that so moves by at most
    ``LARGEST_LOSS / 2``; the sum gets Gaussian noise. Event: ``score_event``. Released: the noisy sum over the public
    number of rows.
    """
    std = noise_multiplier * SENSITIVITY
    (total,) = gaussian([score_sum(model, data)], std=std, stream=stream)
    return float(total) / len(data) - LARGEST_LOSS / 2


def score_event(noise_multiplier: float) -> DpEvent:
    """What a score costs the examples that it is computed on."""
    return gaussian_event(std=noise_multiplier * SENSITIVITY, sensitivity=SENSITIVITY)


@torch.no_grad()
def score_sum(model: nn.Module, data: ClickData) -> float:
    """The sum of centred losses, each cut to a fixed interval; a prediction that is no number counts as the worst."""
    was_training = model.training
    model.eval()
    try:
        logits = [model(*batch.tensors()[0]).double().numpy() for batch in data.batches(BATCH)]
    finally:
        model.train(was_training)
    return float(centred_losses(np.concatenate(logits), data.label > 0).sum())


def centred_losses(logits: NDArray[np.float64], clicked: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``LARGEST_LOSS / 2`` minus the log-loss of each prediction: within ``LARGEST_LOSS / 2`` either way."""
    with np.errstate(over="ignore", invalid="ignore"):
        losses = np.logaddexp(0.0, np.where(clicked, -logits, logits))
    cut = np.clip(np.nan_to_num(losses, nan=LARGEST_LOSS, posinf=LARGEST_LOSS), 0.0, LARGEST_LOSS)
    return np.asarray(LARGEST_LOSS / 2 - cut)
