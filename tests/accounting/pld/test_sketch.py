import math

import numpy as np
import pytest

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.pld.pairs import Gaussian, randomized_response
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.accounting.pld.sketch import Sketch


def test_log_mgf_and_moments_of_a_gaussian():
    sketch = Sketch.of([(Gaussian(0.5), 4)], 1e-30)
    # The loss is N(1/2, 1) in all.
    for tilt in (-0.5, 0.0, 2.0):
        assert sketch.log_mgf(tilt) == pytest.approx(tilt / 2 + tilt**2 / 2, abs=1e-3)
        assert sketch.moments(tilt) == pytest.approx((0.5 + tilt, 1.0), rel=1e-3)


def test_the_reverse_is_the_other_direction():
    pair = [(PoissonSampled(Gaussian(1.0), 0.1), 3)]
    forward, backward = Sketch.of(pair, 1e-20), Sketch.of(pair, 1e-20, reverse=True)
    # E_Q e^(-tilt loss) = E_P e^(-(tilt + 1) loss)
    assert backward.log_mgf(2.0) == pytest.approx(forward.log_mgf(-3.0), rel=1e-3)


def test_the_renyi_estimate_is_near_the_truth():
    tilt, epsilon = Sketch.of([(Gaussian(0.1), 100)], 1e-30).tilt_for_delta(1e-6)
    exact = analytic_gaussian_epsilon(1e-6, 1.0)
    assert exact < epsilon < 1.15 * exact
    # There the tilted mean is about epsilon.
    assert 0.5 + tilt == pytest.approx(epsilon, rel=0.1)
    assert Sketch.of([(Gaussian(0.1), 1)], 1e-30).tilt_for_delta(0.4) == (0.0, 0.0)


def test_bounded_losses_give_a_finite_tilt():
    tilt, log_delta = Sketch.of([(randomized_response(0.1), 3)], 1e-30).tilt_for_epsilon(5.0)
    assert math.isfinite(tilt)
    assert log_delta == -690.0


def test_rounding_is_the_variance_of_rounding():
    (part,) = Sketch.of([(Gaussian(1.0), 7)], 1e-12).parts
    assert part.rounding(0.0, 0.01) == pytest.approx(7 * 0.01**2 / 6, rel=0.1)
    (atoms,) = Sketch.of([(randomized_response(0.5), 7)], 1e-12).parts
    assert atoms.rounding(0.0, 0.25) == pytest.approx(0, abs=1e-12)  # on the grid


def test_activity_counts_what_leaves_its_point():
    still = Sketch.of([(PoissonSampled(Gaussian(1.0), 1e-6), 1000)], 1e-20)
    assert 1 <= still.activity([0.1]) < 1.1
    assert Sketch.of([(Gaussian(1.0), 1000)], 1e-20).activity([1e-4]) > 990
    assert Sketch.of([(Gaussian(1.0), 1)], 1e-20).activity([1e-4]) == 0


def test_a_gentle_tilt_is_no_more_than_needed():
    sketch = Sketch.of([(Gaussian(0.1), 100)], 1e-30)
    assert sketch.gentle_tilt(5.0, 5.5, -1.0) == 0
    tilt = sketch.gentle_tilt(5.0, 5.5, 10.0)
    assert 0 < tilt < 5
    assert sketch.log_mgf(tilt) - 5.5 * tilt <= -10
    assert sketch.gentle_tilt(5.0, 5.5, 1000.0) <= 5


def test_the_ladder_covers_the_window():
    sketch = Sketch.of([(Gaussian(1.0), 1)], 1e-60)
    low, high = sketch.window(1e-30)
    assert low == pytest.approx(-high, rel=1e-6)
    assert 11 < high < 14  # 1/2 and 11.5 standard deviations
    means = [sketch.moments(tilt)[0] for tilt in sketch.ladder(low, high, 4.0)]
    assert min(means) - 4 <= low
    assert max(means) + 4 >= high
    assert np.diff(sorted(means)).max() < 4.5
