import math

import pytest
from scipy.stats import binom

from sparsedp.accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    calibrate,
    epsilon_of,
    user_statement,
    user_step_event,
    user_unit,
)

N, BATCH, SIGMA = 45_000_000, 2048, 0.61


def epsilon(rows):
    return epsilon_of([(user_step_event(SIGMA, BATCH / N, rows), N // BATCH)], 1 / N)


def test_one_row_is_example_level():
    example = PoissonSampledDpEvent(BATCH / N, GaussianDpEvent(SIGMA))
    assert epsilon(1) == pytest.approx(epsilon_of([(example, N // BATCH)], 1 / N), rel=5e-4)


def test_what_an_example_level_epsilon_is_for_a_user():
    assert epsilon(1) == pytest.approx(0.64, abs=0.005)
    assert epsilon(10) == pytest.approx(3.83, abs=0.01)
    assert epsilon(100) == pytest.approx(19.84, abs=0.02)


def test_probabilities_are_binomial():
    event = user_step_event(1.0, 0.2, 6)
    assert event.sensitivities == tuple(float(k) for k in range(7))
    assert event.sampling_probs == pytest.approx(binom.pmf(range(7), 6, 0.2))


def test_rare_counts_are_taken_for_the_largest():
    event = user_step_event(1.0, 1e-5, 10_000)
    assert len(event.sensitivities) < 40
    assert event.sensitivities[-1] == 10_000
    assert event.sampling_probs[-1] < 1e-30
    assert math.fsum(event.sampling_probs) == pytest.approx(1, abs=1e-12)


def test_certain_sampling_is_group_privacy():
    assert epsilon_of([(user_step_event(4.0, 1.0, 2), 1)], 1e-6) == pytest.approx(
        epsilon_of([(GaussianDpEvent(2.0), 1)], 1e-6), rel=5e-4
    )


def test_calibration_for_users():
    sigma = calibrate(
        target_epsilon=2.0,
        target_delta=1e-6,
        sampling_rate=0.01,
        steps=100,
        step_event=lambda sigma: user_step_event(sigma, 0.01, 5),
    )
    assert 1.998 < epsilon_of([(user_step_event(sigma, 0.01, 5), 100)], 1e-6) <= 2
    assert sigma > calibrate(target_epsilon=2.0, target_delta=1e-6, sampling_rate=0.01, steps=100)


def test_the_statement_names_the_unit():
    statement = user_statement(2.0, 1e-6, 5, "the final model")
    assert statement.unit == user_unit(5) == "user (at most 5 rows)"
    assert "cut to 5" in str(statement)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0.0, 0.1, 1), "noise_multiplier"), ((1.0, 0.0, 1), "sampling_rate"), ((1.0, 0.1, 0), "rows_per_user")],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        user_step_event(*arguments)
