"""The statement of a stream is of what its ledgers hold at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.accounting import Ledger, PrivacyStatement, epsilon_of, trade_off_curve
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.runs import RunConfig, RunFolder, resume, stream, streaming
from sparsedp.runs.stream_statement import EVERY_PERIOD, stream_statement

STEP = PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0))


def ledger(path: Path, steps: int, *, private: bool = True) -> Ledger:
    found = Ledger.open(path, run=path.stem, private=private)
    found.spend(STEP, steps)
    return found


def saved(steps: int, delta: float = 1e-5, *, private: bool = True) -> PrivacyStatement:
    """What a period stated at its end."""
    costs = [(STEP, steps)]
    terms = ("add-or-remove-one", "user", "a period", private, ("a note",))
    return PrivacyStatement(epsilon_of(costs, delta), delta, *terms, trade_off_curve(costs))


def test_the_ledger_at_the_end_is_what_users_paid(tmp_path: Path) -> None:
    """Also what was charged after the last period's own statement: epsilon and curve are those of the composition."""
    asked = config("dp-sgd", data="generated:400x4", period=1, unit="user")
    shared = ledger(tmp_path / "run.ledger", 40)
    found = stream_statement(asked, [saved(20, private=False), saved(30)], [shared, shared])
    assert found is not None
    assert (found.epsilon, found.delta) == (epsilon_of([(STEP, 40)], 1e-5), 1e-5)
    assert found.trade_off.advantage == pytest.approx(trade_off_curve([(STEP, 40)]).advantage)
    assert (found.unit, found.released, found.private) == ("user", EVERY_PERIOD, False)
    assert found.notes[0].startswith("2 periods: a user may have rows in each of them")
    assert found.notes[1:] == ("a note",)


def test_of_examples_the_costliest_ledger_counts(tmp_path: Path) -> None:
    """Each at the delta of its own period; stated is the largest of these."""
    asked = config("dp-sgd", data="generated:400x4", period=1)
    ledgers = [ledger(tmp_path / f"{name}.ledger", steps) for name, steps in (("a", 50), ("b", 20))]
    found = stream_statement(asked, [saved(10, 1e-6), saved(20, 1e-5)], ledgers)
    assert found is not None
    assert (found.epsilon, found.delta) == (epsilon_of([(STEP, 50)], 1e-6), 1e-5)
    assert found.trade_off.advantage == pytest.approx(trade_off_curve([(STEP, 50)]).advantage, rel=0.01)
    assert found.private


def test_a_seeded_run_on_the_ledger_makes_the_statement_not_private(tmp_path: Path) -> None:
    asked = config("dp-sgd", data="generated:400x4", period=1)
    found = stream_statement(asked, [saved(10)], [ledger(tmp_path / "a.ledger", 10, private=False)])
    assert found is not None
    assert not found.private


def test_without_privacy_there_is_no_statement() -> None:
    assert stream_statement(config("non-private", period=1), [], []) is None


def examples(_: Path, **changes: Any) -> RunConfig:
    return config("dp-sgd", data="generated:1200x4", period=1, expected_batch_size=100, **changes)


def users(tmp_path: Path, **changes: Any) -> RunConfig:
    return visits_config(prepare_visits(tmp_path), **changes)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("asked", [examples, users])
def test_what_was_charged_after_the_last_period_ended_is_stated(
    asked: Any, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its result; meanwhile the ledger of its first period was charged."""
    given = {"ledger": str(tmp_path / "all.ledger")} if shared else {}

    def dies(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(streaming, "_finish", dies)
        with pytest.raises(KeyboardInterrupt):
            stream(asked(tmp_path, **given), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    own = folder.ledger if asked is users else folder.period(0).ledger
    path = tmp_path / "all.ledger" if shared else own
    Ledger.open(path, run="other").spend(GaussianDpEvent(0.5))
    found = resume(folder.path).statement
    assert found is not None
    assert found["epsilon"] == pytest.approx(epsilon_of(Ledger.read(path).events(), found["delta"]))
    assert found["epsilon"] > 6.0
