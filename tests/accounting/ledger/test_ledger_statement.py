"""What a ledger refuses, and what its statement covers."""

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent
from support.ledgers import ONCE, STEP

from sparsedp.accounting.calibration import epsilon_of
from sparsedp.accounting.ledger import Ledger
from sparsedp.accounting.users import user_step_event, user_unit


def test_a_ledger_opened_for_reading_cannot_be_written(tmp_path):
    path = tmp_path / "data.ledger"
    Ledger.open(path).spend(ONCE)
    path.chmod(0o444)
    ledger = Ledger.read(path)
    for attempt in (lambda: ledger.spend(ONCE), lambda: ledger.step_reserver(STEP)):
        with pytest.raises(ValueError, match="reading only"):
            attempt()


@pytest.mark.parametrize("count", [0, -1, 1.5, True, float("nan")])
def test_counts_and_reserves_must_be_whole_and_positive(tmp_path, count):
    ledger = Ledger.open(tmp_path / "data.ledger")
    with pytest.raises(ValueError, match="count"):
        ledger.spend(ONCE, count)
    with pytest.raises(ValueError, match="reserve"):
        ledger.step_reserver(STEP, reserve=count)


def test_an_event_that_cannot_be_recorded_is_refused_before_the_first_step(tmp_path):
    ledger = Ledger.open(tmp_path / "data.ledger")
    for attempt in (ledger.spend, ledger.step_reserver):
        with pytest.raises(ValueError, match="NaN"):
            attempt(GaussianDpEvent(float("nan")))
    assert ledger.events() == []


def test_budget_and_unit_are_fixed_when_the_ledger_is_made(tmp_path):
    path = tmp_path / "data.ledger"
    Ledger.open(path, budget=(1, 1e-6), unit="user (at most 3 rows)")
    assert Ledger.open(path).budget == (1.0, 1e-6)
    assert Ledger.open(path, budget=(1.0, 1e-6)).unit == "user (at most 3 rows)"
    with pytest.raises(ValueError, match=r"budget of the ledger .* is \(1.0, 1e-06\), not \(2.0, 1e-06\)"):
        Ledger.open(path, budget=(2.0, 1e-6))
    with pytest.raises(ValueError, match="unit of the ledger"):
        Ledger.open(path, unit="example")
    without = tmp_path / "without.ledger"
    Ledger.open(without)
    with pytest.raises(ValueError, match=r"budget of the ledger .* is None"):
        Ledger.open(without, budget=(1.0, 1e-6))


@pytest.mark.parametrize(
    "budget", [(-1, 1e-6), (0, 1e-6), (float("nan"), 1e-6), (1, 1), (1, 0), (1, float("nan"))]
)
def test_a_senseless_budget_is_refused_and_makes_no_file(tmp_path, budget):
    with pytest.raises(ValueError, match="budget"):
        Ledger.open(tmp_path / "data.ledger", budget=budget)
    assert not list(tmp_path.iterdir())


def test_the_statement_covers_all_runs(tmp_path):
    path = tmp_path / "data.ledger"
    with pytest.raises(ValueError, match="delta must be given"):
        Ledger.open(tmp_path / "without.ledger").statement()
    with Ledger.open(path, budget=(3.0, 1e-6), run="model a") as ledger:
        assert ledger.statement().epsilon == 0
        ledger.spend(ONCE)
    with Ledger.open(path, run="model b") as ledger:
        ledger.spend(ONCE, 3)
        statement = ledger.statement()
    assert statement.epsilon == pytest.approx(epsilon_of([(ONCE, 4)], 1e-6))
    assert statement.delta == 1e-6
    assert (statement.adjacency, statement.unit) == ("add-or-remove-one", "example")
    assert "model a, model b" in statement.released
    assert statement.private
    assert Ledger.read(path).statement(1e-4).epsilon < statement.epsilon
    with pytest.raises(ValueError, match="delta"):
        ledger.statement(1.0)


def test_nested_events_read_back_cost_what_they_cost(tmp_path):
    path = tmp_path / "data.ledger"
    events = [(user_step_event(1.0, 0.01, 3), 10), (ComposedDpEvent([ONCE, LaplaceDpEvent(30.0)]), 2)]
    with Ledger.open(path, unit=user_unit(3)) as ledger:
        for event, count in events:
            ledger.spend(event, count)
    statement = Ledger.read(path).statement(1e-6)
    assert statement.epsilon == pytest.approx(epsilon_of(events, 1e-6))
    assert statement.unit == "user (at most 3 rows)"


def test_a_seeded_run_marks_every_later_statement(tmp_path):
    path = tmp_path / "data.ledger"
    Ledger.open(path, run="demo", private=False).spend(ONCE)
    with Ledger.open(path, run="real") as ledger:
        ledger.spend(ONCE)
    statement = Ledger.read(path).statement(1e-6)
    assert not statement.private
    assert str(statement).startswith("NOT PRIVATE")


def test_a_ledger_for_replaced_records_says_so_and_takes_no_samples(tmp_path):
    path = tmp_path / "convex.ledger"
    with Ledger.open(path, adjacency="replace-one") as ledger:
        ledger.spend(GaussianDpEvent(2.0))
        for event in (STEP, ComposedDpEvent([STEP]), user_step_event(1.0, 0.1, 3)):
            with pytest.raises(ValueError, match=r"^event: the cost of .* is known for add-or-remove-one"):
                ledger.spend(event)
            with pytest.raises(ValueError, match=r"^event: the cost of .* is known for add-or-remove-one"):
                ledger.step_reserver(event)
        assert ledger.events() == [(GaussianDpEvent(2.0), 1)]
    statement = Ledger.read(path).statement(1e-6)
    assert statement.adjacency == "replace-one"
    assert statement.epsilon == epsilon_of([(GaussianDpEvent(2.0), 1)], 1e-6)
    with pytest.raises(ValueError, match=r"adjacency of the ledger .* is replace-one, not add-or-remove-one"):
        Ledger.open(path)  # whoever does not say so means the other one
    Ledger.open(tmp_path / "other.ledger")
    with pytest.raises(ValueError, match=r"adjacency of the ledger .* is add-or-remove-one, not replace-one"):
        Ledger.open(tmp_path / "other.ledger", adjacency="replace-one")
    with pytest.raises(ValueError, match=r"^adjacency must be add-or-remove-one or replace-one"):
        Ledger.open(tmp_path / "third.ledger", adjacency="zero-out")
    assert not (tmp_path / "third.ledger").exists()


def test_the_statement_of_a_ledger_has_the_curve_of_all_its_events(tmp_path):
    with Ledger.open(tmp_path / "data.ledger") as ledger:
        ledger.spend(GaussianDpEvent(2.0), 4)
        assert ledger.statement(1e-6).trade_off.advantage == pytest.approx(0.382925, rel=1e-5)
