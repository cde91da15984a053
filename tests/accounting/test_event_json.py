import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event as e

from sparsedp.accounting.event_json import event_from_json, event_key, event_to_json
from sparsedp.accounting.events import BoundedRangeGaussianDpEvent, SparseVectorDpEvent

STEP = e.PoissonSampledDpEvent(0.01, e.GaussianDpEvent(0.7))
EVENTS = [
    STEP,
    e.GaussianDpEvent(math.inf),
    e.GaussianDpEvent(0.1 + 0.2),
    e.ComposedDpEvent((STEP, e.SelfComposedDpEvent(e.LaplaceDpEvent(3.0), 7))),
    e.PoissonSampledDpEvent(1e-9, BoundedRangeGaussianDpEvent(5, 0.1, 2.0)),
    BoundedRangeGaussianDpEvent(5, 0.1),
    SparseVectorDpEvent(3, 1.0, 2.0),
    e.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0, 2.0), (0.81, 0.18, 0.01)),
    e.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 150, 1.5),
    e.DiscreteLaplaceDpEvent(0.5, 2),
    e.RepeatAndSelectDpEvent(e.ZCDpEvent(0.1), 5.0, math.inf),
    e.NoOpDpEvent(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back_from_strict_json_as_they_were(event):
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event
    assert event_key(event_from_json(json.loads(text))) == event_key(event)
    hash(event_from_json(json.loads(text)))


def test_numpy_numbers_and_arrays_are_recorded_as_plain_ones():
    event = e.MixtureOfGaussiansDpEvent(np.float64(2.0), np.array([0, 1]), (np.float32(0.5), 0.5))
    assert event_key(event) == event_key(e.MixtureOfGaussiansDpEvent(2.0, [0, 1], [0.5, 0.5]))


def test_events_that_differ_have_different_keys():
    assert len({event_key(event) for event in EVENTS}) == len(EVENTS)
    assert event_key(e.GaussianDpEvent(1.0)) != event_key(e.LaplaceDpEvent(1.0))


def test_what_cannot_be_read_back_is_not_written():
    class Foreign(e.DpEvent):
        pass

    with pytest.raises(ValueError, match="event must be a known DpEvent"):
        event_to_json(Foreign())
    with pytest.raises(ValueError, match="noise_multiplier must be a number, got NaN"):
        event_to_json(e.GaussianDpEvent(math.nan))
    with pytest.raises(ValueError, match="noise_multiplier cannot be recorded"):
        event_to_json(e.GaussianDpEvent(None))


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "GaussianDpEvent",
        {},
        {"type": "os"},
        {"type": "DpEvent"},
        {"type": ["GaussianDpEvent"]},
        {"type": "GaussianDpEvent"},
        {"type": "GaussianDpEvent", "noise_multiplier": 1.0, "more": 1},
        {"type": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": {"type": "Missing"}},
        {"type": "GaussianDpEvent", "noise_multiplier": {"float": "nan"}},
    ],
    ids=str,
)
def test_the_reader_is_strict(data):
    with pytest.raises(ValueError, match="event"):
        event_from_json(data)
