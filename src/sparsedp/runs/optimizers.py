"""The optimisers of a run."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from sparsedp.runs.config import RunConfig
from sparsedp.training import RowWiseAdagrad


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
