from sparsedp.accounting import ledger_stepper
from sparsedp.accounting.ledger_stepper import Stepper


def batches_of(seconds_to_disk, seconds_a_step, steps, monkeypatch, reserve=None):
    """The sizes of the reservations made on a pretended disk by pretended steps."""
    now = 0.0
    batches = []

    def enter(wanted):
        nonlocal now
        now += seconds_to_disk
        batches.append(wanted)
        return wanted, seconds_to_disk

    monkeypatch.setattr(ledger_stepper.time, "monotonic", lambda: now)
    step = Stepper("event", enter, lambda taken, unused: None, reserve=reserve)
    for _ in range(steps):
        step()
        now += seconds_a_step
    return batches


def test_an_ordinary_disk_gets_64_steps_at_a_time(monkeypatch):
    assert set(batches_of(0.0005, 0.005, 1000, monkeypatch)) == {64}


def test_a_slow_disk_costs_less_than_a_hundredth_of_a_step(monkeypatch):
    for disk, step in [(0.015, 0.005), (0.03, 0.1), (0.003, 0.0001)]:
        batches = batches_of(disk, step, 20000, monkeypatch)
        assert disk * len(batches) / 20000 < max(0.01 * step, 50e-6)
        assert max(batches) <= 1024


def test_a_reserve_that_was_asked_for_is_kept(monkeypatch):
    assert set(batches_of(10.0, 0.001, 100, monkeypatch, reserve=7)) == {7}


def test_settlement_says_what_was_taken_and_what_was_not():
    settled = []
    step = Stepper("event", lambda wanted: (wanted, 0.0), lambda *said: settled.append(said), reserve=4)
    for _ in range(6):
        step()
    assert (step.taken, step.unused) == (6, 2)
    assert step.give_back()
    assert not step.give_back()
    step()
    assert (step.taken, step.unused) == (7, 3)
    step.close()
    step.close()
    assert settled == [(6, 2), (1, 3)]
