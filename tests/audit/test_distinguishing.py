import math

import numpy as np
import pytest
from scipy import stats

from sparsedp.audit import AuditResult, audit, epsilon_lower_bound, exact_epsilon, hockey_stick, repeated
from sparsedp.randomness import NoiseSource


@pytest.fixture
def stream():
    return NoiseSource(seed=11).noise


def randomised_response(epsilon):
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))

    def run(bit, stream, runs):
        lies = stream.uniform(runs) > truthful
        return np.where(lies, 1 - bit, bit).astype(float)

    return run


def test_the_bound_by_hand():
    """Against scipy's own Clopper-Pearson intervals."""
    confidence, runs, delta = 0.99, 1000, 0.01
    p_low = stats.binomtest(700, runs).proportion_ci(0.99).low
    q_high = stats.binomtest(200, runs).proportion_ci(0.99).high
    bound = epsilon_lower_bound(700, 200, runs=runs, delta=delta, confidence=confidence)
    assert bound == pytest.approx(math.log((p_low - delta) / q_high))


@pytest.mark.parametrize(("hits", "other"), [(0, 0), (0, 100), (100, 100), (50, 60)])
def test_no_evidence_is_a_bound_of_zero(hits, other):
    assert epsilon_lower_bound(hits, other, runs=100, delta=0.0) == 0.0


def test_never_and_always():
    assert 3.0 < epsilon_lower_bound(1000, 0, runs=1000, delta=0.0) < 5.0
    assert epsilon_lower_bound(1000, 0, runs=1000, delta=1.0) == 0.0


def test_the_bound_keeps_its_confidence(stream):
    """At confidence 0.9 a true epsilon of 1 is passed in fewer than a tenth of 4000 experiments."""
    runs, p = 500, 0.5
    hits = (stream.uniform((4000, runs)) < p).sum(axis=1)
    other = (stream.uniform((4000, runs)) < p / math.e).sum(axis=1)
    passed = (epsilon_lower_bound(hits, other, runs=runs, delta=0.0, confidence=0.9) > 1.0).mean()
    assert passed < 0.1


def test_audit_finds_the_epsilon_of_randomised_response(stream):
    result = audit(randomised_response(1.5), (1, 0), runs=400_000, delta=0.0, claimed=1.5, stream=stream)
    assert not result.refuted
    assert 1.4 < result.lower_bound < 1.5


def test_audit_can_fail(stream):
    result = audit(randomised_response(1.5), (1, 0), runs=400_000, delta=0.0, claimed=1.3, stream=stream)
    assert result.refuted
    assert "REFUTED" in str(result)
    assert "delta = 0" in str(result)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0)])
def test_both_orders_are_tried(pair, stream):
    """A mechanism that only ever shows a flag for one of the two, at delta 0."""

    def flag(data, stream, runs):
        return (data == 1) & (stream.uniform(runs) < 0.1)

    result = audit(flag, pair, runs=20_000, delta=0.0, claimed=1.0, stream=stream)
    assert result.refuted


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_both_tails_are_tried(sign, stream):
    def run(mean, stream, runs):
        return sign * (mean + stream.normal(runs))

    result = audit(run, (1.0, 0.0), runs=200_000, delta=1e-3, claimed=9.0, stream=stream)
    assert result.lower_bound > 1.5


def test_identical_data_is_never_refuted(stream):
    """The event is chosen among a thousand on one half and bounded on the other: no luck is carried over."""
    for _ in range(60):
        result = audit(
            lambda _, stream, runs: stream.normal(runs),
            (0, 0),
            runs=2_000,
            delta=0.0,
            claimed=0.0,
            stream=stream,
            confidence=1 - 1e-9,
        )
        assert not result.refuted


def test_choosing_on_the_same_runs_would_carry_luck_over(stream):
    """Why the halves are apart: the best of many events, judged on its own runs, is too good too often."""
    lucky = held_out = 0
    for _ in range(150):
        result = audit(
            lambda _, stream, runs: stream.normal(runs),
            (0, 0),
            runs=400,
            delta=0.0,
            claimed=0.0,
            stream=stream,
            confidence=0.5,
        )
        held_out += result.refuted
        first, second = np.sort(stream.normal(200)), np.sort(stream.normal(200))
        thresholds = np.concatenate([first, second])
        hits = [200 - np.searchsorted(sample, thresholds) for sample in (first, second)]
        lucky += bool((epsilon_lower_bound(*hits, runs=200, delta=0.0, confidence=0.5) > 0).any())
    assert held_out / 150 < 0.5 < lucky / 150


def test_repeated_runs_a_mechanism_many_times(stream):
    mechanism = repeated(lambda data, stream: data + stream.normal(2), lambda output: float(output.max()))
    assert mechanism(np.array([1.0, 2.0]), stream, 7).shape == (7,)


def test_exact_epsilon_of_known_pairs():
    p = math.e / (1 + math.e)
    assert exact_epsilon([p, 1 - p], [1 - p, p]) == pytest.approx(1.0)
    assert exact_epsilon([0.5, 0.5], [0.5, 0.5]) == 0.0
    assert exact_epsilon([0.5, 0.5, 0.0], [0.5, 0.4, 0.1]) == math.inf
    assert exact_epsilon([0.5, 0.5, 0.0], [0.5, 0.4, 0.1], delta=0.1) < math.log(0.5 / 0.4)
    assert exact_epsilon([0.9, 0.1], [0.5, 0.5], delta=0.4) == 0.0


def test_exact_epsilon_inverts_the_hockey_stick():
    first, second = stats.binom.pmf(np.arange(31), 30, 0.6), stats.binom.pmf(np.arange(31), 30, 0.4)
    epsilon = exact_epsilon(first, second, delta=0.01)
    assert hockey_stick(first, second, epsilon) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: epsilon_lower_bound(5, 1, runs=4, delta=0.0), "hits"),
        (lambda: epsilon_lower_bound(1, -1, runs=4, delta=0.0), "other_hits"),
        (lambda: epsilon_lower_bound(1.5, 1, runs=4, delta=0.0), "hits"),
        (lambda: epsilon_lower_bound(1, 1, runs=0, delta=0.0), "runs"),
        (lambda: epsilon_lower_bound(1, 1, runs=4, delta=2.0), "delta"),
        (lambda: epsilon_lower_bound(1, 1, runs=4, delta=0.0, confidence=1.0), "confidence"),
        (lambda: exact_epsilon([0.5, 0.4], [0.5, 0.5]), "first"),
        (lambda: exact_epsilon([0.5, 0.5], [1.5, -0.5]), "second"),
        (lambda: exact_epsilon([1.0], [0.5, 0.5]), "second"),
    ],
)
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=f"^{named} "):
        call()


def test_a_mechanism_that_answers_nonsense_is_named(stream):
    with pytest.raises(ValueError, match=r"^mechanism "):
        audit(lambda *_: [1.0], (0, 1), runs=10, delta=0.0, claimed=1.0, stream=stream)


def test_result_is_plain_data():
    result = AuditResult(0.5, 1.0, 0.0, 0.9, "x", (1, 0), 10)
    assert not result.refuted
