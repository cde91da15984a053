import math
from itertools import accumulate

import pytest

from sparsedp.accounting.ledger import step_reserver as ledger_stepper
from sparsedp.accounting.ledger.step_reserver import StepReserver


def batches_of(seconds_to_disk, seconds_a_step, steps, monkeypatch, reserve=None, planned=0):
    """The sizes of the reservations made on a pretended disk by pretended steps."""
    now = 0.0
    batches = []

    def enter(wanted):
        nonlocal now
        now += seconds_to_disk
        batches.append(wanted)
        return wanted, seconds_to_disk

    monkeypatch.setattr(ledger_stepper.time, "monotonic", lambda: now)
    step = StepReserver("event", enter, lambda taken, unused: None, reserve=reserve, planned=planned)
    for _ in range(steps):
        step()
        now += seconds_a_step
    return batches


def test_an_ordinary_disk_gets_one_step_at_a_time(monkeypatch):
    assert batches_of(0.0001, 0.01, 900, monkeypatch, planned=900) == [1] * 900


@pytest.mark.parametrize("planned", [0, 20_000])
@pytest.mark.parametrize(("disk", "step"), [(0.0, 0.001), (0.0004, 0.01), (0.015, 0.005), (10.0, 0.001)])
def test_a_crash_never_loses_more_than_a_hundredth_of_the_run(monkeypatch, disk, step, planned):
    batches = batches_of(disk, step, 20_000, monkeypatch, planned=planned)
    for before, batch in zip(accumulate(batches, initial=0), batches, strict=False):
        assert batch <= max(1, max(planned, before + 1) / 100)
    # Nor is it one record a step for ever: the file stays small, however long the run.
    assert len(batches) <= 100 / 0.9 + 1000 * (1 if planned else math.log(20_000 / 100))


def test_a_slow_disk_costs_a_fiftieth_of_a_step_where_that_is_possible(monkeypatch):
    for disk, step in [(0.003, 0.005), (0.03, 0.1), (0.003, 0.0001)]:
        batches = batches_of(disk, step, 20_000, monkeypatch, planned=20_000)
        assert disk * len(batches) / 20_000 < max(0.025 * step, 30e-6)


def test_a_reserve_that_was_asked_for_is_kept(monkeypatch):
    assert set(batches_of(10.0, 0.001, 100, monkeypatch, reserve=7)) == {7}


def test_settlement_says_what_was_taken_and_what_was_not():
    settled = []
    step = StepReserver("event", lambda wanted: (wanted, 0.0), lambda *said: settled.append(said), reserve=4)
    for _ in range(6):
        step()
    assert (step.taken, step.unused) == (6, 2)
    assert step.return_unused()
    assert not step.return_unused()
    step()
    assert (step.taken, step.unused) == (7, 3)
    step.close()
    step.close()
    assert settled == [(6, 2), (1, 3)]
