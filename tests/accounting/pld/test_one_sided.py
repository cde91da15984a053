import math

import pytest

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.pld.one_sided import Grids, OneSidedPld, PldEstimate
from sparsedp.accounting.pld.pairs import Gaussian


def direction(pairs, tolerance, epsilon, delta):
    outline = PldEstimate.of(pairs, reverse=False, log_delta=math.log(delta))
    saddle, _ = outline.sketch.tilt_for_delta(delta)
    grids = outline.grids(epsilon=epsilon, saddle=saddle, decay=saddle, tolerance=tolerance)
    return OneSidedPld.towards(outline, grids, epsilon=epsilon, log_delta=math.log(delta), saddle=saddle)


@pytest.mark.parametrize(
    "pairs", [[(Gaussian(0.01), 10_000)], [(Gaussian(0.008), 10_000), (Gaussian(0.6), 1)]]
)
@pytest.mark.parametrize("tolerance", [0.1, 1e-2, 1e-3])
def test_the_grid_keeps_the_tolerance_and_is_not_much_finer(pairs, tolerance):
    exact = analytic_gaussian_epsilon(1e-6, 1.0)
    found = direction(pairs, tolerance, exact, 1e-6)
    epsilon = found.compose(found.grids).epsilon_at(1e-6)
    assert exact < epsilon <= exact + 1.5 * tolerance
    assert epsilon > exact + tolerance / 64


def test_blocks_of_copies_agree_with_all_at_once(monkeypatch):
    exact = analytic_gaussian_epsilon(1e-6, 1.0)
    found = direction([(Gaussian(0.01), 10_000)], 1e-2, exact, 1e-6)
    at_once = found.compose(found.grids).epsilon_at(1e-6)
    monkeypatch.setattr("sparsedp.accounting.pld.one_sided._AT_ONCE", 100)
    blocks = found.compose(found.grids)
    assert blocks.step > found.grids.steps[0]
    assert at_once <= blocks.epsilon_at(1e-6) <= exact + 2e-2


@pytest.mark.parametrize("count", [10_000, 10_040])
def test_no_copy_is_left_out_of_the_blocks(count, monkeypatch):
    # 10,040 is 100 blocks of 100 and 40 more, which a hundredth of a standard deviation would show.
    exact = analytic_gaussian_epsilon(1e-6, 0.01 * math.sqrt(count))
    found = direction([(Gaussian(0.01), count)], 1e-4, exact, 1e-6)
    monkeypatch.setattr("sparsedp.accounting.pld.one_sided._AT_ONCE", 100)
    assert exact < found.compose(found.grids).epsilon_at(1e-6) <= exact + 2e-4


def test_what_is_too_large_is_coarsened():
    found = direction([(Gaussian(0.01), 10_000)], 1e-3, 4.0, 1e-6)
    loss, grids = found.compose_affordably(Grids((2**-40,), 2**-34))
    assert grids.steps[0] > 2**-40
    assert len(loss.weights) < 1 << 21
    assert loss.epsilon_at(1e-6) == pytest.approx(analytic_gaussian_epsilon(1e-6, 1.0), rel=1e-4)
