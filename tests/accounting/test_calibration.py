import contextlib
import itertools
import json
import math
import time
import warnings

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LooseEpsilonWarning,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SparseVectorDpEvent,
    analytic_gaussian_sigma,
    calibrate,
    delta_of,
    epsilon,
    epsilon_of,
    max_steps,
)
from sparsedp.accounting import calibration as calibration_module
from sparsedp.accounting.pld.composition import Answer, tolerance

CRITEO = {"sampling_rate": 2048 / 4.5e7, "steps": 21_973}


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps"),
    [
        (1.0, 1e-6, 0.01, 1000),
        (0.1, 1e-8, 0.001, 500),
        (8.0, 1e-5, 0.1, 200),
        (3.0, 1e-6, 1.0, 10),
        (50.0, 1e-5, 0.02, 100),
    ],
)
def test_sigma_meets_the_target_and_hardly_more(target, delta, rate, steps):
    sigma = calibrate(target_epsilon=target, target_delta=delta, sampling_rate=rate, steps=steps)
    reached = epsilon(noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=delta)
    assert target - 4 * tolerance(target) <= reached <= target
    assert delta_of([(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)], target) <= delta


def test_dp_accounting_confirms_the_target_on_a_fine_grid():
    sigma = calibrate(target_epsilon=2.0, target_delta=1e-6, sampling_rate=0.01, steps=100)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(sigma)), 100)
    assert 1.999 < accountant.get_epsilon(1e-6) < 2.0001


def test_one_epoch_of_criteo():
    sigma = calibrate(target_epsilon=1.0, target_delta=1 / 4.5e8, **CRITEO)
    assert sigma == pytest.approx(0.6101, abs=2e-4)
    assert epsilon(noise_multiplier=sigma, delta=1 / 4.5e8, **CRITEO) == pytest.approx(1.0, abs=1e-3)
    # A private histogram of mu 0.05 in the same budget costs 0.12% of noise.
    beside = calibrate(
        target_epsilon=1.0, target_delta=1 / 4.5e8, extra_events=[GaussianDpEvent(20.0)], **CRITEO
    )
    assert 1.0008 < beside / sigma < 1.0016


def test_any_part_of_a_calibrated_run_is_admitted():
    extra = [LaplaceDpEvent(20.0)]
    sigma = calibrate(
        target_epsilon=1.0, target_delta=1e-6, sampling_rate=0.01, steps=3000, extra_events=extra
    )
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(sigma))
    for steps in (3000, 2999, 2998, 2990, 2950, 2900, 2700, 2048, 2047, 1000, 1):
        assert epsilon_of([(step, steps), (extra[0], 1)], 1e-6) <= 1.0


@pytest.mark.parametrize(
    "step_event",
    [
        lambda sigma: PoissonSampledDpEvent(0.01, BoundedRangeGaussianDpEvent(5, 0.2, sigma)),
        lambda sigma: PoissonSampledDpEvent(
            0.01, ComposedDpEvent([SparseVectorDpEvent(3, 30.0, 60.0), GaussianDpEvent(sigma)])
        ),
        lambda sigma: LaplaceDpEvent(10 * sigma),
    ],
)
def test_other_steps(step_event):
    arguments = {"target_epsilon": 2.0, "target_delta": 1e-6, "sampling_rate": 0.01, "steps": 200}
    sigma = calibrate(**arguments, step_event=step_event)
    assert 1.998 <= epsilon_of([(step_event(sigma), 200)], 1e-6) <= 2.0
    # From the cache the same, and another step does not get it.
    assert calibrate(**arguments, step_event=step_event) == sigma
    assert calibrate(**arguments) != sigma


def test_a_single_gaussian_is_the_analytic_one():
    sigma = calibrate(target_epsilon=1.0, target_delta=1e-6, sampling_rate=1.0, steps=1)
    assert sigma == pytest.approx(analytic_gaussian_sigma(1.0, 1e-6), rel=1e-3)
    assert sigma >= analytic_gaussian_sigma(1.0, 1e-6)


def check_extreme_targets(targets, runs):
    for target, (rate, steps), delta in itertools.product(targets, runs, (1e-12, 1e-6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LooseEpsilonWarning)
            sigma = calibrate(target_epsilon=target, target_delta=delta, sampling_rate=rate, steps=steps)
            assert math.isfinite(sigma)
            assert epsilon(noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=delta) <= target


def test_extreme_targets():
    check_extreme_targets([0.01, 100.0], [(1.0, 10**7), (1.0, 1)])


@pytest.mark.slow
def test_all_extreme_targets():
    check_extreme_targets([0.01, 1.0, 100.0], [(1e-9, 10**7), (1e-4, 10**7), (0.5, 10**7), (0.5, 1)])


def test_max_steps_is_the_last_that_fits():
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    steps = max_steps(
        step_event=step, target_epsilon=2.0, target_delta=1e-6, extra_events=[GaussianDpEvent(10.0)]
    )
    assert epsilon_of([(step, steps), (GaussianDpEvent(10.0), 1)], 1e-6) <= 2.0
    assert epsilon_of([(step, steps + 1), (GaussianDpEvent(10.0), 1)], 1e-6) > 2.0
    assert steps < max_steps(step_event=step, target_epsilon=2.0, target_delta=1e-6)


def test_max_steps_of_a_calibrated_run_is_at_least_its_length():
    sigma = calibrate(target_epsilon=1.0, target_delta=1e-6, sampling_rate=0.01, steps=500)
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(sigma))
    assert 500 <= max_steps(step_event=step, target_epsilon=1.0, target_delta=1e-6) <= 503


@pytest.mark.parametrize(("sigma", "steps"), [(0.3, 0), (3.0, 1)])
def test_max_steps_may_be_few(sigma, steps):
    assert max_steps(step_event=GaussianDpEvent(sigma), target_epsilon=1.7, target_delta=1e-6) == steps


@pytest.mark.parametrize("target", [5e-324, 1e-12, 1e-3])
def test_no_step_fits_a_budget_below_its_cost(target):
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    assert max_steps(step_event=step, target_epsilon=target, target_delta=1e-6) == 0


def test_max_steps_where_nothing_is_left():
    arguments = {"step_event": GaussianDpEvent(9.0), "target_epsilon": 1.0, "target_delta": 1e-6}
    assert max_steps(**arguments, extra_events=[GaussianDpEvent(1.0)]) == 0


def test_results_are_kept_on_disk(monkeypatch):
    events = [(PoissonSampledDpEvent(0.03, GaussianDpEvent(1.234)), 77)]
    arguments = {"target_epsilon": 1.5, "target_delta": 3e-6, "sampling_rate": 0.03, "steps": 77}
    first = (
        epsilon_of(events, 1e-6),
        calibrate(**arguments),
        max_steps(step_event=events[0][0], target_epsilon=1.5, target_delta=3e-6),
    )

    def fail(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(calibration_module, "epsilon_answer", fail)
    again = (
        epsilon_of(events, 1e-6),
        calibrate(**arguments),
        max_steps(step_event=events[0][0], target_epsilon=1.5, target_delta=3e-6),
    )
    assert again == first
    with pytest.raises(AssertionError, match="computed again"):
        epsilon_of(events, 2e-6)


def test_a_step_that_only_looks_like_a_cached_one_is_calibrated_anew():
    arguments = {"target_epsilon": 2.0, "target_delta": 1e-6, "sampling_rate": 0.01, "steps": 10}
    one = calibrate(**arguments, step_event=lambda sigma: GaussianDpEvent(sigma))
    two = calibrate(**arguments, step_event=lambda sigma: GaussianDpEvent(sigma**2))  # the same at sigma 1
    assert two == pytest.approx(math.sqrt(one), rel=1e-3)


def quadrature_epsilon(event, delta):
    """Epsilon of one mixture of unit Gaussians, by summing densities on a fine line; the worse direction."""
    x = np.linspace(-15.0, 30.0, 200_001)
    shifts, which = np.unique(event.sensitivities, return_inverse=True)
    chances = np.bincount(which, event.sampling_probs)
    p, q = (
        sum(chance * norm.pdf(x - shift) for shift, chance in zip(shifts, chances, strict=True)),
        norm.pdf(x),
    )

    def excess(epsilon, one, other):
        return np.maximum(one - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0]) - delta

    return max(
        brentq(excess, 0.0, 500.0, args=both) if excess(0.0, *both) > 0 else 0.0 for both in ((p, q), (q, p))
    )


def one_of_many(shift):
    """1,201 possible shifts, all but two of them 0; numpy prints the last, and not the one in the middle."""
    shifts = np.zeros(1201)
    shifts[[600, -1]] = shift, 0.5
    return MixtureOfGaussiansDpEvent(1.0, shifts, np.full(1201, 1 / 1201))


@pytest.mark.parametrize("options", [{}, {"precision": 3, "suppress": True}], ids=str)
def test_an_event_never_gets_the_epsilon_of_one_that_prints_alike(options):
    if options:  # two entries suffice
        mild, harsh = (
            MixtureOfGaussiansDpEvent(1.0, np.array([0.0, 5.0]), np.array([1 - chance, chance]))
            for chance in (1e-4, 4e-4)
        )
    else:
        mild, harsh = one_of_many(0.5), one_of_many(8.0)
    with np.printoptions(**options):
        assert repr(mild) == repr(harsh)
        for event in (mild, harsh):
            exact = quadrature_epsilon(event, 1e-5)
            for _ in range(2):  # computed, then from the cache
                assert exact - 1e-6 <= epsilon_of([(event, 1)], 1e-5) <= exact + 2 * tolerance(exact)
        both = epsilon_of([(mild, 1), (harsh, 1)], 1e-5)
        assert both == pytest.approx(epsilon_of([(harsh, 1), (mild, 1)], 1e-5), abs=1e-9)
        assert both > epsilon_of([(mild, 2)], 1e-5)


def test_calibration_and_steps_are_not_those_of_an_event_that_prints_alike():
    mild, harsh = one_of_many(0.5), one_of_many(2.0)
    arguments = {"target_epsilon": 2.0, "target_delta": 1e-5}
    assert max_steps(step_event=mild, **arguments) > max_steps(step_event=harsh, **arguments)
    for shift in (0.5, 2.0):
        event = one_of_many(shift)
        sigma = calibrate(
            **arguments,
            sampling_rate=1.0,
            steps=50,
            step_event=lambda sigma, event=event: MixtureOfGaussiansDpEvent(
                sigma, event.sensitivities, event.sampling_probs
            ),
        )
        scaled = MixtureOfGaussiansDpEvent(sigma, event.sensitivities, event.sampling_probs)
        assert 1.99 < epsilon_of([(scaled, 50)], 1e-5) <= 2.0


def test_a_damaged_cache_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEDP_CACHE", str(tmp_path))
    events = [(PoissonSampledDpEvent(0.02, GaussianDpEvent(0.9)), 40)]
    right = epsilon_of(events, 1e-6)
    (file,) = (tmp_path / "accounting").iterdir()
    written = json.loads(file.read_text())
    for number in (written["number"] / 10, math.nan, -1.0, 0.0):
        file.write_text(json.dumps({**written, "number": number}))
        assert epsilon_of(events, 1e-6) == right


def test_loose_bounds_are_announced(monkeypatch):
    monkeypatch.setattr(calibration_module, "epsilon_answer", lambda *_: Answer(3.0, converged=False))
    events = [(PureDpEvent(0.123), 1)]
    for _ in range(2):  # computed, then from the cache
        with pytest.warns(LooseEpsilonWarning, match="not a tight"):
            assert epsilon_of(events, 1e-6) == 3.0


EXTREME = [0, -1, 5e-324, 1e-200, 1e-6, 0.5, 1, 3, 1e6, 1e12, 10**30, 1e300, 10**400, math.inf, math.nan]
RUN = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 100, "delta": 1e-6}
GOOD = {"target_epsilon": 1.0, "target_delta": 1e-6, "sampling_rate": 0.01, "steps": 10}


def answered(call, names, seconds=10.0):
    """The result of a call that returns in time, or None if it refuses one of the arguments by name."""
    began = time.process_time()
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LooseEpsilonWarning)
        result = call()
        assert time.process_time() - began < seconds
        assert result >= 0  # not NaN either
        return result
    with pytest.raises(ValueError, match=rf"^({'|'.join(names)}) "):
        call()
    return None


@pytest.mark.parametrize("value", EXTREME, ids=str)
def test_every_argument_of_any_size_is_answered_or_refused_by_name(value):
    step = PoissonSampledDpEvent(0.02, GaussianDpEvent(2.0))
    for name in RUN:
        answered(lambda name=name: epsilon(**{**RUN, name: value}), RUN)
    for name in GOOD:
        answered(lambda name=name: calibrate(**{**GOOD, name: value}), GOOD)
    for name in ("target_epsilon", "target_delta"):
        limits = {"target_epsilon": 1.0, "target_delta": 1e-6, name: value}
        answered(lambda limits=limits: max_steps(step_event=step, **limits), ("step_event", *limits))
    answered(lambda: delta_of([(step, 30)], value), ("epsilon",))
    answered(lambda: epsilon_of([(step, value)], 1e-6), ("count",))


def check_a_run(**run):
    """An answer in time, that falls with noise and delta, and rises with the rate and the steps."""

    def cost(**changes):
        return answered(lambda: epsilon(**{**run, **changes}), RUN)

    here = cost()
    slack = 0.02 * here + 2e-3 if here < math.inf else 0.0  # bounds that are not tight may differ
    assert cost(noise_multiplier=2 * run["noise_multiplier"]) <= here + slack
    assert cost(sampling_rate=run["sampling_rate"] / 2) <= here + slack
    assert cost(delta=(1 + run["delta"]) / 2) <= here + slack
    assert cost(steps=(run["steps"] + 1) // 2) <= here + slack


EXTREME_RUNS = st.fixed_dictionaries(
    {
        "noise_multiplier": st.sampled_from([1e-200, 1e-3, 0.1, 1.0, 30.0, 1e6, 1e200]),
        "sampling_rate": st.sampled_from([1e-300, 1e-9, 0.01, 0.5, 1 - 1e-12, 1.0]),
        "steps": st.sampled_from([1, 1000, 10**7, 10**12]),
        "delta": st.sampled_from([1e-200, 1e-30, 1e-6, 0.5, 1 - 1e-12]),
    }
)


@given(run=EXTREME_RUNS)
@settings(max_examples=15, derandomize=True)
def test_extreme_runs_cost_more_with_less_noise_and_more_steps(run):
    check_a_run(**run)


@pytest.mark.slow
@given(run=EXTREME_RUNS)
@settings(max_examples=150, derandomize=True)
def test_many_extreme_runs_cost_more_with_less_noise_and_more_steps(run):
    check_a_run(**run)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"target_epsilon": -1.0}, "target_epsilon"),
        ({"target_epsilon": math.nan}, "target_epsilon"),
        ({"target_epsilon": math.inf}, "target_epsilon"),
        ({"target_delta": 0.0}, "target_delta"),
        ({"target_delta": 1.0}, "target_delta"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"extra_events": [GaussianDpEvent(1.0)]}, "target_epsilon of 1 is spent"),
        ({"step_event": lambda sigma: PureDpEvent(1.0)}, "target_epsilon of 1 cannot be reached"),
        ({"step_event": lambda sigma: NoOpDpEvent()}, "target_delta of 1e-06 is so large"),
        ({"target_delta": 0.3}, "target_delta of 0.3 is so large"),
        ({"target_epsilon": 1e9}, r"target_epsilon of 1e\+09 is so large"),
        ({"target_epsilon": 1e300}, r"target_epsilon of 1e\+300 is so large"),
        ({"target_epsilon": 1e-9}, "target_epsilon of 1e-09 is too small"),
        ({"steps": 10**30}, "steps must be at most"),
        ({"extra_events": [GaussianDpEvent(1e-200)]}, "target_epsilon of 1 is spent"),
    ],
)
def test_targets_that_cannot_be_met_are_named(changes, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        calibrate(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: epsilon_of([], 0.0), "delta"),
        (lambda: delta_of([], -1.0), "epsilon"),
        (lambda: epsilon(noise_multiplier=0.0, sampling_rate=0.1, steps=1, delta=1e-6), "noise_multiplier"),
        (lambda: epsilon(noise_multiplier=1.0, sampling_rate=2.0, steps=1, delta=1e-6), "sampling_rate"),
        (lambda: epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=-1, delta=1e-6), "steps"),
        (lambda: epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=1e30, delta=1e-6), "steps"),
        (
            lambda: epsilon(noise_multiplier=10**400, sampling_rate=0.1, steps=1, delta=1e-6),
            "noise_multiplier",
        ),
        (lambda: epsilon_of([(GaussianDpEvent(1.0), 10**30)], 1e-6), "count"),
        (lambda: max_steps(step_event=NoOpDpEvent(), target_epsilon=1.0, target_delta=1e-6), "step_event"),
        (
            lambda: max_steps(step_event=GaussianDpEvent(1.0), target_epsilon=0.0, target_delta=1e-6),
            "target_epsilon",
        ),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call()
