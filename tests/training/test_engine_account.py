"""What an engine says was spent: over several runs, and after failures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.clicks import clicks, make, train
from support.models import TwoTables
from torch.optim import Optimizer

import sparsedp as sdp
from sparsedp.accounting import (
    BudgetExceeded,
    EpsilonCap,
    GaussianDpEvent,
    Ledger,
    PoissonSampledDpEvent,
    TradeOffCurve,
    epsilon_of,
    trade_off_curve,
)
from sparsedp.selection import adafest
from sparsedp.training import Private
from sparsedp.training import noise as training_noise


def test_the_statement_is_that_of_the_steps_taken() -> None:
    engine, private = make()
    train(private, 7)
    statement = engine.statement(1e-5)
    assert statement.private
    assert statement.adjacency == "add-or-remove-one"
    assert statement.unit == "example"
    expected = epsilon_of([(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 7)], 1e-5)
    assert statement.epsilon == pytest.approx(expected, rel=1e-6)
    curve = trade_off_curve([(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 7)])
    assert statement.trade_off.advantage == pytest.approx(curve.advantage, rel=1e-6)
    assert statement.trade_off.advantage < TradeOffCurve([(statement.epsilon, 1e-5)]).advantage / 2


def test_a_ledger_for_replaced_records_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "convex.ledger"
    ledger = Ledger.open(path, adjacency="replace-one")
    for poisson in (True, False):
        with pytest.raises(ValueError, match=r"^ledger: .* is for replace-one adjacency, and training steps"):
            make(engine=sdp.PrivacyEngine(ledger=ledger), poisson=poisson, expected_batch_size=20)
    with pytest.raises(ValueError, match=r"^adjacency of the ledger .* is replace-one"):
        sdp.PrivacyEngine(ledger=path)
    assert ledger.events() == []


def test_fixed_batches_are_accounted_without_amplification() -> None:
    engine, private = make(poisson=False, expected_batch_size=20)
    train(private, 3)
    assert engine.epsilon(1e-5) == pytest.approx(epsilon_of([(GaussianDpEvent(1.0), 3)], 1e-5), rel=1e-6)
    assert "without amplification" in str(engine.statement(1e-5))


def test_no_noise_and_seeds_are_marked_as_not_private() -> None:
    engine, private = make(noise_multiplier=0.0)
    train(private, 1)
    assert str(engine.statement(1e-5)).startswith("NOT PRIVATE")
    engine, private = make(engine=sdp.PrivacyEngine(seed=1, secure=False))
    train(private, 1)
    assert not engine.statement(1e-5).private


def test_a_detached_engine_keeps_its_account() -> None:
    engine, private = make()
    train(private, 5)
    before = engine.statement(1e-5)
    engine.detach()
    engine.detach()
    assert engine.statement(1e-5) == before
    assert engine.epsilon(1e-5) == before.epsilon > 0
    with pytest.raises(ValueError, match="has no run"):
        _ = engine.session


def test_no_step_follows_a_detach() -> None:
    engine, private = make()
    train(private, 1)
    engine.detach()
    with pytest.raises(RuntimeError, match=r"after engine\.detach"):
        train(private, 1)
    assert private.optimizer.steps_taken == 1


def test_an_engine_that_is_used_again_adds_to_its_account() -> None:
    engine, private = make()
    train(private, 5)
    engine.detach()
    make(engine=engine, noise_multiplier=2.0)
    assert engine.epsilon(1e-5) == epsilon_of([(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 5)], 1e-5)
    engine.detach()
    _, private = make(engine=engine, noise_multiplier=2.0, selection=sdp.DPSGD(lazy=True))
    train(private, 3)
    both = [
        (PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 5),
        (PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 3),
    ]
    assert engine.epsilon(1e-5) == epsilon_of(both, 1e-5)
    assert "after every step; of runs with lazy noise" in engine.statement(1e-5).released


def test_one_run_without_noise_makes_the_whole_account_not_private() -> None:
    engine, private = make(noise_multiplier=0.0)
    train(private, 1)
    engine.detach()
    make(engine=engine)
    assert not engine.statement(1e-5).private


def test_a_target_epsilon_counts_what_the_engine_has_spent() -> None:
    def again(engine: sdp.PrivacyEngine, target: float) -> None:
        model = TwoTables()
        private = engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=clicks(),
            target_epsilon=target,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
        )
        train(private, 10)
        with pytest.raises(BudgetExceeded, match="would pass the budget"):
            train(private, 10)

    engine, private = make()
    train(private, 5)
    engine.detach()
    spent = engine.epsilon(1e-5)
    again(engine, spent + 1.0)
    assert spent + 0.9 < engine.epsilon(1e-5) <= spent + 1.0
    engine.detach()
    with pytest.raises(ValueError, match="target_epsilon"):
        again(engine, spent)


@pytest.mark.parametrize("is_new", [True, False])
def test_another_run_on_the_ledger_that_was_not_private_is_said(is_new: bool, tmp_path: Path) -> None:
    """Also where the run that was not private came upon a ledger that was there."""
    ledger = tmp_path / "data.ledger"
    if not is_new:
        Ledger.open(ledger).close()
    engine, private = make(engine=sdp.PrivacyEngine(seed=1, secure=False, ledger=ledger))
    train(private, 1)
    engine.detach()
    engine, private = make(engine=sdp.PrivacyEngine(ledger=ledger))
    train(private, 1)
    assert not engine.statement(1e-5).private
    assert "another run on the ledger" in str(engine.statement(1e-5))
    engine.detach()


class Stop(Exception):
    pass


def stop(*_: object) -> None:
    raise Stop


def raising(where: str, private: Private, inner: Optimizer) -> None:
    {
        "gradient hook": lambda: private.module.out.weight.register_hook(stop),
        "accumulated": lambda: private.module.out.weight.register_post_accumulate_grad_hook(stop),
        "before the update": lambda: inner.register_step_pre_hook(stop),
        "after the update": lambda: inner.register_step_post_hook(stop),
        "callback": lambda: private.optimizer.callbacks.append(stop),
    }[where]()


@pytest.mark.parametrize("selection", [sdp.AdaFEST(always_on_rows=10), sdp.DPSGD(lazy=True)])
@pytest.mark.parametrize(
    "where", ["gradient hook", "accumulated", "before the update", "after the update", "callback"]
)
def test_a_step_counts_although_something_fails_after_it_was_paid(
    where: str,
    selection: sdp.selection.Selection,
    tmp_path,  # type: ignore[no-untyped-def]
) -> None:
    """Ten noisy updates with an error after each of them are ten steps, on the ledger and without one."""
    for ledger in (None, tmp_path / "data.ledger"):
        model = TwoTables()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        engine, private = make(model, inner, sdp.PrivacyEngine(ledger=ledger), selection=selection)
        raising(where, private, inner)
        for _ in range(10):
            with pytest.raises(Stop):
                train(private, 1)
        assert private.optimizer.steps_taken == 10
        expected = epsilon_of([(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)], 1e-5)
        assert engine.epsilon(1e-5) == expected
        engine.detach()


def test_the_step_is_paid_before_any_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the map's noise nor the gradient's comes before the step is counted."""
    for pieces in (None, 3):
        engine, private = make(noise_multiplier=1.0, physical_batch_size=pieces)
        drawn: list[tuple[str, int]] = []

        def spy(module: object, name: str, drawn=drawn, private=private) -> None:  # type: ignore[no-untyped-def]
            own = getattr(module, name)

            def spied(*args: object, **options: object) -> object:
                drawn.append((name, private.optimizer.steps_taken))
                return own(*args, **options)

            monkeypatch.setattr(module, name, spied)

        spy(adafest, "draw_survivors")
        spy(training_noise, "release_on_lattice")
        train(private, 2)
        assert {step for _, step in drawn} == {1, 2}
        assert [name for name, _ in drawn].count("draw_survivors") == 2
        assert engine.events()[0][1] == 2
        monkeypatch.undo()


@pytest.mark.parametrize("on_ledger", [False, True])
def test_a_given_noise_stays_within_a_cap(on_ledger: bool, tmp_path: Path) -> None:
    """What the ledger has under the run's name counts too: here, a count."""
    step, count = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), GaussianDpEvent(5.0)
    spent = [(count, 1)] if on_ledger else []
    cap = EpsilonCap(epsilon_of([*spent, (step, 6)], 1e-5), 1e-5, planned_steps=6)
    ledger = Ledger.open(tmp_path / "run.ledger") if on_ledger else None
    if ledger is not None:
        ledger.spend(count)
    engine, private = make(engine=sdp.PrivacyEngine(ledger=ledger), selection=sdp.DPSGD(), cap=cap)
    with pytest.raises(BudgetExceeded, match="which is a cap"):
        train(private, 10)
    assert engine.epsilon(1e-5) <= cap.target_epsilon
    assert 5 <= private.optimizer.steps_taken <= 6
