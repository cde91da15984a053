"""Two ways to protect users, at the same budget and the same work."""

from __future__ import annotations

import math

import pytest

from sparsedp.accounting import GaussianDpEvent, PoissonSampledDpEvent, epsilon_of, user_step_event
from sparsedp.planning import plan_users
from sparsedp.planning.users import UserPlan


@pytest.fixture(scope="module")
def made() -> UserPlan:
    return plan_users(epsilon=2.0, users=1000, rows_per_user=8, expected_batch_size=400, epochs=3)


def test_both_ways_spend_the_budget_on_the_same_steps(made: UserPlan) -> None:
    assert (made.sampling_rate, made.steps, made.expected_users) == (0.05, 60, 50)
    assert (made.statement.unit, made.statement.epsilon, made.statement.delta) == ("user", 2.0, 1e-4)
    users = PoissonSampledDpEvent(0.05, GaussianDpEvent(made.user_noise_multiplier))
    rows = user_step_event(made.row_noise_multiplier, 0.05, 8)
    for step in (users, rows):
        assert 1.99 < epsilon_of([(step, 60)], 1e-4) <= 2.0


def test_the_verdict_follows_from_the_lengths_of_sums(made: UserPlan) -> None:
    assert made.break_even == made.row_noise_multiplier / made.user_noise_multiplier
    assert made.break_even > 1.0, "rows are noised more than users, whose sums are longer"
    for length, better in (
        (8.0, "users"),
        (7.9, "it depends"),
        (math.sqrt(8) + 0.1, "it depends"),
        (2.5, "rows"),
    ):
        noise = length * made.user_noise_multiplier
        fields = {**vars(made), "row_noise_multiplier": noise}
        assert UserPlan(**fields).better == better
    assert made.to_dict()["better"] == made.better


def test_bad_arguments_are_refused_by_name() -> None:
    for wrong, message in (
        ({"users": 0}, "users must be at least 1"),
        ({"rows_per_user": 0}, "rows_per_user must be at least 1"),
        ({"expected_batch_size": 9000}, "expected_batch_size must be at most"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_users(
                **{"epsilon": 2.0, "users": 1000, "rows_per_user": 8, "expected_batch_size": 400} | wrong
            )  # type: ignore[arg-type]
