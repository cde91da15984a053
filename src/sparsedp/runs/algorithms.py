"""From an algorithm's name to its selection rule and optimisers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from sparsedp.data import ClickData
from sparsedp.rows import SparseCounts
from sparsedp.runs.config import RunConfig
from sparsedp.selection import (
    DPSGD,
    FEST,
    AdaFEST,
    ExponentialSelection,
    PrivateTopK,
    RandomSelection,
    Selection,
    SparseVectorSelection,
)
from sparsedp.selection.adafest import DEFAULT_FALSE_POSITIVES
from sparsedp.training import RowWiseAdagrad


def selection_of(config: RunConfig, fest: FEST | PrivateTopK | None) -> Selection:
    """The selection rule of a DP run; ``fest`` is the row set of fest and adafest+."""
    match config.algorithm:
        case "dp-sgd":
            return DPSGD()
        case "lazy":
            return DPSGD(lazy=True)
        case "fest":
            assert fest is not None
            return fest
        case "adafest" | "adafest+":
            return AdaFEST(
                noise_ratio=config.noise_ratio,
                threshold=config.threshold,
                false_positives=config.false_positives or DEFAULT_FALSE_POSITIVES,
                contribution_norm=config.contribution_norm,
                always_on_rows=config.always_on_rows,
                within=fest if config.algorithm == "adafest+" else None,
            )
    assert config.rows is not None
    if config.algorithm == "random":
        return RandomSelection(rows=config.rows, always_on_rows=config.always_on_rows)
    if config.algorithm == "exponential":
        return ExponentialSelection(
            rows=config.rows,
            selection_epsilon=config.selection_epsilon,
            score_cap=config.score_cap,
            always_on_rows=config.always_on_rows,
        )
    if config.algorithm == "sparse-vector":
        return SparseVectorSelection(
            rows=config.rows,
            selection_epsilon=config.selection_epsilon,
            score_cap=config.score_cap,
            threshold=config.score_threshold,
            always_on_rows=config.always_on_rows,
        )
    raise ValueError(f"algorithm: {config.algorithm} has no selection rule")


def private_rows(config: RunConfig, model: nn.Module, data: ClickData) -> PrivateTopK | None:
    """The DP top-k of fest and adafest+, by counts read from the columns where the model names its tables."""
    if config.algorithm not in ("fest", "adafest+"):
        return None
    assert config.rows is not None
    names = getattr(model, "table_names", None)
    if names is None or data.schema.multi_hot:
        source: object = data.loader(config.batch_size)
    else:
        source = count_columns(data, names, config.always_on_rows)
    return FEST.private_top_k(source, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)


def count_columns(data: ClickData, names: list[str], always_on_rows: int) -> dict[str, SparseCounts]:
    """How often each id occurs, per table that rows are chosen in. Private: noise comes after."""
    sizes = data.schema.vocabulary_sizes
    chosen = [place for place, rows in enumerate(sizes) if rows > always_on_rows]
    found: dict[int, SparseCounts] = {
        place: SparseCounts(np.empty(0, np.int64), np.empty(0)) for place in chosen
    }
    for batch in data.batches(1 << 18):
        for place in chosen:
            ids, counts = np.unique(batch.ids[:, place].astype(np.int64), return_counts=True)
            total = found[place]
            merged, at = np.unique(np.concatenate([total.ids, ids]), return_inverse=True)
            weights = np.concatenate([total.counts, counts])
            sums = np.bincount(at, weights, minlength=merged.size)
            found[place] = SparseCounts(merged, sums.astype(np.float64))
    return {names[place]: counts for place, counts in found.items()}


def optimizers_of(config: RunConfig, model: nn.Module) -> list[Optimizer]:
    """One optimiser for the dense layers, one for the tables."""
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    held = {id(table) for table in tables}
    dense = [p for p in model.parameters() if id(p) not in held and p.requires_grad]
    lr = config.table_learning_rate
    of_tables: Optimizer
    if config.table_optimizer == "adagrad":
        of_tables = torch.optim.Adagrad(tables, lr=lr)
    elif config.table_optimizer == "row-wise-adagrad":
        of_tables = RowWiseAdagrad(tables, lr=lr)
    else:
        of_tables = torch.optim.SGD(tables, lr=lr)
    return [torch.optim.SGD(dense, lr=config.learning_rate), of_tables]
