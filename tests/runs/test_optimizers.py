"""A run's optimisers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["adafest", "non-private"])
def test_adagrad_of_the_tables_has_no_warning_of_torch(tmp_path: Path, algorithm: str) -> None:
    """In a process of its own: torch warns once."""
    (tmp_path / "run.yaml").write_text(config(algorithm, table_optimizer="adagrad").to_yaml())
    command = ["train", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(
        [sys.executable, "-W", "always", "-m", "sparsedp", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Sparse invariant checks" not in done.stderr
