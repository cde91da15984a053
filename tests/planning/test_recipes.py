"""The recipe: from public numbers alone, at every size, with a reason for each choice."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from sparsedp.core.tables import TableShape
from sparsedp.planning import recipe
from sparsedp.planning.recipes import LEAST_STEPS, MOST_EPOCHS, PIECE, TABLE_NOISE
from sparsedp.planning.users import plan_users

LARGE = [TableShape("user", 1_000_000, 8), TableShape("item", 5000, 8)]
SMALL = [TableShape("user", 600, 8), TableShape("item", 900, 8)]


def made(**changes: Any) -> Any:
    return recipe(**{"examples": 100_000, "tables": LARGE, "epsilon": 1.0, **changes})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("examples", [20, 10**4, 10**6, 10**8])
def test_it_scales(examples: int, epsilon: float) -> None:
    found = made(examples=examples, epsilon=epsilon)
    assert 1 <= found.expected_batch_size <= examples
    passes = found.steps * found.expected_batch_size / examples
    assert passes <= MOST_EPOCHS * (1 + 1e-9)
    pieces = found.physical_batch_size or found.expected_batch_size
    assert pieces <= PIECE
    assert found.noise_multiplier > 0
    rates = (found.learning_rate, found.table_learning_rate, found.max_grad_norm)
    assert all(0 < rate < math.inf for rate in rates)


def test_large_data_gets_more_steps() -> None:
    """With the cube root of ``mu * examples``; small data, and epochs that are given, get the least."""
    steps = [made(examples=examples, epsilon=3.0).steps for examples in (10**5, 10**6, 10**7, 10**8)]
    assert steps[0] == pytest.approx(LEAST_STEPS, rel=0.02)
    ratios = np.array(steps[2:]) / np.array(steps[1:-1])  # delta, 1 / (10 n), moves mu a little
    np.testing.assert_allclose(ratios, 10 ** (1 / 3), rtol=0.05)
    assert made(examples=10**8, epochs=1.0).steps == pytest.approx(LEAST_STEPS, rel=0.02)


def test_the_clip_is_lower_where_there_is_little_signal_and_the_output_is_calibrated() -> None:
    few = {"examples": 10**5, "epsilon": 1.0}
    assert [made(**few | {"epsilon": epsilon}).max_grad_norm for epsilon in (0.5, 1.0, 3.0)] == [
        10.0,
        10.0,
        20.0,
    ]
    assert [made(**few | {"examples": examples}).max_grad_norm for examples in (10**4, 10**6)] == [10.0, 20.0]
    assert made(**few, released="steps").max_grad_norm == 20.0
    assert made(**few, table_scale=1.0).max_grad_norm == 5.0
    assert made(**few, max_grad_norm=3.0).max_grad_norm == 3.0


def test_the_noise_on_a_table_ends_where_it_should() -> None:
    """The random walk of all steps, as the network reads it: rates follow the budget and the data."""
    for changes in ({}, {"epsilon": 8.0}, {"examples": 10**6}, {"table_scale": 1.0}):
        found = made(**changes)
        a_step = found.noise_multiplier * found.max_grad_norm / found.expected_batch_size
        walked = found.table_learning_rate * found.table_scale * a_step * math.sqrt(found.steps)
        assert walked == pytest.approx(TABLE_NOISE, rel=0.05)


@pytest.mark.parametrize("steps", [10, 100])
def test_the_noise_of_adagrad_ends_there_too(steps: int) -> None:
    """Adagrad on pure noise, simulated: its walk does not depend on the size of the noise."""
    found = made(table_optimizer="adagrad", epochs=steps * 0.01, expected_batch_size=1000)
    assert (found.steps, found.read_share_mu) == (steps, None)
    noise = np.random.default_rng(5).normal(scale=1e-3, size=(steps, 100_000))
    walk = (noise / np.sqrt(np.cumsum(noise**2, axis=0))).sum(axis=0) * found.table_learning_rate
    assert walk.std() * found.table_scale == pytest.approx(TABLE_NOISE, rel=0.25)


def test_rows_of_users_have_the_noise_of_users() -> None:
    """Single rows are drawn, of users with 20 each: the noise is that of ``plan_users``, and the rates follow it."""
    drawn = made(examples=20_000, units=1000, rows_per_unit=20, sample="rows")
    planned = plan_users(
        epsilon=1.0,
        users=1000,
        rows_per_user=20,
        expected_batch_size=drawn.expected_batch_size,
        epochs=drawn.epochs,
    )
    assert drawn.noise_multiplier == planned.row_noise_multiplier > 10
    a_step = drawn.noise_multiplier * drawn.max_grad_norm / drawn.expected_batch_size
    walked = drawn.table_learning_rate * drawn.table_scale * a_step * math.sqrt(drawn.steps)
    assert walked == pytest.approx(TABLE_NOISE, rel=0.05)
    assert "1,000 users" in drawn.warnings[0]


def test_without_privacy_a_batch_of_users_has_as_many_examples() -> None:
    by_user = made(examples=20_000, units=1000, rows_per_unit=20, epsilon=None)
    assert by_user.expected_batch_size == made(examples=20_000, epsilon=None).expected_batch_size // 20
    assert made(examples=60, units=3, rows_per_unit=20, epsilon=None).expected_batch_size == 1


def test_the_reason_of_the_batch_is_what_decided_it() -> None:
    assert "at most" in made().reasons["expected_batch_size"]
    assert "in these epochs" in made(epochs=0.3).reasons["expected_batch_size"]


def test_more_budget_or_data_means_longer_training() -> None:
    assert made(epsilon=8.0).epochs > made().epochs
    assert made(epsilon=8.0).table_learning_rate > made().table_learning_rate
    assert made(examples=10**7).table_learning_rate > made().table_learning_rate
    assert made(examples=10**4).learning_rate < made(examples=10**7).learning_rate


@pytest.mark.parametrize(
    ("changes", "algorithm"),
    [
        ({}, "lazy"),
        ({"tables": SMALL}, "lazy"),
        ({"released": "steps"}, "adafest"),
        ({"released": "steps", "tables": SMALL}, "dp-sgd"),
        ({"algorithm": "fest"}, "fest"),
        ({"epsilon": None}, "non-private"),
        ({"algorithm": "non-private"}, "non-private"),
    ],
)
def test_the_algorithm_follows_what_leaves_and_how_large_the_tables_are(
    changes: dict[str, Any], algorithm: str
) -> None:
    assert made(**changes).algorithm == algorithm


SELECT = ("fest", "fest-lazy", "fest-turns", "adafest", "adafest-memory", "adafest+")


def test_every_choice_has_its_reason() -> None:
    for changes in ({}, {"released": "steps"}, {"epsilon": None}, *({"algorithm": name} for name in SELECT)):
        found = made(**changes)
        chosen = [name for name, value in found.settings().items() if value is not None]
        assert {*chosen} - {"physical_batch_size"} == set(found.reasons)
        assert all(reason and "\n" not in reason for reason in found.reasons.values())


def test_it_warns_of_a_selection_that_saves_nothing_and_of_little_data() -> None:
    assert not made(algorithm="adafest").warnings
    (warning,) = made(algorithm="adafest", tables=SMALL).warnings
    assert "100% of the tables' coordinates" in warning
    (warning,) = made(examples=1000).warnings
    assert "1,000 examples at epsilon 1 are few" in warning


def test_units_are_what_is_sampled() -> None:
    """A batch is a number of units, the noise is that of as many examples, and memory counts their rows."""
    alone, units = made(examples=10**5), made(examples=2 * 10**6, units=10**5, rows_per_unit=20)
    assert units.expected_batch_size == alone.expected_batch_size
    assert units.noise_multiplier == alone.noise_multiplier
    assert units.physical_batch_size == PIECE  # which counts examples
    wide = made(examples=10**9, units=10**4, rows_per_unit=2 * PIECE)
    assert wide.physical_batch_size == 2 * PIECE  # a piece holds whole units


def test_a_limit_on_epochs_is_kept() -> None:
    found = made(epsilon=8.0, max_epochs=2.0)
    assert found.steps * found.expected_batch_size <= 2.0 * 100_000 * (1 + 1e-9)
    assert "max_epochs" in found.reasons["expected_batch_size"]


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 0.5},
        {"epochs": 20.0},
        {"epochs": 300.0},
        {"expected_batch_size": 64},
        {"expected_batch_size": 50_000},
        {"epochs": 3.0, "expected_batch_size": 2000},
        {"max_grad_norm": 1.5},
    ],
)
def test_what_is_given_is_kept_and_the_rates_follow_it(given: dict[str, Any]) -> None:
    found = made(**given)
    for name, value in given.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9)
    a_step = found.noise_multiplier * found.max_grad_norm / found.expected_batch_size
    walked = found.table_learning_rate * found.table_scale * a_step * math.sqrt(found.steps)
    assert walked == pytest.approx(TABLE_NOISE, rel=0.05)
    assert found.steps == pytest.approx(found.epochs * 100_000 / found.expected_batch_size, rel=0.02)


def test_it_is_plain_values_in_json() -> None:
    found = made(algorithm="fest")
    assert json.loads(json.dumps(found.to_dict()))["selection"] == found.selection
    assert set(found.selection) == {"rows", "fest_mu", "always_on_rows"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("examples", 0),
        ("epsilon", -1.0),
        ("delta", 2.0),
        ("units", 0),
        ("max_epochs", 0.0),
        ("table_scale", 0.0),
    ],
)
def test_a_bad_argument_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        made(**{name: value})
