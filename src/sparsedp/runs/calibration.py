"""Fitting the bias and scale of a trained model's output, paid from the run's budget.

Clipping shortens the gradients of the rarer label most, so that scores come out too low or too sure while their order is
good. Two numbers repair that.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from torch import nn

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64
from sparsedp.data import ClickData
from sparsedp.mechanisms import gaussian, gaussian_event
from sparsedp.randomness import Stream
from sparsedp.runs.config import RunConfig
from sparsedp.training.step_config import Unit

EDGES = np.linspace(-8.0, 8.0, 33)
"""Public borders of the bins of logits; the outer bins are open."""
BATCH = 1 << 14
PRIOR = 10.0
"""The fit starts from the model as it is, with the weight of so many standard deviations of the noise."""


@runtime_checkable
class Rescalable(Protocol):
    """A model whose logits can be scaled and shifted for good."""

    def rescale_output(self, scale: float, shift: float) -> None:
        """Make every logit ``scale`` times what it was, plus ``shift``."""


def calibration_events(mu: float | None) -> tuple[DpEvent, ...]:
    """What calibrating costs: nothing where ``mu`` is None."""
    return () if mu is None else (gaussian_event(std=1.0 / mu, sensitivity=1.0),)


def check_calibrates(model: nn.Module, config: RunConfig) -> None:
    """Refuse a model whose output cannot be rescaled, before anything is made for the run."""
    if not isinstance(model, Rescalable):
        raise ValueError(f"calibration_mu: model {config.model} has no rescale_output(scale, shift)")


def weights_of(data: ClickData, unit: Unit) -> F64 | None:
    """What each example counts for, None for 1: those of a user together at most 1, whatever other users have.

    Where users have at most M rows each row counts 1 / M, so that the fit is one for rows. M is public (the schema's);
    a user with more rows shares 1 among them.
    """
    if unit == "example":
        return None
    assert data.schema.rows_per_user is not None
    _, user, sizes = np.unique(data.user, return_inverse=True, return_counts=True)
    weights: F64 = 1.0 / np.maximum(sizes, data.schema.rows_per_user)[user.reshape(-1)]
    return weights


def calibrate_output(
    model: nn.Module, data: ClickData, mu: float, stream: Stream, *, unit: Unit = "example"
) -> None:
    """Scale and shift the logits of ``model`` to fit the labels of ``data``.

    Guarantee: that of ``noisy_histogram``, charged by the caller. Released: the scale and the shift, which are fitted to
    the noisy histogram alone (post-processing); the model was charged as it was trained (adaptive composition).
    """
    assert isinstance(model, Rescalable)
    model.rescale_output(*fit(noisy_histogram(model, data, mu, stream, unit=unit), weight=PRIOR / mu))


def noisy_histogram(
    model: nn.Module, data: ClickData, mu: float, stream: Stream, *, unit: Unit = "example"
) -> F64:
    """How many units have a logit in each bin, with the lower label and with the higher, with noise.

    The model predicts in evaluation mode, each example from its own features.
    Guarantee: add-or-remove-one unit, event ``Gaussian(1 / mu)``, charged by the caller. Released: the noisy histogram.
    Proof: given the trained model, an example adds its weight to one cell of the histogram of (bin of its
    logit, label) and changes no other; the weights of a unit add up to 1 at most (unit "example": each is 1; for
    users see ``weights_of``). The sensitivity is 1 in l2, and the noise has a standard deviation of 1 / mu.
    """
    return gaussian(histogram(model, data, weights_of(data, unit)), std=1.0 / mu, stream=stream)


@torch.no_grad()
def histogram(model: nn.Module, data: ClickData, weights: F64 | None = None) -> F64:
    """How many examples have a logit in each bin, with the lower label and with the higher, weighted. Private."""
    bins, begin = EDGES.size + 1, 0
    counts = np.zeros(2 * bins)
    was_training = model.training
    model.eval()
    try:
        for batch in data.batches(BATCH):
            features, label = batch.tensors()
            logits = np.nan_to_num(model(*features).double().numpy(), nan=0.0)
            cell = np.searchsorted(EDGES, logits) + bins * (label.numpy() > 0.5)
            own = None if weights is None else weights[begin : begin + len(batch)]
            counts += np.bincount(cell, own, minlength=2 * bins)
            begin += len(batch)
    finally:
        model.train(was_training)
    return counts.reshape(2, bins)


def fit(counts: NDArray[np.float64], weight: float) -> tuple[float, float]:
    """The scale and shift of largest likelihood for a noisy histogram; scale 1 and shift 0 count as ``weight`` examples."""
    width = EDGES[1] - EDGES[0]
    centres = np.concatenate([[EDGES[0] - width / 2], (EDGES[:-1] + EDGES[1:]) / 2, [EDGES[-1] + width / 2]])
    others, clicks = np.maximum(counts, 0.0)

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logit = parameters[0] * centres + parameters[1]
        error = (others + clicks) * expit(logit) - clicks
        likelihood = np.dot(others, np.logaddexp(0, logit)) + np.dot(clicks, np.logaddexp(0, -logit))
        away = parameters - np.array([1.0, 0.0])
        gradient = np.array([np.dot(error, centres), error.sum()]) + weight * away
        return float(likelihood + weight / 2 * np.dot(away, away)), gradient

    found = minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.05, 5.0), (-10.0, 10.0)]
    )
    return float(found.x[0]), float(found.x[1])
