import math

import numpy as np
import pytest
from dp_accounting import SampledWithoutReplacementDpEvent, UnsupportedDpEvent

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    SparseVectorDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    ZCDpEvent,
)
from sparsedp.accounting.pld.bounded_range import BoundedRange
from sparsedp.accounting.pld.dominating import composition_key, dominating_pairs, merged
from sparsedp.accounting.pld.pairs import Gaussian, NoPrivacy
from sparsedp.accounting.pld.sampling import PoissonSampled


def test_nests_are_flattened_with_their_counts():
    inner = ComposedDpEvent([LaplaceDpEvent(1.0), SelfComposedDpEvent(LaplaceDpEvent(1.0), 4), NoOpDpEvent()])
    nest = [(SelfComposedDpEvent(inner, 3), 2), (LaplaceDpEvent(2.0), 0)]
    assert merged(nest) == [(LaplaceDpEvent(1.0), 30)]


def test_the_order_of_events_does_not_matter():
    one, two = (GaussianDpEvent(1.0), 2), (LaplaceDpEvent(3.0), 5)
    assert merged([one, two]) == merged([two, one])


def mixture(middle, entries=1201):
    """A Gaussian of 1,201 possible shifts, of which numpy prints the first and the last three."""
    shifts = np.linspace(0.0, 1.0, entries)
    shifts[entries // 2] = middle
    return MixtureOfGaussiansDpEvent(1.0, shifts, np.full(entries, 1 / entries))


def test_events_that_only_print_alike_are_two():
    one, two = mixture(0.5), mixture(10.0)
    assert repr(one) == repr(two)
    assert [count for _, count in merged([(one, 2), (two, 3), (one, 4)])] == [6, 3]
    assert composition_key([(one, 1)]) != composition_key([(two, 1)])


def test_events_are_told_apart_to_the_last_bit_whatever_the_print_options():
    near = np.nextafter(1.0, 2.0)
    with np.printoptions(precision=3, suppress=True):
        one, two = (
            MixtureOfGaussiansDpEvent(1.0, np.array([0.0, shift]), np.array([0.5, 0.5]))
            for shift in (1.0, near)
        )
        assert repr(one) == repr(two)
        assert len(merged([(one, 1), (two, 1)])) == 2
        assert composition_key([(one, 1)]) != composition_key([(two, 1)])
    assert len(merged([(GaussianDpEvent(1.0), 1), (GaussianDpEvent(near), 1)])) == 2


def test_the_same_event_is_one_whatever_holds_its_numbers():
    shifts, chances = [0.0, 0.1], [0.9, 0.1]
    forms = [MixtureOfGaussiansDpEvent(1.0, make(shifts), make(chances)) for make in (list, tuple, np.array)]
    assert len({composition_key([(form, 1)]) for form in forms}) == 1
    assert [count for _, count in merged([(form, 1) for form in forms])] == [3]


def test_a_composition_is_known_by_its_counts_too():
    step = GaussianDpEvent(3.0)
    assert composition_key([(step, 2)]) == composition_key([(SelfComposedDpEvent(step, 2), 1)])
    assert composition_key([(step, 2)]) != composition_key([(step, 3)])


def test_gaussians_become_one():
    found = dominating_pairs([(GaussianDpEvent(2.0), 8), (BoundedRangeGaussianDpEvent(0, 0.5, 1.0), 2)])
    assert found == [(Gaussian(2.0), 1)]


def test_gaussians_sampled_at_rate_one_are_gaussians_like_others():
    whole = PoissonSampledDpEvent(1.0, GaussianDpEvent(2.0))
    assert dominating_pairs([(whole, 4), (GaussianDpEvent(1.0), 3)]) == [(Gaussian(2.0), 1)]


def test_a_joint_event_without_draws_is_the_sampled_gaussian():
    joint = PoissonSampledDpEvent(0.01, BoundedRangeGaussianDpEvent(0, 0.5, 2.0))
    assert dominating_pairs([(joint, 7)]) == [(PoissonSampled(Gaussian(0.5), 0.01), 7)]


def test_releases_of_one_batch_are_merged_before_they_are_sampled():
    batch = PoissonSampledDpEvent(0.01, ComposedDpEvent([GaussianDpEvent(1.0), GaussianDpEvent(1.0)]))
    assert dominating_pairs([(batch, 1)]) == [(PoissonSampled(Gaussian(math.sqrt(2)), 0.01), 1)]


def test_different_releases_of_one_batch_are_one_pair_too():
    # The product is sampled as a whole: from each part sampled apart, delta at 0 would add up to more.
    batch = ComposedDpEvent([LaplaceDpEvent(2.0), GaussianDpEvent(1.0)])
    ((pair, count),) = dominating_pairs([(PoissonSampledDpEvent(0.25, batch), 5)])
    assert (pair.rate, count) == (0.25, 5)
    (laplace, _), (gaussian, _) = dominating_pairs([(batch, 1)])
    whole, alone = pair.pair.cells(np.zeros(1))[0], gaussian.cells(np.zeros(1))[0]
    assert whole[1] > alone[1] + 0.01
    assert whole[1] > laplace.cells(np.zeros(1))[0][1] + 0.01


def test_events_that_say_nothing_cost_nothing():
    silent = [
        NoOpDpEvent(),
        GaussianDpEvent(math.inf),
        BoundedRangeGaussianDpEvent(5, 0.0),
        PoissonSampledDpEvent(0.0, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(0.5, NoOpDpEvent()),
    ]
    assert dominating_pairs([(event, 3) for event in silent]) == []


def test_draws_alone():
    assert dominating_pairs([(BoundedRangeGaussianDpEvent(3, 0.5), 4)]) == [(BoundedRange(0.5), 12)]


def test_a_batch_that_is_published_costs_its_sampling_rate():
    for inside in (
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        GaussianDpEvent(1e-200),
        LaplaceDpEvent(1e-200),
    ):
        ((pair, count),) = dominating_pairs([(PoissonSampledDpEvent(0.1, inside), 3)])
        assert count == 3
        assert pair.infinity == pytest.approx(0.1)
        assert pair.p.sum() == pytest.approx(0.9)
        assert pair.losses == pytest.approx([math.log(0.9)])


@pytest.mark.parametrize("sigma", [1e100, 1e200, 1e300])
def test_more_noise_than_floats_can_square(sigma):
    ((pair, _),) = dominating_pairs([(GaussianDpEvent(sigma), 4)])
    assert pair.mu == pytest.approx(2 / sigma, rel=1e-12)


@pytest.mark.parametrize(
    "event",
    [
        NonPrivateDpEvent(),
        GaussianDpEvent(1e-200),
        LaplaceDpEvent(1e-320),
        PureDpEvent(1e200),
        BoundedRangeGaussianDpEvent(3, 0.1, 1e-300),
        BoundedRangeGaussianDpEvent(3, 1e200),
        SparseVectorDpEvent(3, 1e-320, 10.0),
        SparseVectorDpEvent(3, 10.0, 10.0, 1e-200),
        DiscreteLaplaceDpEvent(1e200, 3),
        RandomizedResponseDpEvent(0.0, 4),
        MixtureOfGaussiansDpEvent(1e-300, (1.0,), (1.0,)),
        MixtureOfGaussiansDpEvent(0.0, (1.0,), (1.0,)),
        TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1e-300),
        ZCDpEvent(math.inf),
        ZCDpEvent(0.1, 1e200),
        GaussianDpEvent(0.0),
        LaplaceDpEvent(0.0),
        PoissonSampledDpEvent(1.0, GaussianDpEvent(0.0)),
    ],
)
def test_publishing_the_data_has_no_pair(event):
    with pytest.raises(NoPrivacy):
        dominating_pairs([(event, 1)])


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0)), "SampledWithoutReplacementDpEvent"),
        (PoissonSampledDpEvent(0.1, UnsupportedDpEvent()), "UnsupportedDpEvent"),
        (PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)), "sampling_probability"),
        (GaussianDpEvent(-1.0), "noise_multiplier"),
        (GaussianDpEvent(math.nan), "noise_multiplier"),
        (LaplaceDpEvent(math.nan), "noise_multiplier"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), 10**30), "count must be at most"),
        (
            SelfComposedDpEvent(SelfComposedDpEvent(LaplaceDpEvent(1.0), 10**9), 10**9),
            "count must be at most",
        ),
        (BoundedRangeGaussianDpEvent(10**13, 0.1), "count must be at most"),
        (DiscreteLaplaceDpEvent(0.1, 10**30), "sensitivity"),
        (RandomizedResponseDpEvent(0.1, 10**30), "num_buckets"),
        (TruncatedSubsampledGaussianDpEvent(10**30, 0.1, 20, 1.0), "dataset_size"),
        (MixtureOfGaussiansDpEvent(math.nan, (1.0,), (1.0,)), "standard_deviation"),
        (ZCDpEvent(-1.0), "rho"),
        (ZCDpEvent(math.nan), "rho"),
        (ZCDpEvent(0.1, -1.0), "xi"),
        (RepeatAndSelectDpEvent(ZCDpEvent(0.1), 0.5, 1.0), "mean"),
        (RepeatAndSelectDpEvent(ZCDpEvent(0.1), math.inf, 1.0), "mean"),
        (RepeatAndSelectDpEvent(ZCDpEvent(0.1), 3.0, -1.0), "shape"),
        (RepeatAndSelectDpEvent(ZCDpEvent(0.1), 3.0, 1e200), "shape"),
        (RepeatAndSelectDpEvent(ZCDpEvent(-0.1), 3.0, 1.0), "rho"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), -1), "count"),
        ("gaussian", "event must be a DpEvent"),
    ],
)
def test_what_has_no_pair_is_named(event, message):
    with pytest.raises(ValueError, match=message):
        dominating_pairs([(event, 1)])


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="count"):
        dominating_pairs([(ZCDpEvent(0.1), -1)])
