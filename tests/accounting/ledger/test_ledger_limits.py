"""A data set's budget and a run's cap at once: the tighter of the two decides, for steps and for single releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsedp.accounting import BudgetExceeded, GaussianDpEvent, Ledger, epsilon_of
from sparsedp.accounting.calibration import max_steps
from sparsedp.accounting.cap import EpsilonCap

EVENT, DELTA = GaussianDpEvent(6.0), 1e-5


def steps_within(epsilon: float) -> int:
    return max_steps(step_event=EVENT, target_epsilon=epsilon, target_delta=DELTA)


def admitted(ledger: Ledger, cap: EpsilonCap | None, kind: str, most: int = 40) -> int:
    """How many releases go through before one is refused."""
    step = ledger.step_reserver(EVENT, 1, cap=cap) if kind == "steps" else None
    for count in range(most):
        try:
            if step is None:
                ledger.spend(EVENT, cap=cap)
            else:
                step()
        except BudgetExceeded:
            return count
    return most


@pytest.mark.parametrize("kind", ["steps", "releases"])
@pytest.mark.parametrize(("budget", "cap"), [(3.0, 1.5), (1.5, 3.0), (None, 1.5), (1.5, None), (1.5, 1.5)])
def test_the_tighter_limit_decides(
    budget: float | None, cap: float | None, kind: str, tmp_path: Path
) -> None:
    ledger = Ledger.open(tmp_path / "ledger", budget=None if budget is None else (budget, DELTA))
    limit = None if cap is None else EpsilonCap(cap, DELTA)
    found = admitted(ledger, limit, kind)
    tighter = min(each for each in (budget, cap) if each is not None)
    assert steps_within(0.99 * tighter) <= found <= steps_within(tighter)
    assert 0 < found < 40
    ledger.close()
    events = Ledger.read(tmp_path / "ledger").events()
    assert list(events) == [(EVENT, found)]
    assert epsilon_of(events, DELTA) <= tighter


@pytest.mark.parametrize("kind", ["steps", "releases"])
def test_what_other_runs_spent_counts_towards_the_budget_and_not_towards_a_cap(
    kind: str, tmp_path: Path
) -> None:
    path, budget = tmp_path / "ledger", 2.0
    first = Ledger.open(path, budget=(budget, DELTA), run="first")
    spent = admitted(first, EpsilonCap(1.5, DELTA), kind)
    first.close()
    second = Ledger.open(path, run="second")
    more = admitted(second, EpsilonCap(1.5, DELTA), kind)
    second.close()
    assert spent == steps_within(1.5) or spent == steps_within(0.99 * 1.5)
    assert steps_within(0.99 * budget) <= spent + more <= steps_within(budget)
    assert 0 < more < spent
    assert list(Ledger.read(path).events()) == [(EVENT, spent + more)]


def test_a_release_of_several_is_entered_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger", budget=(1.5, DELTA))
    fits = admitted(ledger, None, "releases")
    again = Ledger.open(tmp_path / "other", budget=(1.5, DELTA))
    with pytest.raises(BudgetExceeded):
        again.spend(EVENT, fits + 1)
    assert list(again.events()) == []
    again.spend(EVENT, fits)
    assert list(again.events()) == [(EVENT, fits)]
    with pytest.raises(BudgetExceeded):
        again.spend(EVENT)


def test_a_reservation_is_cut_to_what_still_fits(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger", budget=(1.5, DELTA))
    step = ledger.step_reserver(EVENT, 1000)
    taken = 0
    while True:
        try:
            step()
        except BudgetExceeded:
            break
        taken += 1
    assert steps_within(0.99 * 1.5) <= taken <= steps_within(1.5)
    assert (step.taken, step.unused) == (taken, 0)
    assert list(ledger.events()) == [(EVENT, taken)]
