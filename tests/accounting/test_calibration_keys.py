"""Results are remembered under everything that they depend on, to the last digit."""

from __future__ import annotations

from typing import Any

import pytest
from support.spies import spy

from sparsedp.accounting import GaussianDpEvent, PoissonSampledDpEvent, cache, calibrate, epsilon_of
from sparsedp.accounting.calibration import max_steps

STEP = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))
NEARLY = 1 + 2.0**-50


def keys(monkeypatch: pytest.MonkeyPatch, questions: list[Any]) -> list[str]:
    """The key under which each question looks for its answer, which is given to it at once."""
    asked = spy(monkeypatch, cache, "load")
    for question in questions:
        try:
            question()
        except Exception as error:
            raise AssertionError("a question failed") from error
    return [call["key"] for call in asked]


def test_an_epsilon_is_that_of_its_events_counts_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        ([(STEP, 10)], 1e-5),
        ([(STEP, 11)], 1e-5),
        ([(STEP, 10)], 1e-5 * NEARLY),
        ([(PoissonSampledDpEvent(0.1 * NEARLY, GaussianDpEvent(1.5)), 10)], 1e-5),
        ([(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5 * NEARLY)), 10)], 1e-5),
        ([(STEP, 10), (GaussianDpEvent(20.0), 1)], 1e-5),
        ([(STEP, 10), (GaussianDpEvent(20.0), 2)], 1e-5),
        ([(GaussianDpEvent(1.5), 10)], 1e-5),
    ]
    found = keys(monkeypatch, [lambda e=e, d=d: epsilon_of(e, d) for e, d in given])
    assert len(set(found)) == len(found) == len(given)


def test_a_sigma_is_that_of_its_target_steps_and_extra_events(monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "sampling_rate": 0.1, "steps": 5}
    changes: list[dict[str, Any]] = [
        {},
        {"target_epsilon": 2.0 * NEARLY},
        {"target_delta": 1e-5 * NEARLY},
        {"sampling_rate": 0.1 * NEARLY},
        {"steps": 6},
        {"extra_events": [GaussianDpEvent(20.0)]},
        {"extra_events": [GaussianDpEvent(20.0)] * 2},
        {"step_event": GaussianDpEvent},
    ]
    found = keys(monkeypatch, [lambda change=change: calibrate(**common | change) for change in changes])
    assert len(set(found)) == len(found) == len(changes)


def test_a_number_of_steps_is_that_of_its_target_step_and_extra_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "step_event": GaussianDpEvent(5.0)}
    changes: list[dict[str, Any]] = [
        {},
        {"target_epsilon": 2.0 * NEARLY},
        {"target_delta": 1e-5 * NEARLY},
        {"step_event": GaussianDpEvent(5.0 * NEARLY)},
        {"extra_events": [GaussianDpEvent(20.0)]},
        {"extra_events": [GaussianDpEvent(20.0)] * 2},
    ]
    found = keys(monkeypatch, [lambda change=change: max_steps(**common | change) for change in changes])
    assert len(set(found)) == len(found) == len(changes)
