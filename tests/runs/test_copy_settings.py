from __future__ import annotations

import numpy as np
import pytest
import torch
from support.copies import result_of
from support.runs import config

from sparsedp.runs import TextConfig
from sparsedp.runs.copy_settings import (
    FILLERS,
    canary_count,
    directions,
    fitted,
    public_rows,
    rows_left,
    sampling,
    scaled,
)


def test_half_of_a_table_s_rows_are_canaries_at_most() -> None:
    assert canary_count(100, 1000) == 100
    assert canary_count(100, 90) == 45
    with pytest.raises(ValueError, match=r"^audit: every table has fewer than 40 rows"):
        canary_count(100, 39)


def test_tables_that_rows_are_chosen_in_remain_so() -> None:
    assert rows_left(config(always_on_rows=300), 100) == 600
    assert rows_left(config(always_on_rows=10), 100) == 200


def test_numbers_of_rows_are_cut_in_proportion_and_thresholds_are_not() -> None:
    asked = config("adafest+", rows=600, false_positives=9.0)
    found = fitted(asked, result_of(threshold=4.0), [6000, 500, 3000], [2000, 500, 1000])
    assert found.rows == 200
    assert (found.threshold, found.false_positives) == (4.0, None)
    for threshold in (None, -0.5, 0.0):  # at half of the rows and more a threshold is not positive
        found = fitted(asked, result_of(threshold=threshold), [6000], [2000])
        assert (found.threshold, found.false_positives) == (None, 9.0)
    assert fitted(asked, result_of(), [500], [500]).rows == 600
    assert fitted(config("random", rows=2), result_of(), [6000], [2000]).rows == 1


def test_the_rate_of_examples_and_of_users() -> None:
    assert sampling(config(), result_of()) == (0.25, 500.0)
    assert sampling(config(expected_batch_size=5000), result_of()) == (1.0, 2000.0)
    users = config("dp-sgd", unit="user", epochs=2.0)
    assert sampling(users, result_of()) == (0.25, 500.0)
    assert sampling(users, result_of(sampling_rate=0.9)) == (0.9, 500.0), (
        "that of the run, not of rounded epochs"
    )
    assert sampling(users, result_of(planned_steps=16, steps=8)) == (0.125, 500.0), "a run that ended early"
    with pytest.raises(ValueError, match="does not have planned_steps"):  # half the steps, twice the rate
        sampling(users, result_of(planned_steps=None, steps=8))


def test_adaptive_optimisers_keep_their_rates() -> None:
    found = scaled(config(learning_rate=1.0, table_learning_rate=4.0), 0.5)
    assert (found.learning_rate, found.table_learning_rate) == (0.5, 2.0)
    found = scaled(config(optimizer="adam", table_optimizer="adagrad"), 0.5)
    assert (found.learning_rate, found.table_learning_rate) == (1.0, 25.0)
    fields = {"data": "x", "algorithm": "dp-sgd", "epsilon": 1.0, "optimizer": "sgd"}
    assert scaled(TextConfig.parse(fields), 0.5).head_learning_rate == 0.015


def test_directions_are_of_length_one_and_fillers_have_none() -> None:
    push_in, push_out = directions(np.random.default_rng(0), 30, torch.nn.Linear(5, 4))
    assert (push_in.shape, push_out.shape) == ((30 + FILLERS, 5), (30 + FILLERS, 4))
    for push in (push_in, push_out):
        assert np.linalg.norm(push[:30], axis=1) == pytest.approx(np.ones(30))
        assert not push[30:].any()


def test_public_rows_are_of_all_large_tables_and_free() -> None:
    found = public_rows(config("fest", rows=90), {"a": 2000, "small": 50, "b": 4000})
    assert found.one_off_events() == ()
    assert set(found.sorted_rows) == {"a", "b"}
    sizes = {name: rows.size for name, rows in found.sorted_rows.items()}
    assert sum(sizes.values()) == 90
    assert 15 < sizes["a"] < 45
    assert found.sorted_rows["b"].max() > 2000
    assert public_rows(config("fest", rows=90), {"small": 50}).sorted_rows == {}
