"""The optimisers of a run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparsedp.runs.config import RunConfig
from sparsedp.runs.text_config import TextConfig
from sparsedp.training import RowWiseAdagrad


def optimizers_of(config: RunConfig, model: nn.Module) -> list[Optimizer]:
    """One optimiser for the dense layers, one for the tables."""
    tables = trained_tables(model)
    held = {id(table) for table in tables}
    dense = [p for p in model.parameters() if id(p) not in held and p.requires_grad]
    choices = config.choices
    lr = choices.table_learning_rate
    of_dense = _of_dense(config, model, dense)
    if not tables:
        return [of_dense]
    of_tables: Optimizer
    if choices.table_optimizer == "adagrad":
        of_tables = torch.optim.Adagrad(tables, lr=lr)
    elif choices.table_optimizer == "row-wise-adagrad":
        of_tables = RowWiseAdagrad(tables, lr=lr)
    else:
        of_tables = torch.optim.SGD(_groups(config, tables), lr=lr)
    return [of_dense, of_tables]


def _groups(config: RunConfig, tables: list[nn.Parameter]) -> list[dict[str, Any]]:
    """A group for each table where their rates will differ (``runs.read_shares``)."""
    return [{"params": each} for each in ([tables] if config.read_share_mu is None else tables)]


def _of_dense(config: RunConfig, model: nn.Module, dense: list[nn.Parameter]) -> Optimizer:
    rate = config.choices.learning_rate
    kind = torch.optim.Adam if config.choices.optimizer == "adam" else torch.optim.SGD
    if not isinstance(config, TextConfig):
        return kind(dense, lr=rate)
    head = list(model.get_submodule("head").parameters())
    of_head = {id(parameter) for parameter in head}
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in dense if id(parameter) not in of_head]},
        {"params": head, "lr": config.head_learning_rate},
    ]
    return kind([group for group in groups if group["params"]], lr=rate)


def trained_tables(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all embeddings that are trained."""
    layers = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    weights = [layer.get_parameter("weight") for layer in layers]
    return [weight for weight in weights if weight.requires_grad]
