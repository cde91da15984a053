import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from sparsedp.accounting import GaussianDpEvent, analytic_gaussian_sigma, epsilon_of
from sparsedp.audit import audit
from sparsedp.core.counts import SparseCounts
from sparsedp.data.partition_selection import PartitionSelection, PublicValues
from sparsedp.data.rules import KEY_BITS
from sparsedp.data.vocabulary import count_keys
from sparsedp.randomness import NoiseSource

SELECTION = PartitionSelection(epsilon=1.0, delta=1e-5, features=26)


def keys_side_by_side(count, copies):
    ids = np.arange(copies)
    return SparseCounts(ids, np.full(copies, float(count)), copies)


def test_the_price_is_one_gaussian_of_the_stated_epsilon():
    assert SELECTION.event == GaussianDpEvent(SELECTION.std / math.sqrt(26))
    assert epsilon_of([(SELECTION.event, 1)], 1e-5) == pytest.approx(1.0, rel=1e-3)
    assert SELECTION.std == pytest.approx(math.sqrt(26) * analytic_gaussian_sigma(1.0, 1e-5))


def test_no_example_moves_the_counts_by_more_than_the_root_of_the_features():
    """The worst an example can do: a value of its own in every feature; missing values and collisions do less."""
    random = np.random.default_rng(0)
    for _ in range(200):
        rows = [
            random.integers(0, 2**64, 5, np.uint64) * random.integers(0, 2, 5, np.uint64) for _ in range(26)
        ]
        with_row, without = (count_keys([column[start:] for column in rows]) for start in (0, 1))
        totals = dict(zip(with_row.ids.tolist(), with_row.values.tolist(), strict=True))
        for key, count in zip(without.ids.tolist(), without.values.tolist(), strict=True):
            totals[key] -= count
        moved = math.sqrt(sum(count**2 for count in totals.values()))
        assert moved <= math.sqrt(26) + 1e-12
        assert moved == pytest.approx(math.sqrt(sum(column[0] != 0 for column in rows)))


@pytest.mark.parametrize("offset", [-20, 0, 20])
def test_values_are_listed_as_often_as_their_count_says(offset):
    runs, count = 20_000, round(SELECTION.threshold) + offset
    listed = len(SELECTION.select(keys_side_by_side(count, runs), NoiseSource(seed=3)))

    def plausible(std):
        chance = ndtr((count - SELECTION.threshold) / std)
        return binom.cdf(listed, runs, chance) > 1e-9 and binom.sf(listed - 1, runs, chance) > 1e-9

    assert plausible(SELECTION.std)
    if offset:
        assert not plausible(SELECTION.std / math.sqrt(26))
        assert not plausible(1.15 * SELECTION.std)


def test_values_that_nobody_has_are_listed_about_as_often_as_planned():
    chosen = SELECTION.select(SparseCounts.zeros(SELECTION.size), NoiseSource(seed=5))
    assert 40 < len(chosen) < 170  # Poisson(100): both tails below 1e-8
    assert len(np.unique(chosen >> KEY_BITS)) > 15


class NoiseForOneFeature(PartitionSelection):
    """What forgetting that an example has a value in each feature comes to: the noise of sensitivity 1."""

    @property
    def std(self):
        return super().std / math.sqrt(self.features)


def audited(selection):
    """Counts at the threshold, against the same with one example more that has all the 26 values."""

    def listed_of_26(count, stream, runs):
        found = selection.select(keys_side_by_side(count, 26 * runs), SimpleNamespace(selection=stream))
        bits = np.zeros(26 * runs)
        bits[found] = 1
        return bits.reshape(runs, 26).sum(axis=1)

    count = round(selection.threshold)
    stream = NoiseSource(seed=11).selection
    return audit(listed_of_26, (count, count + 1), runs=40_000, delta=1e-5, claimed=1.0, stream=stream)


def test_an_audit_does_not_refute_the_claim():
    assert not audited(SELECTION).refuted


def test_the_same_audit_refutes_noise_for_one_feature_only():
    assert audited(NoiseForOneFeature(1.0, 1e-5, 26)).refuted


def test_the_statement_is_complete_and_knows_a_seed():
    said = SELECTION.statement(NoiseSource())
    assert (said.epsilon, said.delta, said.adjacency, said.unit) == (
        1.0,
        1e-5,
        "add-or-remove-one",
        "example",
    )
    assert "26 features" in said.released
    assert said.private
    assert "NOT PRIVATE" in str(SELECTION.statement(NoiseSource(seed=1)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": 0.0}, "vocabulary epsilon"),
        ({"epsilon": math.nan}, "vocabulary epsilon"),
        ({"epsilon": math.inf}, "vocabulary epsilon"),
        ({"delta": 0.0}, "vocabulary delta"),
        ({"delta": 1.0}, "vocabulary delta"),
        ({"features": 0}, "features"),
        ({"false_positives": 0.0}, "false_positives"),
    ],
)
def test_bad_parameters_are_named(change, said):
    with pytest.raises(ValueError, match=rf"^{said} must"):
        PartitionSelection(**{"epsilon": 1.0, "delta": 1e-5, "features": 2} | change)


def test_public_values_are_those_with_the_count():
    counts = SparseCounts(np.array([1, 4, 7]), np.array([9.0, 10.0, 11.0]), 10)
    assert PublicValues(10, 2).select(counts).tolist() == [4, 7]
    with pytest.raises(ValueError, match=r"^minimum"):
        PublicValues(0, 2)
