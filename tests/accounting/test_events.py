import math

import pytest

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.accounting.events import DpEvent


@pytest.mark.parametrize(
    "event",
    [PureDpEvent(0.5), BoundedRangeGaussianDpEvent(3, 0.1, 2.0), SparseVectorDpEvent(4, 10.0, 20.0, 30.0)],
)
def test_our_events_are_values(event):
    assert isinstance(event, DpEvent)
    assert event == type(event)(
        **{name: getattr(event, name) for name in event.__slots__ if name != "__weakref__"}
    )
    assert hash(event) == hash(eval(repr(event)))
    assert PoissonSampledDpEvent(0.1, event) == PoissonSampledDpEvent(0.1, event)
    with pytest.raises(AttributeError):
        event.epsilon = 1.0


def test_a_round_of_sparse_vector():
    assert SparseVectorDpEvent(7, 10.0, 40.0).round_epsilon == pytest.approx(1 / 10 + 2 / 40)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PureDpEvent(-1.0), "epsilon"),
        (lambda: PureDpEvent(math.inf), "epsilon"),
        (lambda: BoundedRangeGaussianDpEvent(-1, 0.1), "draws"),
        (lambda: BoundedRangeGaussianDpEvent(1.5, 0.1), "draws"),
        (lambda: BoundedRangeGaussianDpEvent(1, -0.1), "epsilon"),
        (lambda: BoundedRangeGaussianDpEvent(1, 0.1, 0.0), "noise_multiplier"),
        (lambda: SparseVectorDpEvent(0, 1.0, 1.0), "positives"),
        (lambda: SparseVectorDpEvent(1, 0.0, 1.0), "threshold_scale"),
        (lambda: SparseVectorDpEvent(1, 1.0, math.nan), "query_scale"),
        (lambda: SparseVectorDpEvent(1, 1.0, 1.0, -1.0), "answer_scale"),
    ],
)
def test_bad_arguments_are_named(make, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        make()
