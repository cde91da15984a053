"""Epsilon so far: never too low, seldom computed; and what TensorBoard gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
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
        due = exact([(engine.run.terms.event(engine.run.selection), step)], DELTA)
        assert due * (1 - 1e-9) <= value <= 1.2 * due


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
    assert set(at_ten) == {
        "sparsity/rows",
        "sparsity/gradient_size",
        "sparsity/reduction",
        "privacy/epsilon (delta 1e-05, add-or-remove-one example)",
    }
    assert at_ten["sparsity/reduction"] == pytest.approx(
        last.table_coordinates / at_ten["sparsity/gradient_size"]
    )
    assert at_ten["privacy/epsilon (delta 1e-05, add-or-remove-one example)"] > 0
