import pytest

from sparsedp.accounting.ledger.format import LedgerDamaged
from sparsedp.accounting.ledger.state import LedgerState

RUN = {"kind": "run", "writer": "w", "run": "a", "private": True, "at": "2026-01-01T00:00:00+00:00"}
EVENT = {"kind": "event", "number": 0, "event": {"type": "GaussianDpEvent", "noise_multiplier": 2.0}}
RESERVE = {"kind": "reserve", "writer": "w", "event": 0, "count": 8}
SETTLE = {"kind": "settle", "writer": "w", "event": 0, "taken": 5, "unused": 3}


def book_of(*records):
    state = LedgerState()
    for record in records:
        state.enter(record)
    return state


def total(state):
    return sum(count for *_, count in state.known())


def test_reservations_count_until_their_writer_settles():
    assert total(book_of(RUN, EVENT, RESERVE)) == 8
    settled = book_of(RUN, EVENT, RESERVE, SETTLE)
    assert (total(settled), settled.reserved_steps) == (5, 0)


@pytest.mark.parametrize(
    "record",
    [
        {**SETTLE, "unused": 4},  # more than was reserved
        {**SETTLE, "writer": "x"},  # by someone else
        {**SETTLE, "unused": -3},
        {**RESERVE, "count": -8},
        {**RESERVE, "count": 1.5},
        {**RESERVE, "count": True},
        {**RESERVE, "event": 1},
        {**RESERVE, "writer": "x"},
        {**RESERVE, "more": 1},
        {"kind": "reserve"},
        {"kind": "refund", "count": 8},
        {},
        EVENT,
        {**EVENT, "number": 1},
        {**EVENT, "number": 2, "event": {"type": "LaplaceDpEvent", "noise_multiplier": 1.0}},
    ],
    ids=str,
)
def test_a_record_that_makes_no_sense_is_damage_even_with_a_right_checksum(record):
    state = book_of(RUN, EVENT, RESERVE)
    with pytest.raises(LedgerDamaged, match="ledger"):
        state.enter(record)
    assert total(state) == 8


def test_a_settlement_cannot_be_made_twice():
    state = book_of(RUN, EVENT, RESERVE, SETTLE)
    with pytest.raises(LedgerDamaged, match="more than was reserved"):
        state.enter(SETTLE)


def test_one_time_releases_can_never_be_given_back():
    state = book_of(RUN, EVENT, {"kind": "spend", "writer": "w", "event": 0, "count": 8})
    with pytest.raises(LedgerDamaged, match="more than was reserved"):
        state.enter(SETTLE)
