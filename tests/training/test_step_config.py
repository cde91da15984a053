"""Public constants of a run: what is sampled is what is accounted for, and epochs are passes over the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import (
    BudgetExceeded,
    GaussianDpEvent,
    Ledger,
    PoissonSampledDpEvent,
    epsilon_of,
)
from sparsedp.training import Private, loader
from sparsedp.training.step_config import sampling_of, total_steps

DELTA = 1e-5


def clicks(examples: int, batch: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(examples, 2), torch.zeros(examples)), batch_size=batch)


def start(
    examples: int, batch: int, ledger: Path | Ledger | None = None, **options: Any
) -> tuple[sdp.PrivacyEngine, Private]:
    model = nn.Linear(2, 1)
    engine = sdp.PrivacyEngine(ledger=ledger)
    made = {"target_epsilon": 1.0, "target_delta": DELTA, "max_grad_norm": 1.0, **options}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return engine, engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=clicks(examples, batch), **made
    )


def train(private: Private, epochs: int) -> None:
    for _ in range(epochs):
        for features, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(features).squeeze(1), label).backward()
            private.optimizer.step()


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [
        (364, 46, 16, 128),  # 16 / q is 126.6, but a pass is 8 batches
        (364, 46, 0.5, 4),
        (400, 20, 3, 60),
        (100, 60, 10, 20),
        (7, 7, 3, 3),
        (10, 3, 0.01, 1),
    ],
)
@pytest.mark.parametrize("poisson", [True, False])
def test_planned_steps_are_those_of_the_passes(
    examples: int, batch: int, epochs: float, steps: int, poisson: bool
) -> None:
    given = clicks(examples, batch)
    assert total_steps(epochs, None, sampling_of(given, None, poisson)) == steps


def test_the_loop_that_was_planned_can_be_run(tmp_path: Path) -> None:
    """n 364, batch 46, 16 epochs: step 128 was refused, since 127 had been planned."""
    for ledger in (None, tmp_path / "data.ledger"):
        engine, private = start(364, 46, ledger, epochs=16)
        train(private, 16)
        assert private.optimizer.steps_taken == 128
        assert 0.99 < engine.epsilon(DELTA) <= 1.0
        with pytest.raises(BudgetExceeded, match="target_epsilon 1 at delta 1e-05"):
            train(private, 1)
        assert engine.epsilon(DELTA) <= 1.0
        engine.detach()


def test_the_rate_of_the_sampler_is_the_rate_on_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float]] = []
    positions = loader.bernoulli_positions

    def spied(stream: Any, size: int, rate: float) -> Any:
        drawn.append((size, rate))
        return positions(stream, size, rate)

    monkeypatch.setattr(loader, "bernoulli_positions", spied)
    engine, private = start(364, 46, tmp_path / "data.ledger", steps=8)
    train(private, 1)
    engine.detach()
    ((event, count),) = Ledger.read(tmp_path / "data.ledger").events()
    assert isinstance(event, PoissonSampledDpEvent)
    assert set(drawn) == {(364, event.sampling_probability)}
    assert event.sampling_probability == 46 / 364
    assert count == len(drawn) == 8


@pytest.mark.parametrize("crashes", [1, 4])
def test_a_crash_takes_steps_and_never_epsilon(crashes: int, tmp_path: Path) -> None:
    """A crash: the engine and its ledger are left as they are, and the next process begins from the checkpoint."""
    path = tmp_path / "data.ledger"
    lost = 0
    for crash in range(crashes):
        engine, private = start(364, 46, path, epochs=4)
        if crash:
            engine.resume(tmp_path / "run.ckpt")
        before = private.optimizer.steps_taken
        train(private, 1)  # the rest of an epoch: 8 steps, of which the last 3 are not saved
        if crash == 0:
            engine.save(tmp_path / "run.ckpt")
        else:
            lost += private.optimizer.steps_taken - before
    engine, private = start(364, 46, path, epochs=4)
    engine.resume(tmp_path / "run.ckpt")
    with pytest.raises(BudgetExceeded, match="crashes took away") if lost else pytest.raises(BudgetExceeded):
        train(private, 4)
    taken = private.optimizer.steps_taken
    engine.detach()
    events = Ledger.read(path).events()
    assert taken + lost == sum(count for _, count in events)
    assert 0.98 < epsilon_of(events, DELTA) <= 1.0


def test_choices_that_are_made_again_and_again_never_pass_the_target(tmp_path: Path) -> None:
    """Each attempt crashes after choosing its rows: the choice itself is refused once it does not fit."""
    attempts, refusal = 0, ""
    while not refusal and attempts < 30:
        engine, model = sdp.PrivacyEngine(ledger=tmp_path / "data.ledger"), TwoTables()
        engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=clicks(364, 46),
            target_epsilon=3.0,
            target_delta=DELTA,
            epochs=1,
            max_grad_norm=1.0,
            selection=sdp.FEST.private_top_k({"large": range(300)}, 20, mu=0.3, always_on_rows=10),
        )
        try:
            engine.session.choose_once()
            attempts += 1
        except BudgetExceeded as refused:
            refusal = str(refused)
    assert "this release would pass the budget of target_epsilon 3" in refusal
    events = Ledger.read(tmp_path / "data.ledger").events()
    assert events == [(GaussianDpEvent(1 / 0.3), attempts)]
    assert attempts > 1
    assert epsilon_of(events, DELTA) <= 3.0 < epsilon_of([(GaussianDpEvent(1 / 0.3), attempts + 1)], DELTA)


def test_runs_of_another_name_have_a_cap_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "data.ledger"
    for name in ("first", "second"):
        engine, private = start(364, 46, Ledger.open(path, run=name), epochs=1)
        train(private, 1)
        engine.detach()
    engine, private = start(364, 46, Ledger.open(path, run="first"), epochs=1)
    with pytest.raises(BudgetExceeded, match=r"run 'first' .* needs another name"):
        train(private, 1)
    engine.detach()
    assert sum(count for _, count in Ledger.read(path).events()) == 16
