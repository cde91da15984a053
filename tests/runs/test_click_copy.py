from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.copies import audited, result_of
from support.runs import config

from sparsedp.core.criteo import embedding_dim
from sparsedp.data import ClickProcess
from sparsedp.data.generated import generated_schema
from sparsedp.data.schema import Feature, Schema
from sparsedp.randomness import NoiseSource
from sparsedp.runs.click_copy import click_copy, made_up
from sparsedp.runs.config import RunConfig
from sparsedp.runs.copy_settings import FILLERS
from sparsedp.selection import FEST

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def schema() -> Schema:
    return generated_schema(ClickProcess())


@pytest.mark.parametrize("algorithm", ["adafest", "fest", "adafest+", "dp-sgd", "exponential"])
def test_a_copy_has_the_mechanism_of_the_run(algorithm: str, schema: Schema) -> None:
    copy = click_copy(config(algorithm), result_of(), schema, 30, 100)
    assert (copy.steps, copy.sampling_rate, copy.noise_multiplier, copy.max_grad_norm) == (8, 0.25, 1.5, 5.0)
    assert copy.view == "every step"
    assert copy.data.count == 30
    assert click_copy(config(algorithm), result_of(), schema, 30, 5).steps == 5


def test_one_clipped_gradient_moves_a_weight_as_far_as_in_the_run(schema: Schema) -> None:
    copy = click_copy(config("dp-sgd"), result_of(), schema, 36, 8)
    dense, tables = copy.optimizer(copy.model())  # type: ignore[misc]
    share = 0.25 * (36 + FILLERS) / 500
    assert dense.param_groups[0]["lr"] == pytest.approx(1.0 * share)
    assert tables.param_groups[0]["lr"] == pytest.approx(25.0 * share)
    adaptive = config("adafest", optimizer="adam", table_optimizer="adagrad")
    dense, tables = click_copy(adaptive, result_of(), schema, 36, 8).optimizer(copy.model())  # type: ignore[misc]
    assert (dense.param_groups[0]["lr"], tables.param_groups[0]["lr"]) == (1.0, 25.0)


def test_canaries_have_rows_and_directions_of_their_own(schema: Schema) -> None:
    columns = np.flatnonzero(np.array(schema.vocabulary_sizes) >= 60)
    data = made_up(schema, columns, 30, 2, torch.nn.Linear(5, 4))
    own, others = data.canaries[1][:, columns], data.fillers[1][:, columns]
    assert len(columns) > 5
    for column in range(len(columns)):
        rows = own[:, column].reshape(30, 2)
        assert (rows[:, 0] == rows[:, 1]).all()
        assert len(set(rows[:, 0].tolist())) == 30
        assert not set(rows.flatten().tolist()) & set(others[:, column].tolist())
    for part in (4, 5):
        assert torch.allclose(data.canaries[part].norm(dim=1), torch.ones(60))
        assert not data.fillers[part].any()


def test_tables_are_cut_and_what_follows_from_their_size_is_not(schema: Schema) -> None:
    sizes = np.array(schema.vocabulary_sizes)
    copy = click_copy(config("adafest", model_options={}), result_of(threshold=7.5), schema, 30, 8)
    tables = copy.model().model.embeddings  # type: ignore[union-attr, operator]
    assert [table.num_embeddings for table in tables] == np.minimum(sizes, 2000).tolist()
    assert [table.embedding_dim for table in tables] == [embedding_dim(int(rows)) for rows in sizes]
    assert copy.selection(None, None).threshold == 7.5  # type: ignore[operator]
    large = sizes[sizes > 1000]
    rows = round(100_000 * np.minimum(large, 2000).sum() / large.sum())
    assert (
        click_copy(config("random", rows=100_000), result_of(), schema, 30, 8).selection(None, None).rows
        == rows
    )  # type: ignore[operator]


@pytest.mark.parametrize("sampling", ["users", "rows"])
def test_users_are_canaries_with_all_their_rows(schema: Schema, sampling: str) -> None:
    settings = config("dp-sgd", unit="user", rows_per_user=3, user_sampling=sampling)
    copy = click_copy(settings, result_of(), replace(schema, rows_per_user=4), 25, 2)
    assert (copy.unit, copy.user_sample, copy.data.rows_per_canary) == ("user", sampling, 3)
    assert copy.sampling_rate == 1 / 8
    found = copy.run(NoiseSource(1).noise, 1e-6)
    assert found.statement.unit == "user"
    assert found.included.size == 25


MULTI_HOT = Schema(
    label="click",
    label_rule="0 or 1",
    numeric=("price",),
    numeric_rule="as it is",
    categorical=(Feature("user", 3000, "hash"), Feature("item", 30, "hash")),
    multi_hot=(Feature("tags", 5000, "hash"), Feature("colours", 12, "hash")),
)
WHOLE = result_of(training_rows=500, steps=1, planned_steps=1, noise_multiplier=4.0)
"""Of a run with one step on all of its examples: an attacker sees most of what is claimed."""


def bags(algorithm: str = "dp-sgd", **changes: Any) -> RunConfig:
    return config(
        algorithm, model="dlrm", model_options={"dim": 4, "bottom": [8], "top": [32]}, fest_mu=0.2, **changes
    )


def test_of_a_multi_hot_feature_a_canary_has_its_row_twice_among_others() -> None:
    columns = np.array([0, 2])
    data = made_up(MULTI_HOT, columns, 30, 2, torch.nn.Linear(5, 4))
    own, others = data.canaries[2], data.fillers[2]
    assert own.shape == (60, 2, 3)
    assert others.shape == (2 * FILLERS, 2, 3)
    rows = own[:, 0, :2].reshape(30, 4)
    assert (rows == rows[:, :1]).all()
    assert rows[:, 0].tolist() == (4999 - np.arange(30)).tolist()
    assert int(own[:, 0, 2].max()) < 4970
    assert int(others[:, 0].max()) < 4970
    assert int(data.fillers[1][:, 0].max()) < 2970
    for part in (own, others):
        assert 0 <= int(part[:, 1].min()) <= int(part[:, 1].max()) < 12


def test_tables_of_multi_hot_features_are_cut_and_have_canary_rows() -> None:
    copy = click_copy(bags("adafest", false_positives=None), WHOLE, MULTI_HOT, 500, 8)
    assert [table.num_embeddings for table in copy.model().model.embeddings] == [2000, 30, 2000, 12]  # type: ignore[union-attr]
    assert set(copy.canary_rows) == {"model.embeddings.0", "model.embeddings.2"}
    assert copy.canary_rows["model.embeddings.2"].tolist() == (1999 - np.arange(500)).tolist()
    chosen = click_copy(bags("random", rows=1000), WHOLE, MULTI_HOT, 500, 8).selection(None, None)  # type: ignore[operator, arg-type]
    assert chosen.rows == 500, "the share of both large tables"


def test_of_others_models_only_a_layer_is_pushed() -> None:
    asked = config("dp-sgd", model="support.served:OwnModel", model_options={"width": 2})
    copy = click_copy(asked, WHOLE, MULTI_HOT, 30, 1)
    assert copy.canary_rows == {}
    assert set(copy.run(NoiseSource(1).noise, 1e-9).by_attack) == {"gradient", "loss"}


@pytest.mark.parametrize(
    ("algorithm", "changes"), [("dp-sgd", {}), ("adafest", {}), ("fest", {"rows": 4000}), ("lazy", {})]
)
def test_a_copy_with_bags_keeps_its_claim_and_a_tenth_of_the_noise_is_refuted(
    algorithm: str, changes: dict[str, Any]
) -> None:
    """Both audits err with probability 1e-4."""
    copy = click_copy(bags(algorithm, **changes), {**WHOLE, "threshold": 2.0}, MULTI_HOT, 1000, 1)
    right, faulty = audited(copy), audited(copy, noise=0.1)
    assert 1.0 < right.copy["epsilon"] < 2.0
    assert right.refutation is None
    assert faulty.refutation is not None
    assert faulty.lower_bound > 1.2 * right.copy["epsilon"]


def period(number: int, **changes: Any) -> dict[str, Any]:
    return {**WHOLE, "period": number, **changes}


@pytest.mark.parametrize(
    ("frequencies", "number", "counted"),
    [("running", 1, True), ("all", 1, True), ("first", 0, True), ("first", 1, False)],
)
def test_rows_of_a_period_are_chosen_by_its_own_examples_where_they_pay_for_it(
    schema: Schema, frequencies: str, number: int, counted: bool
) -> None:
    asked = config("fest", period=1, frequencies=frequencies, rows=20_000, fest_mu=1.0, always_on_rows=1000)
    copy = click_copy(asked, period(number), schema, 500, 1)
    engine, _ = copy._make_private(copy.model(), np.ones(500, bool), 1)
    selection = engine.session.selection
    engine.detach()
    assert isinstance(selection, FEST)
    assert bool(selection.one_off_events()) == counted
    sizes = {name: rows.size for name, rows in selection.sorted_rows.items()}
    assert sum(sizes.values()) > 1000
    found = copy.run(NoiseSource(1).noise, 1e-9).statement.epsilon
    free = click_copy(config("dp-sgd"), WHOLE, schema, 500, 1).run(NoiseSource(1).noise, 1e-9)
    assert (found > 2.0 * free.statement.epsilon) == counted, "the counts are a part of the copy's claim"


def test_counts_of_a_period_hold_the_canaries_that_are_in(schema: Schema) -> None:
    sizes = np.array([rows for rows in schema.vocabulary_sizes if rows > 1000])
    rows = round(6000 * sizes.sum() / np.minimum(sizes, 2000).sum())  # 6,000 of the copy's
    asked = config("fest", period=1, rows=rows, fest_mu=100.0)
    copy = click_copy(asked, period(0), schema, 500, 1)
    coins = np.arange(500) < 200
    engine, _ = copy._make_private(copy.model(), coins, 1)
    chosen = engine.session.selection.sorted_rows  # type: ignore[attr-defined]
    engine.detach()
    for table, rows in chosen.items():
        is_chosen = np.isin(copy.canary_rows[table], rows)
        assert is_chosen[coins].all(), table
        assert is_chosen[~coins].mean() < 0.5, table


@pytest.mark.parametrize("frequencies", ["running", "first"])
def test_a_copy_of_a_period_keeps_its_claim_and_a_fiftieth_of_the_noise_is_refuted(
    schema: Schema, frequencies: str
) -> None:
    """Both audits err with probability 1e-4."""
    asked = config(
        "fest", period=1, frequencies=frequencies, rows=40_000, fest_mu=0.05, model_options={"hidden": [64]}
    )
    copy = click_copy(asked, period(1), schema, 1000, 1)
    assert audited(copy).refutation is None
    assert audited(copy, noise=0.02).refutation is not None
