import math

import pytest
from dp_accounting.rdp import RdpAccountant

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    WorstOfDpEvent,
    ZCDpEvent,
    epsilon_of,
)
from sparsedp.accounting.event_json import event_from_json, event_to_json
from sparsedp.accounting.filters import zcdp_epsilon
from sparsedp.accounting.renyi import has_renyi, renyi_epsilon, renyi_pair


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 8.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_zcdp_costs_what_its_conversion_says(rho, delta):
    reached = epsilon_of([(ZCDpEvent(rho), 1)], delta)
    assert reached == pytest.approx(zcdp_epsilon(rho, delta), rel=5e-3)
    # A Gaussian of the same rho is one such mechanism.
    assert reached >= epsilon_of([(GaussianDpEvent(1 / math.sqrt(2 * rho)), 1)], delta)


def test_zcdp_adds_before_it_is_converted():
    assert epsilon_of([(ZCDpEvent(0.01), 50)], 1e-6) == pytest.approx(
        epsilon_of([(ZCDpEvent(0.5), 1)], 1e-6), rel=1e-9
    )


def test_zcdp_composes_with_loss_distributions():
    both = [(ZCDpEvent(0.02), 1), (PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 500)]
    apart = [epsilon_of([part], 1e-6) for part in both]
    assert max(apart) < epsilon_of(both, 1e-6) < sum(apart) * 1.05
    # A lower bound: the zCDP mechanism could be a Gaussian.
    assert epsilon_of(both, 1e-6) >= epsilon_of([(GaussianDpEvent(5.0), 1), both[1]], 1e-6)


def test_repeat_and_select_agrees_with_its_renyi_accountant():
    event = RepeatAndSelectDpEvent(ZCDpEvent(0.01), mean=8.0, shape=math.inf)
    theirs = RdpAccountant(orders=[1 + x / 10 for x in range(1, 1000)]).compose(event).get_epsilon(1e-6)
    assert epsilon_of([(event, 1)], 1e-6) == pytest.approx(theirs, rel=0.02)


def test_the_pair_is_a_pair():
    pair = renyi_pair([(ZCDpEvent(0.3), 2)])
    assert pair.p.sum() + pair.infinity == pytest.approx(1, abs=1e-9)
    assert pair.q.sum() + pair.minus_infinity == pytest.approx(1, abs=1e-9)
    assert pair.p.min() >= 0
    for p, q, loss in zip(pair.p, pair.q, pair.losses, strict=True):
        assert p == pytest.approx(q * math.exp(loss), rel=1e-6, abs=1e-12)


def test_what_lies_beyond_the_pairs_losses_is_infinite(monkeypatch):
    monkeypatch.setattr("sparsedp.accounting.renyi._LEAST_LOG_DELTA", -3.0)
    pair = renyi_pair([(ZCDpEvent(0.3), 2)])
    end = pair.losses[-1]
    # The conversion at the last loss, over many orders.
    orders = [1 + 10 ** (k / 100) for k in range(-150, 300)]
    bounds = [(a - 1) * (0.6 * a - end + math.log1p(-1 / a)) - math.log(a) for a in orders]
    assert pair.infinity == pair.minus_infinity == pytest.approx(math.exp(min(bounds)), rel=0.01)
    assert pair.infinity > 1e-6


def test_the_quick_bound_is_a_bound():
    events = [(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)]
    assert has_renyi(events[0][0])
    assert epsilon_of(events, 1e-6) < renyi_epsilon(events, 1e-6) < 1.5 * epsilon_of(events, 1e-6)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_the_quick_bound_is_that_of_dp_accounting(delta):
    events = [(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000), (GaussianDpEvent(3.0), 2)]
    accountant = RdpAccountant(orders=[*range(2, 64), *(2.0**k for k in range(6, 13))])
    for event, count in events:
        accountant.compose(event, count)
    exact = accountant.get_epsilon(delta)
    # 1e-13 is allowed to the rounding of each of 1002 divergences.
    assert exact + 0.9e-10 <= renyi_epsilon(events, delta) <= exact + 1.1e-10


def test_the_quick_bound_survives_cancellation():
    # Divergences this small come out negative in floating point, which must not pass for no privacy loss at all.
    events = [(PoissonSampledDpEvent(1e-9, GaussianDpEvent(1e4)), 10**7)]
    assert renyi_epsilon(events, 1e-8) > 0


STEPS = SelfComposedDpEvent(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.2)), 300)


def test_the_worst_of_events_costs_what_the_costliest_does():
    """Where one event is the costliest at every order, and where none is."""
    loud, quiet = GaussianDpEvent(3.0), GaussianDpEvent(9.0)
    worst = renyi_epsilon([(WorstOfDpEvent([quiet, loud, quiet]), 1)], 1e-6)
    assert worst == renyi_epsilon([(loud, 1)], 1e-6)
    both = renyi_epsilon([(WorstOfDpEvent([STEPS, GaussianDpEvent(2.0)]), 1)], 1e-6)
    assert both >= max(renyi_epsilon([(each, 1)], 1e-6) for each in (STEPS, GaussianDpEvent(2.0)))
    assert both < renyi_epsilon([(STEPS, 1), (GaussianDpEvent(2.0), 1)], 1e-6)


def test_the_worst_of_events_composes_and_repeats():
    worst = WorstOfDpEvent([GaussianDpEvent(9.0), GaussianDpEvent(3.0)])
    alone = [(GaussianDpEvent(3.0), 4), (GaussianDpEvent(7.0), 1)]
    assert renyi_epsilon([(worst, 4), (GaussianDpEvent(7.0), 1)], 1e-6) == pytest.approx(
        renyi_epsilon(alone, 1e-6)
    )
    repeated = RepeatAndSelectDpEvent(WorstOfDpEvent([STEPS, STEPS]), 10.0, 1.0)
    assert renyi_epsilon([(repeated, 1)], 1e-6) == renyi_epsilon(
        [(RepeatAndSelectDpEvent(STEPS, 10.0, 1.0), 1)], 1e-6
    )


def test_the_worst_of_events_is_recorded_whole():
    event = RepeatAndSelectDpEvent(WorstOfDpEvent([STEPS, GaussianDpEvent(2.0)]), 10.0, 0.0)
    assert event_from_json(event_to_json(event)) == event
    with pytest.raises(ValueError, match=r"^events must not be empty"):
        WorstOfDpEvent([])


def test_the_worst_of_an_unknown_event_is_refused():
    event = WorstOfDpEvent([GaussianDpEvent(2.0), BoundedRangeGaussianDpEvent(3, 0.1, 2.0)])
    assert not has_renyi(event)
    with pytest.raises(ValueError, match="no loss distribution"):
        epsilon_of([(event, 1)], 1e-6)


def test_a_repeated_run_has_a_curve_and_fills_no_log_with_orders_that_cannot_be_computed(caplog):
    event = RepeatAndSelectDpEvent(WorstOfDpEvent([STEPS, GaussianDpEvent(9.0)]), 3.0, 1.0)
    assert epsilon_of([(event, 1)], 1e-6) == pytest.approx(renyi_epsilon([(event, 1)], 1e-6), rel=0.02)
    assert caplog.text == ""
