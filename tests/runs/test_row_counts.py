"""Row frequencies, and the DP top-k of algorithms with a row set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.runs import config
from support.visits import ROWS_PER_USER, prepare_visits, visits_config

from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.clipping import Capture
from sparsedp.core.arrays import F64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.data import ClickData
from sparsedp.randomness import NoiseSource
from sparsedp.rows import partition_tables
from sparsedp.runs.row_counts import count_columns, count_user_columns, private_rows
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.runs.users import loader_of, user_sampler
from sparsedp.training.counting import count_rows


def test_columns_are_counted_as_they_are() -> None:
    data = open_data("generated:700")
    names = [f"embeddings.{column}" for column in range(26)]
    found = count_columns(data, names, always_on_rows=1000)
    sizes = data.schema.vocabulary_sizes
    assert set(found) == {name for name, rows in zip(names, sizes, strict=True) if rows > 1000}
    ids = data.take(np.arange(700)).ids
    for column, name in enumerate(names):
        if name in found:
            expected = np.bincount(ids[:, column], minlength=sizes[column])
            assert found[name].ids.tolist() == np.flatnonzero(expected).tolist()
            assert found[name].values.tolist() == expected[expected > 0].tolist()


def test_only_fest_looks_at_the_data_before_training() -> None:
    data = open_data("generated:100")
    model = fresh_model(config(), data)
    assert private_rows(config("adafest"), model, data) is None
    chosen = private_rows(config("fest", fest_mu=0.2, rows=7), model, data)
    assert chosen is not None
    assert chosen.one_off_events() == (GaussianDpEvent(5.0),)
    assert chosen.k == 7


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> ClickData:
    return ClickData.open(prepare_visits(tmp_path_factory.mktemp("visits")))


SPACE = partition_tables([TableShape("embeddings.0", 400, 2)], 0)


def by_user(data: ClickData, sample: str = "users", rows: int = ROWS_PER_USER, norm: float = 1.0) -> F64:
    sampler = user_sampler(visits_config(Path("visits"), user_sampling=sample, rows_per_user=rows), data)
    assert sampler is not None
    return dense(
        count_user_columns(data, sampler, ["embeddings.0"], SPACE, norm, NoiseSource(1).selection.fork(2))
    )


def dense(counts: Mapping[str, SparseCounts]) -> F64:
    return counts["embeddings.0"].dense()


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_a_user_moves_the_counts_of_users_by_at_most_the_norm(sample: str, visits: ClickData) -> None:
    """Whoever is removed. Counts of rows, which examples pay for, would move by more."""
    whole, rows = by_user(visits, sample), dense(count_columns(visits, ["embeddings.0"], 0))
    moved, by_rows = [], []
    for user in np.unique(visits.user):
        rest = visits.subset(np.flatnonzero(visits.user != user))
        moved.append(np.linalg.norm(whole - by_user(rest, sample)))
        by_rows.append(np.linalg.norm(rows - dense(count_columns(rest, ["embeddings.0"], 0))))
    assert max(moved) <= 1.0 + 1e-9
    assert max(by_rows) > 2.0


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_of_a_user_so_many_rows_are_counted_once_each(sample: str, visits: ClickData) -> None:
    for user in np.unique(visits.user)[:20]:
        own = np.flatnonzero(visits.user == user)
        twice = visits.subset(np.concatenate([own, own]))
        assert set(by_user(twice, norm=100.0)) <= {0.0, 1.0}
        assert by_user(visits.subset(own), sample, rows=2, norm=100.0).sum() <= 2.0
        assert np.linalg.norm(by_user(visits.subset(own), sample, rows=3)) <= 1.0 + 1e-9


def test_users_are_counted_as_an_engine_counts_them(visits: ClickData) -> None:
    """Which runs the model on their rows."""
    asked = visits_config(Path("visits"), "fest")
    model = fresh_model(asked, visits)
    capture = Capture(model, loss_reduction="mean")
    loader = loader_of(asked, visits, user_sampler(asked, visits))
    expected = count_rows(model, capture, loader, 1.0, SPACE, NoiseSource(1).sampling)
    capture.detach()
    assert by_user(visits) == pytest.approx(dense(expected))
