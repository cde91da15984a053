"""From names to rules and optimisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.runs import config

import sparsedp as sdp
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.runs.algorithms import count_columns, optimizers_of, private_rows, selection_of
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.training import RowWiseAdagrad


def test_every_name_has_its_rule() -> None:
    fest = sdp.FEST({"embeddings.0": [1]})
    assert selection_of(config("dp-sgd"), None) == sdp.DPSGD()
    assert selection_of(config("lazy"), None) == sdp.DPSGD(lazy=True)
    assert selection_of(config("fest"), fest) is fest
    asked = config("adafest", noise_ratio=3.0, threshold=7.0, contribution_norm=2.0, always_on_rows=5)
    assert selection_of(asked, None) == sdp.AdaFEST(3.0, 7.0, contribution_norm=2.0, always_on_rows=5)
    assert selection_of(config("adafest+", false_positives=9.0), fest) == sdp.AdaFEST(
        false_positives=9.0, within=fest
    )
    assert selection_of(config("random"), None) == sdp.RandomSelection(rows=100)
    assert selection_of(config("exponential"), None) == sdp.ExponentialSelection(100, 0.01, 0.1)
    assert selection_of(config("sparse-vector"), None) == sdp.SparseVectorSelection(100, 0.01, 0.1, 0.001)
    with pytest.raises(ValueError, match="no selection rule"):
        selection_of(config("non-private", rows=3), None)


def test_columns_are_counted_as_they_are() -> None:
    data = open_data("generated:700")
    names = [f"embeddings.{place}" for place in range(26)]
    found = count_columns(data, names, always_on_rows=1000)
    sizes = data.schema.vocabulary_sizes
    assert set(found) == {name for name, rows in zip(names, sizes, strict=True) if rows > 1000}
    ids = data.take(np.arange(700)).ids
    for place, name in enumerate(names):
        if name in found:
            expected = np.bincount(ids[:, place], minlength=sizes[place])
            assert found[name].ids.tolist() == np.flatnonzero(expected).tolist()
            assert found[name].counts.tolist() == expected[expected > 0].tolist()


def test_only_fest_looks_at_the_data_before_training() -> None:
    data = open_data("generated:100")
    model = fresh_model(config(), data)
    assert private_rows(config("adafest"), model, data) is None
    chosen = private_rows(config("fest", fest_mu=0.2, rows=7), model, data)
    assert chosen is not None
    assert chosen.one_off_events() == (GaussianDpEvent(5.0),)
    assert chosen.k == 7


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
