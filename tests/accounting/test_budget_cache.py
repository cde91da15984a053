"""The budget of a ledger: how many releases fit, worked out once and kept to the last one."""

import math

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, PoissonSampledDpEvent

from sparsedp.accounting import budget_cache as ledger_allowance
from sparsedp.accounting.analytic_gaussian import analytic_gaussian_epsilon
from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.calibration import calibrate
from sparsedp.accounting.ledger import Ledger

DELTA = 1e-5
STEP = GaussianDpEvent(10.0)
OTHER = GaussianDpEvent(20.0)


def epsilon_after(steps, others=0):
    """Exactly: Gaussians of multipliers 10 and 20 are one Gaussian together."""
    return analytic_gaussian_epsilon(DELTA, math.sqrt(steps / 100 + others / 400))


def exact_epsilon_of(events, delta):
    mu2 = sum(count / event.noise_multiplier**2 for event, count in events)
    return analytic_gaussian_epsilon(delta, math.sqrt(mu2))


def exact_max_steps(*, step_event, target_epsilon, target_delta, extra_events=()):
    steps = 0
    extra = [(composed.event, composed.count) for composed in extra_events]
    while exact_epsilon_of([*extra, (step_event, steps + 1)], target_delta) <= target_epsilon:
        steps += 1
    return steps


@pytest.fixture
def accountant(monkeypatch):
    """A quick accountant for Gaussians, and the list of what it was asked."""
    asked = []
    for exact in (exact_epsilon_of, exact_max_steps):
        name = exact.__name__.removeprefix("exact_")

        def answer(*args, exact=exact, name=name, **kwargs):
            asked.append(name)
            return exact(*args, **kwargs)

        monkeypatch.setattr(ledger_allowance, name, answer)
    return asked


def run_out(step):
    steps = 0
    while True:
        try:
            step()
        except BudgetExceeded as refusal:
            return steps, str(refusal)
        steps += 1


def test_the_true_accountant_stops_where_the_exact_one_does(tmp_path):
    ledger = Ledger.open(tmp_path / "data.ledger", budget=(1.0, DELTA))
    ledger.spend(OTHER, 3)
    steps, _ = run_out(ledger.step_reserver(STEP))
    assert epsilon_after(steps, 3) <= 1.0 < epsilon_after(steps + 1, 3)


@pytest.mark.parametrize("reserve", [1, 7, 64])
def test_steps_run_exactly_to_the_budget_and_one_more_is_refused(tmp_path, accountant, reserve):
    path = tmp_path / "data.ledger"
    ledger = Ledger.open(path, budget=(1.0, DELTA))
    before = path.read_bytes()
    step = ledger.step_reserver(STEP, reserve)
    steps, message = run_out(step)
    assert epsilon_after(steps) <= 1.0 < epsilon_after(steps + 1)
    assert "epsilon 1 " in message
    assert "1e-05" in message
    assert dict(ledger.events()) == {STEP: steps}
    full = path.read_bytes()
    assert full != before
    with pytest.raises(BudgetExceeded):
        step()
    with pytest.raises(BudgetExceeded, match="epsilon would be"):
        ledger.spend(STEP)
    assert path.read_bytes() == full  # a refusal writes nothing
    assert accountant == ["max_steps", "epsilon_of"]  # once for all steps, once for the spend
    ledger.close()
    assert Ledger.read(path).statement().epsilon <= 1.0


def test_a_calibrated_run_fits_its_budget_to_the_last_step(tmp_path):
    delta, rate, steps = 1 / 4.5e8, 2048 / 4.5e7, 21_973
    once = GaussianDpEvent(20.0)
    sigma = calibrate(
        target_epsilon=1.0, target_delta=delta, sampling_rate=rate, steps=steps, extra_events=[once]
    )
    with Ledger.open(tmp_path / "data.ledger", budget=(1.0, delta)) as ledger:
        ledger.spend(once)
        step = ledger.step_reserver(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), reserve=4096)
        for _ in range(steps):
            step()
        assert ledger.statement().epsilon <= 1.0
        more, _ = run_out(step)
    assert more < 0.02 * steps


def test_steps_that_cost_next_to_nothing_are_not_refused(tmp_path):
    with Ledger.open(tmp_path / "data.ledger", budget=(1.0, DELTA)) as ledger:
        for event in (NoOpDpEvent(), PoissonSampledDpEvent(1e-9, GaussianDpEvent(1e4))):
            step = ledger.step_reserver(event)
            for _ in range(100):
                step()


def test_a_spend_is_refused_whole(tmp_path):
    ledger = Ledger.open(tmp_path / "data.ledger", budget=(1.0, DELTA))
    with pytest.raises(BudgetExceeded):
        ledger.spend(STEP, 1000)
    with pytest.raises(BudgetExceeded):
        ledger.spend(NonPrivateDpEvent())
    assert ledger.events() == []
    ledger.spend(OTHER, 2)
    assert dict(ledger.events()) == {OTHER: 2}


def test_steps_given_back_can_be_used_by_the_next_run(tmp_path, accountant):
    path = tmp_path / "data.ledger"
    most, _ = run_out(Ledger.open(tmp_path / "alone.ledger", budget=(1.0, DELTA)).step_reserver(STEP))
    with Ledger.open(path, budget=(1.0, DELTA)) as ledger:
        step = ledger.step_reserver(STEP, reserve=most)
        step()
        with pytest.raises(BudgetExceeded):
            Ledger.open(path).spend(STEP)  # to others, what is reserved is spent
        ledger.spend(STEP)  # the one who reserved it gives back what it has not taken
        step()
    steps, _ = run_out(Ledger.open(path).step_reserver(STEP))
    assert steps == most - 3


def test_whoever_resumes_from_an_old_checkpoint_still_pays(tmp_path, accountant):
    path = tmp_path / "data.ledger"
    most, _ = run_out(Ledger.open(tmp_path / "alone.ledger", budget=(1.0, DELTA)).step_reserver(STEP))
    taken = 0
    for _ in range(3):  # three times the same two steps, from the same checkpoint
        with Ledger.open(path, budget=(1.0, DELTA)) as ledger:
            step = ledger.step_reserver(STEP)
            for _ in range(2):
                step()
                taken += 1
    steps, _ = run_out(Ledger.open(path).step_reserver(STEP))
    assert taken + steps == most


def test_two_runs_with_different_events_share_the_budget(tmp_path, accountant):
    path = tmp_path / "data.ledger"
    ledgers = [Ledger.open(path, budget=(8.0, DELTA), run=run) for run in ("a", "b")]
    reservers = [ledger.step_reserver(event, 1) for ledger, event in zip(ledgers, (STEP, OTHER), strict=True)]
    taken = [0, 0]
    refused = set()
    while len(refused) < 2:
        for number, step in enumerate(reservers):
            try:
                step()
                taken[number] += 1
            except BudgetExceeded:
                refused.add(number)
    assert epsilon_after(*taken) <= 8.0
    assert epsilon_after(taken[0] + 1, taken[1]) > 8.0
    assert epsilon_after(taken[0], taken[1] + 1) > 8.0
    # Room left for the other run keeps the accountant from being asked at each of its entries.
    assert sum(taken) > 400
    assert len(accountant) < 60


def test_another_process_that_spends_meanwhile_is_seen(tmp_path, accountant):
    path = tmp_path / "data.ledger"
    ledger = Ledger.open(path, budget=(1.0, DELTA))
    step = ledger.step_reserver(STEP, reserve=1)
    step()
    with Ledger.open(path, run="other") as other:
        others, _ = run_out(other.step_reserver(STEP))
    with pytest.raises(BudgetExceeded):
        step()
    assert epsilon_after(1 + others) <= 1.0 < epsilon_after(2 + others)
