"""A run's optimisers."""

from __future__ import annotations

import pytest
import torch
from support.runs import config

from sparsedp.runs.optimizers import optimizers_of
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.training import RowWiseAdagrad


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad), ("row-wise-adagrad", RowWiseAdagrad)],
)
def test_tables_have_an_optimiser_and_a_rate_of_their_own(name: str, kind: type) -> None:
    asked = config(table_optimizer=name, learning_rate=0.25, table_learning_rate=8.0)
    model = fresh_model(asked, open_data("generated:100"))
    dense, tables = optimizers_of(asked, model)
    assert isinstance(dense, torch.optim.SGD)
    assert type(tables) is kind
    assert (dense.param_groups[0]["lr"], tables.param_groups[0]["lr"]) == (0.25, 8.0)
    held = [id(p) for group in (*dense.param_groups, *tables.param_groups) for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
