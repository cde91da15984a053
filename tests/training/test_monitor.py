"""Epsilon so far: never too low, seldom computed; and what TensorBoard gets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded, GaussianDpEvent, Ledger, epsilon_of
from sparsedp.training import EpsilonMeter, Private, TensorBoardMonitor, monitor

DELTA = 1e-5


def start() -> tuple[sdp.PrivacyEngine, Private]:
    torch.manual_seed(0)
    model = TwoTables()
    data = TensorDataset(torch.randint(0, 7, (200, 2)), torch.randint(0, 2, (200,)).float())
    engine = sdp.PrivacyEngine(seed=1, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(false_positives=3, always_on_rows=10),
    )
    return engine, private


def train(private: Private, steps: int) -> None:
    for _, (ids, label) in zip(range(steps), private.data_loader, strict=False):
        private.optimizer.zero_grad()
        bce(private.module(ids), label).backward()
        private.optimizer.step()


def test_the_meter_never_understates_and_seldom_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, private = start()
    asked: list[int] = []
    exact = monitor.epsilon_of

    def counted(events: Any, delta: float) -> float:
        asked.append(events[-1][1])
        return exact(events, delta)

    monkeypatch.setattr(monitor, "epsilon_of", counted)
    meter = EpsilonMeter(engine, DELTA)
    assert meter() == 0.0
    shown: list[tuple[int, float]] = []
    private.optimizer.callbacks.append(lambda step: shown.append((step.step, meter())))
    train(private, 20)
    assert len(shown) == 20
    assert len(asked) < 16
    values = [value for _, value in shown]
    assert values == sorted(values)
    for step, value in shown[8::6]:
        due = exact([(engine.session.step_config.event(engine.session.selection), step)], DELTA)
        assert due * (1 - 1e-9) <= value <= 1.2 * due


def with_target(
    ledger: Ledger | Path | None, epochs: int = 4, target: float = 2.0
) -> tuple[sdp.PrivacyEngine, Private]:
    model = torch.nn.Linear(2, 1)
    data = TensorDataset(torch.ones(364, 2), torch.zeros(364))
    engine = sdp.PrivacyEngine(ledger=ledger)
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=46),
        target_epsilon=target,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    return engine, private


def watched(engine: sdp.PrivacyEngine, private: Private) -> list[tuple[float, float]]:
    """Train to the end: at each step (what the meter shows, what the statement says)."""
    meter, shown = EpsilonMeter(engine, DELTA), []

    def look(_: Any) -> None:
        shown.append((meter(), engine.statement(DELTA).epsilon))

    private.optimizer.callbacks.append(look)
    with contextlib.suppress(BudgetExceeded):
        while True:
            for features, label in private.data_loader:
                private.optimizer.zero_grad()
                bce(private.module(features).squeeze(1), label).backward()
                private.optimizer.step()
    return shown


def test_after_crashes_the_meter_tells_the_ledgers_truth(tmp_path: Path) -> None:
    """The old form asked the run alone: it showed less than the statement by all that had been lost."""
    for crash in range(3):
        engine, private = with_target(tmp_path / "data.ledger")
        if crash < 2:
            train_on(private, 5)  # and is never heard of again
    shown = watched(engine, private)
    assert len(shown) == 32 - 10
    assert all(stated <= meter <= 2.0 for meter, stated in shown)
    assert all(meter <= 1.2 * stated for meter, stated in shown)
    alone = epsilon_of([(engine.session.step_config.event(engine.session.selection), 1)], DELTA)
    assert shown[0][0] > 1.5 * alone  # the control
    assert [meter for meter, _ in shown] == sorted(meter for meter, _ in shown)


def test_other_runs_on_the_ledger_are_in_the_meter(tmp_path: Path) -> None:
    path = tmp_path / "data.ledger"
    other = Ledger.open(path, run="other")
    engine, private = with_target(Ledger.open(path, run="own"))
    meter = EpsilonMeter(engine, DELTA)
    for spent in range(6):
        train_on(private, 1)
        assert meter() >= engine.statement(DELTA).epsilon
        other.spend(GaussianDpEvent(1.0 + spent))
        assert meter() >= engine.statement(DELTA).epsilon
    assert meter() > 2.0  # its own target is no bound on what others spend


def test_what_was_spent_without_a_target_under_the_same_name_is_in_the_meter(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "data.ledger")
    engine, private = with_target(ledger)
    train_on(private, 2)
    ledger.spend(GaussianDpEvent(0.5))
    assert EpsilonMeter(engine, DELTA)() >= engine.statement(DELTA).epsilon > 2.0


def test_the_meter_seldom_asks_the_accountant_however_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    exact = monitor.epsilon_of
    monkeypatch.setattr(monitor, "epsilon_of", lambda *given: (asked.append(given), exact(*given))[1])
    path = tmp_path / "data.ledger"
    engine, private = with_target(path, epochs=25)
    shown = watched(engine, private)
    assert len(shown) >= 200
    assert len(asked) < 45


def train_on(private: Private, steps: int) -> None:
    for _, (features, label) in zip(range(steps), private.data_loader, strict=False):
        private.optimizer.zero_grad()
        bce(private.module(features).squeeze(1), label).backward()
        private.optimizer.step()


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))


def test_tensorboard_gets_what_was_released_with_the_terms_of_epsilon() -> None:
    engine, private = start()
    writer = Writer()
    private.optimizer.callbacks.append(TensorBoardMonitor(writer, engine, DELTA, every=5))
    train(private, 11)
    assert {step for _, _, step in writer.scalars} == {5, 10}
    last = private.optimizer.last_step
    assert last is not None
    at_ten = {name: value for name, value, step in writer.scalars if step == 10}
    terms = engine.statement(DELTA).terms
    assert terms.startswith("delta 1e-05, add-or-remove-one example; released: ")
    assert set(at_ten) == {
        "sparsity/rows",
        "sparsity/gradient_size",
        "sparsity/reduction",
        f"privacy/epsilon ({terms})",
    }
    assert at_ten["sparsity/reduction"] == pytest.approx(
        last.table_coordinates / at_ten["sparsity/gradient_size"]
    )
    assert at_ten[f"privacy/epsilon ({terms})"] > 0
