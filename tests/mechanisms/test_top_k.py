import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.audit.distinguishing import audit, exact_epsilon, repeated
from sparsedp.mechanisms import (
    top_k_gaussian,
    top_k_gaussian_event,
    top_k_gumbel,
    top_k_laplace,
)

IDS, COUNTS, SIZE = np.array([1, 4]), np.array([2.0, 1.0]), 6
FORMS = {
    "gaussian": (lambda **more: top_k_gaussian(IDS, COUNTS, SIZE, std=1.5, **more), "normal", 1.5),
    "laplace": (
        lambda **more: top_k_laplace(IDS, COUNTS, SIZE, epsilon=2.0, sensitivity=3.0, **more),
        "laplace",
        1.5,
    ),
    "gumbel": (lambda **more: top_k_gumbel(IDS, COUNTS, SIZE, epsilon=0.8, **more), "gumbel", 1.25),
}


def dense_top_k(noise, scale, k, stream, runs):
    """The textbook: noise on every row, the k largest; each set as a bit pattern."""
    dense = np.zeros(SIZE)
    dense[IDS] = COUNTS
    noisy = dense + scale * getattr(stream, noise)((runs, SIZE))
    return (1 << np.argsort(noisy, axis=1)[:, SIZE - k :]).sum(axis=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_law_is_that_of_the_dense_form(form, k, stream, same_law):
    sparse, noise, scale = FORMS[form]
    found = np.array([(1 << sparse(k=k, stream=stream)).sum() for _ in range(3_000)])
    assert same_law(found, dense_top_k(noise, scale, k, stream, 100_000))
    assert not same_law(found, dense_top_k(noise, 0.5 * scale, k, stream, 100_000))


@pytest.mark.parametrize("form", FORMS)
def test_all_rows_and_no_touched_rows(form, stream):
    sparse, _, _ = FORMS[form]
    assert np.array_equal(sparse(k=SIZE, stream=stream), np.arange(SIZE))
    found = top_k_gaussian([], [], 10**12, k=5, std=1.0, stream=stream)
    assert found.size == 5
    assert np.all(np.diff(found) > 0)


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_one_example_moves_the_joint_histogram_as_stated(examples, data):
    """p = 3 features with one value each: sqrt(p) in l2, p in l1, and all counts by 0 or 1 the same way."""

    def joint(rows):
        return np.array([[sum(row[f] == v for row in rows) for v in range(4)] for f in range(3)]).ravel()

    gone = data.draw(st.integers(0, len(examples) - 1))
    move = joint(examples) - joint(examples[:gone] + examples[gone + 1 :])
    assert np.linalg.norm(move) <= np.sqrt(3) + 1e-12
    assert np.abs(move).sum() <= 3
    assert move.min() >= 0
    assert np.ptp(move) <= 1


def test_audit_of_the_gaussian(stream):
    """p = 4 rows move together; the statistic counts how many of them are among the top."""
    p, others, mu, delta = 4, 60, 1.0, 0.05
    ids = np.arange(p)

    def mechanism(std):
        def once(count, stream):
            return top_k_gaussian(ids, np.full(p, count), p + others, k=p, std=std, stream=stream)

        return repeated(once, lambda found: float((found < p).sum()))

    claimed = analytic_gaussian_epsilon(delta, mu)
    pair, options = (3.0, 2.0), {"runs": 3_000, "delta": delta, "claimed": claimed, "stream": stream}
    assert not audit(mechanism(np.sqrt(p) / mu), pair, **options).refuted
    # Noise for one row where p move together:
    assert audit(mechanism(0.25 * np.sqrt(p) / mu), (2.0, 1.0), **options).refuted


def test_audit_of_the_laplace(stream):
    def once(scale_error):
        return repeated(
            lambda count, stream: top_k_laplace(
                [0], [count], 8, k=1, epsilon=1.0 / scale_error, sensitivity=1.0, stream=stream
            ),
            lambda found: float(found[0] == 0),
        )

    options = {"runs": 8_000, "delta": 0.0, "claimed": 1.0, "stream": stream}
    assert not audit(once(1.0), (3.0, 2.0), **options).refuted
    assert audit(once(0.25), (2.0, 1.0), **options).refuted


def excluded(weight, others, k):
    """P(the heavy row is not among k draws) when ``others`` rows have weight 1."""
    return float(np.prod([(others - t) / (weight + others - t) for t in range(k)]))


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_the_price_of_gumbel_top_k_is_k_epsilon(k):
    """Exact: a heavy row is left out with e^(-k eps) of the probability when its count grows by one."""
    epsilon, others, count = 0.5, 100, 60
    before, after = (excluded(np.exp(epsilon * c), others, k) for c in (count, count + 1))
    assert np.log(before / after) == pytest.approx(k * epsilon, rel=1e-6)


def test_no_pair_of_histograms_costs_more_than_k_epsilon(stream):
    """Exact over all sets, add-or-remove-one; replace-one reaches beyond k epsilon but not (k+1) epsilon."""
    epsilon, k, rows = 0.7, 2, 4

    def law(counts):
        weights = np.exp(epsilon * np.asarray(counts, dtype=float))
        sets = {}
        for order in itertools.permutations(range(rows), k):
            probability = 1.0
            for drawn, row in enumerate(order):
                probability *= weights[row] / np.delete(weights, order[:drawn]).sum()
            sets[frozenset(order)] = sets.get(frozenset(order), 0.0) + probability
        return np.array([sets[key] for key in sorted(sets, key=sorted)])

    worst_add, worst_replace = 0.0, 0.0
    for counts in itertools.product([0, 1, 10, 30], repeat=rows):
        grown = np.array(counts) + np.eye(rows, dtype=int)
        for i in range(rows):
            worst_add = max(worst_add, exact_epsilon(law(counts), law(grown[i])))
        worst_replace = max(worst_replace, exact_epsilon(law(grown[0]), law(grown[1])))
    assert worst_add <= k * epsilon + 1e-9
    assert worst_add > 0.99 * k * epsilon
    assert k * epsilon < worst_replace <= (k + 1) * epsilon + 1e-9


def test_audit_catches_fest_claiming_epsilon_for_k_above_1(stream):
    """FEST's appendix B.1: Gumbel(1/eps), top k = 20, claimed as (eps, 0)-DP."""
    epsilon, k, others = 1.0, 20, 200
    mechanism = repeated(
        lambda count, stream: top_k_gumbel([0], [count], others + 1, k=k, epsilon=epsilon, stream=stream),
        lambda found: float(found[0] == 0),
    )
    printed = audit(mechanism, (3.0, 4.0), runs=16_000, delta=0.0, claimed=epsilon, stream=stream)
    assert printed.refuted
    assert printed.lower_bound == pytest.approx(2.16, abs=0.01)
    exact = np.log(excluded(np.exp(3.0), others, k) / excluded(np.exp(4.0), others, k))
    assert exact == pytest.approx(3.04, abs=0.01)
    assert printed.lower_bound < exact < k * epsilon


def test_event():
    assert top_k_gaussian_event(std=20.0, sensitivity=2.0) == GaussianDpEvent(10.0)


@pytest.mark.parametrize("k", [0, SIZE + 1])
@pytest.mark.parametrize("form", FORMS)
def test_bad_k(form, k, stream):
    with pytest.raises(ValueError, match=r"^k "):
        FORMS[form][0](k=k, stream=stream)


def test_bad_scale(stream):
    with pytest.raises(ValueError, match=r"^std "):
        top_k_gaussian(IDS, COUNTS, SIZE, k=1, std=0.0, stream=stream)
    with pytest.raises(ValueError, match=r"^epsilon "):
        top_k_laplace(IDS, COUNTS, SIZE, k=1, epsilon=-1.0, sensitivity=1.0, stream=stream)
    with pytest.raises(ValueError, match=r"^sensitivity "):
        top_k_laplace(IDS, COUNTS, SIZE, k=1, epsilon=1.0, sensitivity=np.nan, stream=stream)
