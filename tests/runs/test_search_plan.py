"""The plan of a search: what its runs may spend, and one price for all of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.runs import config

from sparsedp.runs import RunConfig
from sparsedp.runs.choosing import choose
from sparsedp.runs.search_plan import plan_search
from sparsedp.runs.sources import open_data


def asked(**changes: Any) -> RunConfig:
    return config(data="generated:600", expected_batch_size=300, epsilon=4.0, **changes)


@pytest.mark.slow
def test_settings_left_open_are_chosen_for_what_a_run_may_spend() -> None:
    base = RunConfig(data="generated:600", epsilon=4.0)
    (planned, _) = plan_search(base, {"learning_rate": [0.1, 0.2]}).configs
    chosen = choose(
        base.model_copy(update={"epsilon": 2.0, "learning_rate": 0.1}), open_data(base.data)
    ).config
    assert planned.table_learning_rate == chosen.table_learning_rate
    assert planned.expected_batch_size == chosen.expected_batch_size


def test_settings_that_cost_differently_are_charged_as_the_worst() -> None:
    plan = plan_search(asked(), {"epochs": [1.0, 3.0]}, runs=2)
    assert plan.costs[0].steps < plan.costs[1].steps
    assert 0.9 * 4.0 < plan.epsilon <= 4.0
    inner = plan.event.event
    assert len(inner.events) == 3  # two kinds of run, and the score


@pytest.mark.slow
def test_a_search_over_units_is_refused() -> None:
    with pytest.raises(ValueError, match="grid: unit is the same for all runs"):
        plan_search(asked(), {"unit": ["example", "user"]}, runs=2)
