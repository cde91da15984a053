"""How good a model is on rows it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model
from torch import nn

from sparsedp.data import ClickData, TextData
from sparsedp.runs.data_location import locate_data
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.sources import data_of, fresh_model, held_out, open_data

BATCH = 1 << 14
TEXTS = 64


@dataclass(frozen=True)
class Evaluation:
    """AUC and log-loss on held-out rows, computed without noise: not covered by the training's guarantee."""

    auc: float
    log_loss: float
    rows: int
    constant_log_loss: float
    """Of predicting the rows' own mean label (a text classifier: their shares of the classes) for everybody."""
    accuracy: float | None = None
    """Of a text classifier; its AUC is the mean over classes of each against the others."""

    @property
    def is_worse_than_constant(self) -> bool:
        """Whether the log-loss is above that of a constant: the scores are then no probabilities."""
        return self.log_loss > self.constant_log_loss


@torch.no_grad()
def evaluate(model: nn.Module, data: ClickData | TextData) -> Evaluation:
    """Predict every row of ``data`` in evaluation mode."""
    if isinstance(data, TextData):
        return evaluate_texts(model, data)
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
    constant = entropy(labels == labels.max())
    if not np.isfinite(predicted).all():
        return Evaluation(auc=0.5, log_loss=float("inf"), rows=len(data), constant_log_loss=constant)
    return Evaluation(
        auc=area_under_curve(labels == labels.max(), predicted),
        log_loss=mean_log_loss(labels == labels.max(), predicted),
        rows=len(data),
        constant_log_loss=constant,
    )


@torch.no_grad()
def evaluate_texts(model: nn.Module, data: TextData) -> Evaluation:
    """Classify every text of ``data`` in evaluation mode."""
    labels = data.label
    if np.unique(labels).size < 2:
        raise ValueError(f"held-out texts all have the label {data.classes[labels[0]]!r}: AUC is not defined")
    was_training = model.training
    model.eval()
    try:
        logits = [
            model(**{name: values for name, values in batch.items() if name != "labels"}).double()
            for batch in data.batches(TEXTS)
        ]
    finally:
        model.train(was_training)
    scores = torch.cat(logits)
    if not scores.isfinite().all():
        return Evaluation(
            auc=0.5, log_loss=float("inf"), rows=len(data), constant_log_loss=entropy(labels), accuracy=0.0
        )
    predicted = torch.softmax(scores, dim=1).numpy()
    known = [number for number in range(predicted.shape[1]) if (labels == number).any()]
    return Evaluation(
        auc=float(np.mean([area_under_curve(labels == number, predicted[:, number]) for number in known])),
        log_loss=float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))),
        rows=len(data),
        constant_log_loss=entropy(labels),
        accuracy=float(np.mean(predicted.argmax(axis=1) == labels)),
    )


def entropy(labels: NDArray[Any]) -> float:
    """The mean log-loss of predicting each label's share among ``labels``: the least of any constant prediction."""
    shares = np.unique(labels, return_counts=True)[1] / labels.size
    return float(-np.dot(shares, np.log(shares)))


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


def evaluate_run(path: str | Path, data: str | None = None, *, run_data: str | None = None) -> Evaluation:
    """A finished run's model on its held-out rows, or on other data of the same schema.

    ``run_data``: where the run's own data is now, if it moved.
    """
    folder = RunFolder(path)
    config = folder.config()
    if not folder.weights.exists():
        raise folder.incomplete()
    config = locate_data(folder, run_data)
    trained_on = data_of(config)
    model = fresh_model(config, trained_on)
    load_model(model, str(folder.weights))
    if data is None:
        return evaluate(model, held_out(config, trained_on))
    if isinstance(trained_on, TextData):
        return evaluate(model, data_of(config.model_copy(update={"data": data})))
    other = open_data(data)
    trained_on.schema.require_same_columns(other.schema)
    return evaluate(model, other)
