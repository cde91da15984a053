from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent

from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.audit.losses import Loss, covered_by, loss_between, query_of


def survivors(ids: list[int], counts: list[float], **changes: float) -> dict[str, object]:
    plain = {"size": 10, "std": 2.0, "threshold": 3.0, "stream": None}
    return {"touched": np.array(ids), "counts": np.array(counts)} | plain | changes


def test_what_events_cover() -> None:
    both = ComposedDpEvent([SparseVectorDpEvent(3, 2.0, 4.0), GaussianDpEvent(0.5)])
    assert covered_by(PoissonSampledDpEvent(0.1, GaussianDpEvent(0.5))) == Loss(squared_shift=4.0)
    assert covered_by(both) == Loss(squared_shift=4.0, pure=3.0)
    assert covered_by(BoundedRangeGaussianDpEvent(5, 0.1, 2.0)) == Loss(0.25, 0.5)
    assert covered_by(MixtureOfGaussiansDpEvent(2.0, [0, 1, 3], [0.5, 0.3, 0.2])) == Loss(2.25)
    assert covered_by(NonPrivateDpEvent()).squared_shift == math.inf
    with pytest.raises(ValueError, match=r"^event LaplaceDpEvent"):
        covered_by(LaplaceDpEvent(1.0))


def test_neighbours_of_different_rows_are_compared_row_by_row() -> None:
    one = query_of("draw_survivors", survivors([1, 4], [3.0, 1.0]))
    other = query_of("draw_survivors", survivors([4, 9], [1.5, 2.0]))
    assert loss_between(one, other).squared_shift == pytest.approx((9 + 0.25 + 4) / 4)
    assert loss_between(one, one) == Loss()


def test_public_arguments_are_compared() -> None:
    one = query_of("draw_survivors", survivors([1], [1.0]))
    other = query_of("draw_survivors", survivors([1], [1.0], threshold=2.0, std=1.0))
    assert one.public_differences(other) == ["std", "threshold"]


def test_selections_by_score() -> None:
    scored = {"size": 10, "k": 4, "epsilon": 0.5, "sensitivity": 0.25, "stream": None}
    one, other = (
        query_of("exponential_top_k", {"ids": np.array([2, 3]), "scores": np.array(scores)} | scored)
        for scores in ([0.2, 0.4], [0.1, 0.6])
    )
    assert loss_between(one, other).bounded_range == pytest.approx(4 * 0.5 * 0.3 / 0.5)
    searched = {"size": 10, "positives": 3, "threshold_scale": 2.0, "query_scale": 4.0, "threshold": 1.0}
    one, other = (
        query_of("sparse_vector", {"ids": np.array([2, 3]), "values": np.array(values)} | searched)
        for values in ([0.2, 0.4], [0.1, 0.6])
    )
    assert loss_between(one, other).pure == pytest.approx(3 * (0.2 / 2 + 2 * 0.2 / 4))


def test_losses_in_words_and_shares() -> None:
    assert str(Loss()) == "nothing"
    assert str(Loss(4.0, 0.5)) == "a shift of 2 noise units and a range of 0.5"
    assert Loss(1.0).share_of(Loss(4.0)) == 0.5
    assert Loss(pure=1.0).share_of(Loss(4.0)) == math.inf
    assert not Loss(pure=1.0).is_within(Loss(4.0), 1.0)
    assert Loss(1.0, 2.0).is_within(Loss(1.0, 2.0), 1.0)
    with pytest.raises(ValueError, match=r"^draw unheard_of"):
        query_of("unheard_of", {})
