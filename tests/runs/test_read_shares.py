"""How often the most read rows are read: one unit counts once a row, noise of the stated size, paid before it is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.noise_size import assert_normal_of_size
from support.runs import config

from sparsedp.accounting import GaussianDpEvent, Ledger, PoissonSampledDpEvent, epsilon_of
from sparsedp.audit import AuditResult, audit
from sparsedp.data import ClickData
from sparsedp.data.batch import Batch, MultiHot
from sparsedp.data.schema import Feature
from sparsedp.planning.widths import WIDTH
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.runs import RunFolder, resume, train
from sparsedp.runs import training as loop
from sparsedp.runs.optimizers import optimizers_of, trained_tables
from sparsedp.runs.read_shares import (
    MOST_RATE,
    check_finds_shares,
    largest_counts,
    lower_rates,
    read_share_events,
    read_shares,
)
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.training.step_config import Unit

MU = 0.2
SIZES = (3, 50)
BAG = 4


def clicks(ids: np.ndarray, bags: list[list[int]], user: np.ndarray) -> ClickData:
    """Two columns, of which the second has more rows than there are examples, and bags."""
    schema = replace(
        open_data("generated:5").schema,
        categorical=tuple(Feature(f"C{rows}", rows, "generated") for rows in SIZES),
        multi_hot=(Feature("bag", BAG, "generated"),),
        user="user_hash",
        rows_per_user=8,
    )
    values = np.array([value for bag in bags for value in bag], np.int32)
    offsets = np.append(0, np.cumsum([len(bag) for bag in bags])).astype(np.int64)
    numeric = np.zeros((len(ids), len(schema.numeric)), np.float32)
    label = np.zeros(len(ids), np.float32)
    return ClickData(
        Batch(numeric, ids.astype(np.int32), label, None, (MultiHot(values, offsets),), user), schema
    )


@st.composite
def examples(draw: st.DrawFn) -> ClickData:
    n = draw(st.integers(2, 12))
    ids = np.array([[draw(st.integers(0, rows - 1)) for rows in SIZES] for _ in range(n)])
    bags = [draw(st.lists(st.integers(0, BAG - 1), max_size=6)) for _ in range(n)]
    return clicks(ids, bags, np.array([draw(st.integers(0, 3)) for _ in range(n)], np.int64))


def by_hand(data: ClickData, unit: Unit) -> list[int]:
    batch = data.take(np.arange(len(data)))
    assert batch.user is not None
    readers: list[dict[int, set[int]]] = [{}, {}, {}]
    for row in range(len(data)):
        owner = int(batch.user[row]) if unit == "user" else row
        bag = batch.multi_hot[0]
        own = bag.values[bag.offsets[row] : bag.offsets[row + 1]]
        for table, ids in enumerate([[batch.ids[row, 0]], [batch.ids[row, 1]], own]):
            for each in ids:
                readers[table].setdefault(int(each), set()).add(owner)
    return [max((len(owners) for owners in table.values()), default=0) for table in readers]


@pytest.mark.parametrize("unit", ["example", "user"])
@settings(max_examples=60, deadline=None)
@given(data=examples())
def test_a_unit_counts_once_a_row_and_moves_each_count_by_one(unit: Unit, data: ClickData) -> None:
    """Whatever its rows are: removing any unit moves the largest count of each table by 0 or 1."""
    whole = largest_counts(data, unit)
    assert whole.tolist() == by_hand(data, unit)
    owners = data.user if unit == "user" else np.arange(len(data))
    for owner in np.unique(owners):
        others = np.flatnonzero(owners != owner)
        if others.size:
            moved = whole - largest_counts(data.subset(others), unit)
            assert set(moved.tolist()) <= {0.0, 1.0}


def test_the_noise_is_that_of_its_event() -> None:
    """Chi-squared over 4,000 draws of 3 tables: a false alarm below 1e-9; half or twice the noise is caught."""
    largest, units, stream = np.array([5e5, 4e5, 6e5]), 10**6, NoiseSource(3).noise
    drawn = np.array([read_shares(largest, units, MU, stream) for _ in range(4000)])
    noise = (drawn * units - largest).ravel() / np.sqrt(3)  # the sensitivity of all three
    (event,) = read_share_events(MU)
    assert isinstance(event, GaussianDpEvent)
    assert_normal_of_size(noise, event.noise_multiplier)


def test_an_audit_keeps_the_claim_and_catches_noise_for_one_table() -> None:
    """All tables move at once: with the noise of a single one, sqrt(26) times less, the claim is refuted."""
    pair, mu = (np.full(26, 5e5), np.full(26, 5e5 + 1)), 0.5
    claimed = epsilon_of([(read_share_events(mu)[0], 1)], 1e-5)

    def scores(counts: np.ndarray, stream: Stream, runs: int, mu: float = mu) -> np.ndarray:
        return np.array([read_shares(counts, 10**6, mu, stream).sum() for _ in range(runs)])

    def for_one_table(counts: np.ndarray, stream: Stream, runs: int) -> np.ndarray:
        return scores(counts, stream, runs, mu=mu * np.sqrt(26))

    def audited(mechanism: Any) -> AuditResult:
        stream = NoiseSource(5).noise
        return audit(mechanism, pair, runs=3000, delta=1e-5, claimed=claimed, stream=stream)

    assert not audited(scores).refuted
    assert audited(for_one_table).refuted


def test_tables_that_are_read_often_get_a_lower_rate() -> None:
    asked = config(table_learning_rate=8.0, read_share_mu=MU)
    model = fresh_model(asked, open_data("generated:100"))
    tables = optimizers_of(asked, model)[1]
    shares = np.linspace(0.001, 1.0, 26)
    scales = np.linspace(10.0, 30.0, 26)
    lower_rates(tables, shares.tolist(), scales.tolist())
    rates = {id(group["params"][0]): group["lr"] for group in tables.param_groups}
    for table, share, scale in zip(trained_tables(model), shares, scales, strict=True):
        moved = scale**2 * table.shape[1] / WIDTH  # by a step of rate 1, all coordinates together
        assert rates[id(table)] == pytest.approx(min(8.0, MOST_RATE / (moved * share)))


def test_a_run_pays_for_it_once_within_its_epsilon(tmp_path: Path) -> None:
    asked = config("lazy", read_share_mu=MU, checkpoint_every=1)
    result = train(asked, tmp_path / "run")
    events = Ledger.read(RunFolder(tmp_path / "run").ledger).events()
    assert [count for event, count in events if isinstance(event, GaussianDpEvent)] == [1]
    assert sum(count for event, count in events if isinstance(event, PoissonSampledDpEvent)) == result.steps
    assert result.steps == result.planned_steps
    assert epsilon_of(events, asked.delta_for(result.training_rows)) <= 2.0 * (1 + 1e-6)


def test_a_resumed_run_keeps_its_rates_and_pays_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config("lazy", read_share_mu=MU, checkpoint_every=1, table_learning_rate=5000.0)
    train(asked, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_loop", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(asked, tmp_path / "run")
    resume(tmp_path / "run")
    whole, again = (RunFolder(tmp_path / name) for name in ("whole", "run"))
    assert Ledger.read(again.ledger).events() == Ledger.read(whole.ledger).events()
    weights = [load_file(folder.path / "model.safetensors") for folder in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_where_it_is_refused() -> None:
    for changes in ({"algorithm": "non-private"}, {"period": 1}):
        with pytest.raises(ValueError, match="read_share_mu: is for private runs"):
            config(**{"read_share_mu": MU, **changes})
    with pytest.raises(ValueError, match="read_share_mu: is for plain sgd"):
        config(table_optimizer="adagrad", read_share_mu=MU)
    asked, data = config("lazy", read_share_mu=MU), open_data("generated:50")
    check_finds_shares(fresh_model(asked, data), asked, data)
    with pytest.raises(ValueError, match="read_share_mu: model pctr has other tables"):
        check_finds_shares(torch.nn.Embedding(5, 2), asked, data)
