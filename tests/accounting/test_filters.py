import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.accounting import (
    AdaptiveFilter,
    BudgetExceeded,
    GaussianDpEvent,
    GDPFilter,
    PureDpEvent,
    RenyiFilter,
    ZCDPFilter,
    epsilon_of,
)
from sparsedp.accounting.filters import zcdp_epsilon

costs = st.lists(st.floats(0, 0.5), min_size=1, max_size=40)


def run(budget, wanted):
    """Spend what fits, as an adaptive analyst would: refused costs are skipped, smaller ones tried after them."""
    taken = []
    for cost in wanted:
        if budget.admits(cost):
            budget.spend(cost)
            taken.append(cost)
        else:
            before = budget.spent
            with pytest.raises(BudgetExceeded):
                budget.spend(cost)
            assert budget.spent == before
    return taken


@given(costs)
def test_zcdp_stops_before_the_budget(wanted):
    budget = ZCDPFilter(1.0)
    taken = run(budget, wanted)
    assert math.fsum(taken) <= 1.0
    assert budget.spent == pytest.approx(math.fsum(taken), rel=1e-15)


@given(costs)
def test_gdp_stops_before_the_budget(wanted):
    budget = GDPFilter(1.0)
    taken = run(budget, wanted)
    assert math.fsum(cost**2 for cost in taken) <= 1.0
    assert budget.spent == pytest.approx(math.hypot(*taken), rel=1e-12)


@given(costs)
def test_renyi_stops_before_the_budget(wanted):
    budget = RenyiFilter(8.0, 1.0)
    assert math.fsum(run(budget, wanted)) <= 1.0


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 1e-6)), min_size=1, max_size=40))
def test_the_adaptive_filter_stops_before_either_budget(wanted):
    budget = AdaptiveFilter(1.0, 1e-5)
    taken = run(budget, wanted)
    squares = math.fsum(epsilon**2 for epsilon, _ in taken)
    assert math.sqrt(2 * math.log(1 / 5e-6) * squares) + squares / 2 <= 1.0 + 1e-12
    assert math.fsum(delta for _, delta in taken) <= 5e-6
    assert budget.spent[0] <= 1.0
    assert budget.spent[1] <= 1e-5


@pytest.mark.parametrize(("slack", "share"), [(None, 0.5), (2e-6, 0.2), (9e-6, 0.9)])
def test_the_adaptive_filter_ends_where_its_formula_does(slack, share):
    # x^2 / 2 + x sqrt(2 ln(1/slack)) = epsilon has the root x = sqrt(2 ln(1/slack) + 2 epsilon) - sqrt(2 ln(1/slack)).
    twice = 2 * math.log(1 / (share * 1e-5))
    most = math.sqrt(twice + 2 * 3.0) - math.sqrt(twice)
    budget = AdaptiveFilter(3.0, 1e-5, slack)
    assert budget.admits((most * (1 - 1e-9), 0.0))
    assert not budget.admits((most * (1 + 1e-9), 0.0))
    # Of delta, the slack is spent from the start.
    left = (1 - share) * 1e-5
    assert budget.admits((0.0, left * (1 - 1e-9)))
    assert not budget.admits((0.0, left * (1 + 1e-9)))
    assert budget.spent == (0.0, pytest.approx(share * 1e-5, rel=1e-12))
    budget.spend((most / 2, left / 2))
    assert budget.spent[1] == pytest.approx(share * 1e-5 + left / 2, rel=1e-12)
    assert not budget.admits((0.0, left * (0.5 + 1e-9)))
    assert budget.admits((most * math.sqrt(0.75) * (1 - 1e-9), left * (0.5 - 1e-9)))
    assert not budget.admits((most * math.sqrt(0.75) * (1 + 1e-9), 0.0))


@pytest.mark.parametrize(
    ("budget", "most"),
    [(ZCDPFilter(0.7), 0.7), (GDPFilter(0.7), 0.7), (RenyiFilter(8.0, 0.7), 0.7)],
    ids=["zcdp", "gdp", "renyi"],
)
def test_a_filter_admits_its_budget_and_no_more(budget, most):
    assert budget.admits(most)
    assert not budget.admits(most * (1 + 1e-9))
    half = most / math.sqrt(2) if isinstance(budget, GDPFilter) else most / 2
    budget.spend(half * (1 - 1e-12))
    assert budget.spent == pytest.approx(half)
    assert budget.admits(half)
    assert not budget.admits(half * (1 + 1e-9))


@pytest.mark.parametrize("order", [1.5, 8.0, 30.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_a_renyi_budget_is_the_largest_that_implies_its_epsilon(order, delta):
    budget = RenyiFilter.for_epsilon(60.0, delta, order).budget
    implied, _ = compute_epsilon([order], [budget], delta)  # dp_accounting's conversion
    assert implied == pytest.approx(60.0, rel=1e-12)


def test_the_last_cost_that_fits_exactly_is_admitted():
    budget = ZCDPFilter(1.0)
    for _ in range(10):
        budget.spend(0.1)  # in floating point a running sum would pass 1 here
    assert not budget.admits(1e-12)
    assert budget.admits(0.0)


def test_no_cost_is_too_small_to_add_up():
    # Each is less than half of the last bit of 1/2, and would be rounded away on its own.
    budget = ZCDPFilter(0.5 + 100 * 2.0**-53)
    budget.spend(0.5)
    for _ in range(400):
        budget.spend(2.0**-55)
    assert budget.spent == budget.rho
    assert not budget.admits(2.0**-52)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-6, 0.1])
def test_budgets_from_epsilon_and_delta(epsilon, delta):
    rho = ZCDPFilter.for_epsilon(epsilon, delta).rho
    assert zcdp_epsilon(rho, delta) <= epsilon
    assert zcdp_epsilon(rho * 1.001, delta) > epsilon
    mu = GDPFilter.for_epsilon(epsilon, delta).mu
    assert epsilon_of([(GaussianDpEvent(1 / mu), 1)], delta) == pytest.approx(epsilon, rel=1e-6)
    assert mu**2 / 2 > rho  # a Gaussian is more than its zCDP


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 1.0, 30.0, 1e9])
@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.5, 0.99, 1 - 1e-9])
def test_every_target_has_its_rho(epsilon, delta):
    rho = ZCDPFilter.for_epsilon(epsilon, delta).rho
    # The conversion at one order is a bound; at the best of many it is the epsilon asked for.
    order_less_1 = np.geomspace(1e-16, 1e16, 50_001)
    log_order = np.log1p(order_less_1)
    log_part = np.log(order_less_1) - log_order  # ln(1 - 1/order)
    implied = rho * (1 + order_less_1) + log_part - (math.log(delta) + log_order) / order_less_1
    assert implied.min() == pytest.approx(epsilon, rel=1e-3, abs=1e-6)


def test_costs_too_large_to_be_squared_do_not_fit():
    for budget in (GDPFilter(1.0), GDPFilter(1e100)):
        assert not budget.admits(1e200)
        assert budget.admits(0.5)
    assert not AdaptiveFilter(1.0, 1e-6).admits((1e200, 0.0))
    whole = ZCDPFilter(1.7e308)
    whole.spend(1.7e308)
    assert not whole.admits(1.7e308)  # the sum of both is not a float


def test_a_renyi_budget_implies_its_epsilon():
    budget = RenyiFilter.for_epsilon(1.0, 1e-6, 30.0)
    # Order a of a Gaussian of mu: a mu^2 / 2.
    mu = math.sqrt(2 * budget.budget / 30.0)
    assert epsilon_of([(GaussianDpEvent(1 / mu), 1)], 1e-6) < 1.0
    with pytest.raises(ValueError, match="order 2"):
        RenyiFilter.for_epsilon(1.0, 1e-6, 2.0)


def test_steps_of_bias_reduced_sgd_are_charged_by_their_own_level():
    # Step s at level N_s costs (3 2^(N_s + 1) + 1) (epsilon, delta) / (16 n): a costly step must not be charged like the
    # cheap one that comes after it.
    n, epsilon, delta = 1024, 1.0, 1e-6

    def cost(level):
        share = (3 * 2 ** (level + 1) + 1) / (16 * n)
        return share * epsilon, share * delta

    budget = AdaptiveFilter(epsilon / 2, delta / 2)
    budget.spend(cost(6))
    costly = budget.spent
    budget.spend(cost(0))
    assert budget.spent[0] > costly[0] > AdaptiveFilter(epsilon / 2, delta / 2).spent[0]


def test_the_linear_term_stands_outside_the_root():
    # With epsilon^2/2 inside the root, as SGO theorem A.4 prints it, 40 releases of 0.5 would pass for epsilon 14.2.
    slack, count, epsilon = 1e-5, 40, 0.5
    squares = count * epsilon**2
    printed = math.sqrt(2 * math.log(1 / slack) * squares + squares / 2)
    budget = AdaptiveFilter(100.0, 2 * slack, slack)
    for _ in range(count):
        budget.spend((epsilon, 0.0))
    assert budget.spent[0] > printed + 4
    # An adaptive bound lies above the exact cost of the same fixed releases.
    assert epsilon_of([(PureDpEvent(epsilon), count)], slack) < budget.spent[0]


def test_where_the_printed_form_is_unsafe():
    # Large budgets: the exact composition of fixed releases, at the slack, costs more than the printed formula says.
    slack, count, epsilon = 0.1, 60, 1.0
    squares = count * epsilon**2
    printed = math.sqrt(2 * math.log(1 / slack) * squares + squares / 2)
    assert epsilon_of([(PureDpEvent(epsilon), count)], slack) > printed


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ZCDPFilter(0.0), "rho"),
        (lambda: ZCDPFilter(1.0).admits(-1.0), "cost"),
        (lambda: ZCDPFilter(1.0).spend(math.nan), "cost"),
        (lambda: GDPFilter(math.inf), "mu"),
        (lambda: GDPFilter(1e200), "mu"),
        (lambda: ZCDPFilter.for_epsilon(1e-200, 1e-6), "epsilon"),
        (lambda: ZCDPFilter.for_epsilon(1e300, 1e-6), "epsilon"),
        (lambda: GDPFilter(1.0).admits(math.inf), "cost"),
        (lambda: RenyiFilter(1.0, 1.0), "order"),
        (lambda: RenyiFilter(2.0, -1.0), "budget"),
        (lambda: RenyiFilter.for_epsilon(1.0, 1e-6, 0.5), "order"),
        (lambda: AdaptiveFilter(0.0, 1e-6), "epsilon"),
        (lambda: AdaptiveFilter(1.0, 0.0), "delta"),
        (lambda: AdaptiveFilter(1.0, 1e-6, 1e-5), "slack"),
        (lambda: AdaptiveFilter(1.0, 1e-6).admits((0.1, -1.0)), "cost"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call()
