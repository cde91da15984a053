"""How good a click model is on rows it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model
from torch import nn

from sparsedp.data import ClickData
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.sources import fresh_model, held_out, open_data

BATCH = 1 << 14


@dataclass(frozen=True)
class Evaluation:
    """AUC and log-loss on held-out rows, computed without noise: not covered by the training's guarantee."""

    auc: float
    log_loss: float
    rows: int


@torch.no_grad()
def evaluate(model: nn.Module, data: ClickData) -> Evaluation:
    """Predict every row of ``data`` in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        logits = [model(*batch.tensors()[0]).double().numpy() for batch in data.batches(BATCH)]
    finally:
        model.train(was_training)
    predicted = 1.0 / (1.0 + np.exp(-np.clip(np.concatenate(logits), -60, 60)))
    labels = data.label
    if labels.min() == labels.max():
        raise ValueError(f"held-out rows all have the label {labels.min():g}: AUC is not defined")
    if not np.isfinite(predicted).all():
        return Evaluation(auc=0.5, log_loss=float("inf"), rows=len(data))
    return Evaluation(
        auc=area_under_curve(labels == labels.max(), predicted),
        log_loss=mean_log_loss(labels == labels.max(), predicted),
        rows=len(data),
    )


def area_under_curve(clicked: NDArray[np.bool_], predicted: NDArray[np.float64]) -> float:
    """The probability that a click is ranked above a row without one; ties count half. Both kinds must occur."""
    _, value, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    clicks = np.bincount(value, weights=clicked)
    others = counts - clicks
    below = np.cumsum(others) - others
    return float(np.dot(clicks, below + others / 2) / (clicks.sum() * others.sum()))


def mean_log_loss(clicked: NDArray[np.bool_], predicted: NDArray[np.float64]) -> float:
    """Mean negative log-likelihood; a prediction of exactly 0 or 1 is moved inwards by one rounding error."""
    tiny = np.finfo(predicted.dtype).eps
    inside = np.clip(predicted, tiny, 1 - tiny)
    return float(-np.log(np.where(clicked, inside, 1 - inside)).mean())


def evaluate_run(path: str | Path, data: str | None = None) -> Evaluation:
    """A finished run's model on its held-out rows, or on other data of the same schema."""
    folder = RunFolder(path)
    config = folder.config()
    if not folder.weights.exists():
        raise ValueError(f"{path} has no trained model yet; resume it first")
    trained_on = open_data(config.data)
    model = fresh_model(config, trained_on)
    load_model(model, str(folder.weights))
    if data is None:
        return evaluate(model, held_out(config, trained_on))
    other = open_data(data)
    trained_on.schema.require_same_columns(other.schema)
    return evaluate(model, other)
