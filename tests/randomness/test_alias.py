from fractions import Fraction

import numpy as np
import pytest

from sparsedp.randomness.alias import alias_columns, wide_alias_columns


def probabilities(thresholds, outcomes, capacity):
    """Of each outcome, summed over the columns."""
    found = [Fraction(0)] * len(thresholds)
    for column, (threshold, (own, alias)) in enumerate(zip(thresholds, outcomes, strict=True)):
        assert own == column
        found[own] += Fraction(threshold, capacity * len(thresholds))
        found[alias] += Fraction(capacity - threshold, capacity * len(thresholds))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_whole_weights_are_met_exactly(seed):
    generator = np.random.default_rng(seed)
    columns, bits = 16, 5
    cuts = np.sort(generator.integers(0, (columns << bits) + 1, columns - 1))
    weights = np.diff(np.concatenate([[0], cuts, [columns << bits]])).astype(np.int64)
    thresholds, outcomes = alias_columns(weights, bits)
    found = probabilities(thresholds.tolist(), outcomes.reshape(-1, 2).tolist(), 1 << bits)
    assert found == [Fraction(int(w), columns << bits) for w in weights]


def test_weights_that_do_not_fill_the_columns_are_refused():
    with pytest.raises(ValueError, match="weights: must add up"):
        alias_columns(np.array([1, 2], dtype=np.int64), 3)


@pytest.mark.parametrize("smallest", [1.0, 2.0**-30, 2.0**-90])
def test_wide_columns_are_right_far_below_what_a_word_resolves(smallest):
    weights = np.geomspace(smallest, 1.0, 11)
    high, low, alias = wide_alias_columns(weights, 4)
    thresholds = [(int(h) << 64) | int(lo) for h, lo in zip(high, low, strict=True)]
    # A full column is written with the largest number there is, and is its own alias.
    thresholds = [
        t + 1 if t == 2**128 - 1 and a == i else t
        for i, (t, a) in enumerate(zip(thresholds, alias, strict=True))
    ]
    found = probabilities(thresholds, list(enumerate(alias.tolist())), 1 << 128)
    total = sum(Fraction(w) for w in weights.tolist())
    for got, weight in zip(found, weights.tolist(), strict=False):
        assert abs(got / (Fraction(weight) / total) - 1) < Fraction(1, 2**40)
    assert not any(found[11:])
