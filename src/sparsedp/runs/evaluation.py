"""How good a click model is on rows it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from sparsedp.data import ClickData
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.sources import fresh_model, held_out, open_data

BATCH = 1 << 14


@dataclass(frozen=True)
class Evaluation:
    """AUC and log-loss on held-out rows, computed without noise: no part of the training's guarantee."""

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
        auc=float(roc_auc_score(labels, predicted)),
        log_loss=float(log_loss(labels, predicted)),
        rows=len(data),
    )


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
