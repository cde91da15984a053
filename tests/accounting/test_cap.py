"""A run's epsilon as a cap: with a ledger and without, beside other runs, and whatever crashes took away."""

import math

import pytest
from dp_accounting import GaussianDpEvent, NoOpDpEvent, PoissonSampledDpEvent

from sparsedp.accounting import BudgetExceeded, Ledger, calibrate, epsilon_of
from sparsedp.accounting.analytic_gaussian import analytic_gaussian_epsilon
from sparsedp.accounting.cap import EpsilonCap
from sparsedp.accounting.pld.composition import tolerance

DELTA = 1e-5
STEP = GaussianDpEvent(40.0)
ONCE = GaussianDpEvent(20.0)


def epsilon_after(steps, choices=0):
    """Exactly: Gaussians of multipliers 40 and 20 are one Gaussian together."""
    return analytic_gaussian_epsilon(DELTA, math.sqrt(steps / 1600 + choices / 400))


def most(target, choices=0):
    """The largest number of steps within the target."""
    steps = 0
    while epsilon_after(steps + 1, choices) <= target:
        steps += 1
    return steps


def run_out(step):
    steps = 0
    while steps < 10_000:
        try:
            step()
        except BudgetExceeded as refusal:
            return steps, str(refusal)
        steps += 1
    raise AssertionError("nothing refuses")


@pytest.mark.parametrize("planned", [0, 20, 10_000])
@pytest.mark.parametrize("choices", [0, 1])
def test_without_a_ledger_the_step_that_would_pass_the_target_is_refused(planned, choices):
    cap, taken = EpsilonCap(1.0, DELTA, planned), 0
    once = [(ONCE, choices)] if choices else []

    def step():
        nonlocal taken
        cap.require([*once, (STEP, taken)] if taken else once, STEP)
        taken += 1

    steps, message = run_out(step)
    assert steps in (most(1.0, choices), most(1.0, choices) - 1)  # the accountant's tolerance is kept free
    assert "target_epsilon 1 at delta 1e-05" in message
    assert f"{steps} steps like it" in message


def test_an_account_given_in_parts_is_one_account():
    cap, limit = EpsilonCap(1.0, DELTA), most(1.0)
    cap.require([(STEP, limit - 10), (STEP, 5)], STEP)
    with pytest.raises(BudgetExceeded):
        cap.require([(STEP, limit - 10), (STEP, 10)], STEP)


@pytest.mark.parametrize("reserve", [1, 3, 7, None])
def test_crashes_are_taken_from_the_steps_to_come(tmp_path, reserve):
    """Five attempts under one name; each crash forgets the ledger object with its unused steps."""
    path, taken = tmp_path / "data.ledger", 0
    for crash in range(5):
        ledger = Ledger.open(path, run="model")
        ledger.spend(ONCE, cap=EpsilonCap(1.0, DELTA, most(1.0, 1)))  # the choice is made again each time
        step = ledger.step_reserver(STEP, reserve, cap=EpsilonCap(1.0, DELTA, most(1.0, 1)))
        for _ in range(crash):
            step()
            taken += 1
    ledger = Ledger.open(path, run="model")
    steps, message = run_out(ledger.step_reserver(STEP, reserve, cap=EpsilonCap(1.0, DELTA, most(1.0, 1))))
    counts = dict(Ledger.read(path).events())
    assert taken + steps <= counts[STEP] <= taken + steps + 4 * ((reserve or 1) - 1)
    assert epsilon_of(Ledger.read(path).events(), DELTA) <= 1.0
    assert epsilon_after(counts[STEP] + 2, 5) > 1.0  # to the last step that fits
    assert "run 'model' has" in message
    assert "crashes took away" in message


def test_the_refused_step_is_not_on_the_ledger(tmp_path):
    path = tmp_path / "data.ledger"
    step = Ledger.open(path).step_reserver(STEP, cap=EpsilonCap(1.0, DELTA))
    steps, _ = run_out(step)
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded):
        step()
    with pytest.raises(BudgetExceeded, match=rf"this release would pass .* run 'run' has {steps} releases"):
        Ledger.open(path).spend(ONCE, cap=EpsilonCap(1.0, DELTA))
    assert path.read_bytes() == before
    assert dict(Ledger.read(path).events()) == {STEP: steps}


def test_other_runs_do_not_count_towards_a_cap_but_do_towards_the_budget(tmp_path):
    path = tmp_path / "data.ledger"
    budget = 1.25
    first = Ledger.open(path, budget=(budget, DELTA), run="first")
    steps, _ = run_out(first.step_reserver(STEP, cap=EpsilonCap(1.0, DELTA)))
    first.close()
    second = Ledger.open(path, run="second")
    assert second.own_events() == []
    others, message = run_out(second.step_reserver(STEP, cap=EpsilonCap(1.0, DELTA)))
    assert "the budget of epsilon 1.25" in message
    assert epsilon_after(steps + others) <= budget < epsilon_after(steps + others + 1)
    assert second.own_events() == [(STEP, others)]
    with pytest.raises(BudgetExceeded):
        Ledger.open(path, run="first").step_reserver(STEP, cap=EpsilonCap(1.0, DELTA))()


def test_two_processes_of_one_name_share_one_cap(tmp_path):
    path, taken = tmp_path / "data.ledger", 0
    reservers = [Ledger.open(path).step_reserver(STEP, 1, cap=EpsilonCap(1.0, DELTA)) for _ in range(2)]
    while reservers:
        for step in list(reservers):
            try:
                step()
                taken += 1
            except BudgetExceeded:
                reservers.remove(step)
    assert taken in (most(1.0), most(1.0) - 1)


def test_own_steps_that_are_held_ahead_make_room_for_a_spend(tmp_path):
    ledger = Ledger.open(tmp_path / "data.ledger")
    cap = EpsilonCap(1.0, DELTA)
    step = ledger.step_reserver(STEP, reserve=1000, cap=cap)
    step()
    ledger.spend(ONCE, cap=cap)
    steps, _ = run_out(step)
    assert epsilon_after(steps + 1, 1) <= 1.0 < epsilon_after(steps + 3, 1)


def test_a_calibrated_run_takes_all_its_steps_and_any_part_is_within_the_target(tmp_path):
    target, rate, planned = 0.7, 46 / 364, 128
    sigma = calibrate(target_epsilon=target, target_delta=DELTA, sampling_rate=rate, steps=planned)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    with Ledger.open(tmp_path / "data.ledger") as ledger:
        steps, _ = run_out(ledger.step_reserver(event, cap=EpsilonCap(target, DELTA, planned)))
    assert planned <= steps < 1.02 * planned
    assert all(epsilon_of([(event, steps - back)], DELTA) <= target for back in range(4))


@pytest.mark.parametrize("target", [0.1, 1.0, 30.0])
def test_the_accountants_tolerance_is_kept_free(target):
    """A part of an account may be computed on another grid, and come out higher by as much."""
    assert EpsilonCap(target, DELTA).budget_cache.epsilon == target - tolerance(target)


def test_steps_that_cost_nothing_are_not_refused():
    EpsilonCap(1.0, DELTA).require([(NoOpDpEvent(), 10**6)], NoOpDpEvent())


@pytest.mark.parametrize(
    ("target", "delta", "planned"), [(0, DELTA, 1), (1, 0, 1), (1, DELTA, -1), (math.nan, DELTA, 1)]
)
def test_senseless_caps_are_refused_by_name(target, delta, planned):
    with pytest.raises(ValueError, match=r"target_epsilon|target_delta|planned_steps"):
        EpsilonCap(target, delta, planned)
