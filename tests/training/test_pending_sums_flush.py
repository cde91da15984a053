"""The last update of rows that take turns: at the rate of the last step, once, and never lost silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private

EXAMPLES = 24
DATA = TensorDataset(
    torch.stack([torch.arange(EXAMPLES) * 7, torch.arange(EXAMPLES) % 7], 1), torch.ones(EXAMPLES)
)


def start(rate: Any = 0.1, seed: int | None = 1) -> tuple[sdp.PrivacyEngine, Private]:
    torch.manual_seed(0)
    model, engine = TwoTables(), sdp.PrivacyEngine(seed=seed)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        data_loader=DataLoader(DATA, batch_size=24),
        selection=sdp.FEST({"large": range(300)}, always_on_rows=10, update_every=1000),
        max_grad_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=24,
    )
    return engine, private


def train(private: Private, steps: int = 2) -> None:
    for _ in range(steps):
        for ids, target in private.data_loader:
            private.optimizer.zero_grad()
            (private.module(ids) - target).square().mean().backward()
            private.optimizer.step()


def flushed(engine: sdp.PrivacyEngine, private: Private) -> torch.Tensor:
    """How far each coordinate of the large table moves in a flush."""
    before = private.module.large.weight.detach().clone()
    engine.flush()
    moved: torch.Tensor = private.module.large.weight.detach() - before
    return moved


def test_a_resumed_run_flushes_at_the_rate_of_its_last_step(tmp_path: Path) -> None:
    engine, private = start()
    train(private)
    private.optimizer.param_groups[0]["lr"] = 0.0  # where a schedule ends
    engine.save(tmp_path / "state")
    moved = flushed(engine, private)
    assert (moved != 0).all()
    engine, private = start()
    engine.resume(tmp_path / "state")
    assert torch.equal(flushed(engine, private), moved)
    assert private.optimizer.param_groups[0]["lr"] == 0.0


def test_rates_that_are_tensors_are_those_of_the_last_step() -> None:
    moved = []
    for rate in (0.1, torch.tensor(0.1)):
        engine, private = start(rate)
        train(private)
        schedule = torch.optim.lr_scheduler.LambdaLR(private.optimizer, lambda step: 1.0 if step < 1 else 0.0)
        schedule.step()
        moved.append(flushed(engine, private))
        assert private.optimizer.param_groups[0]["lr"] == 0.0
        assert type(private.optimizer.param_groups[0]["lr"]) is type(rate)
    torch.testing.assert_close(*moved)
    assert (moved[0] != 0).all()


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_no_flush_within_a_hook_of_a_gradient(kind: str) -> None:
    engine, private = start()
    getattr(private.module.large.weight, kind)(lambda _: engine.flush())
    ids, target = next(iter(private.data_loader))
    (private.module(ids) - target).square().mean().backward()
    with pytest.raises(RuntimeError, match="in the middle of a step"):
        private.optimizer.step()


def test_a_flush_with_other_parameters_is_refused_and_loses_nothing() -> None:
    engine, private = start()
    train(private)
    wrapped = private.optimizer.optimizers[0]
    wrapped.add_param_group({"params": nn.Linear(2, 2).parameters(), "lr": 9.0})
    with pytest.raises(RuntimeError, match="its parameters changed"):
        engine.flush()
    wrapped.param_groups.pop()
    assert (flushed(engine, private) != 0).all()


def test_what_an_interrupted_flush_left_is_not_released_as_a_model(tmp_path: Path) -> None:
    """Which rows it updated is not known; what it released is gone from the sums."""
    engine, private = start(seed=None)
    train(private)
    engine.save(tmp_path / "state")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = private.optimizer.optimizers[0].register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.flush()
    hook.remove()
    for again in (
        engine.flush,
        lambda: engine.export(tmp_path / "model", delta=1e-5),
        lambda: engine.save(tmp_path / "state"),
        lambda: train(private),
    ):
        with pytest.raises(RuntimeError, match="flush: the last one failed"):
            again()
    assert not (tmp_path / "model").exists()
    engine, private = start(seed=None)
    engine.resume(tmp_path / "state")
    assert (flushed(engine, private) != 0).all()
    engine.export(tmp_path / "model", delta=1e-5)


class WithoutRate(torch.optim.SGD):
    """An optimiser that finds its learning rate itself, as Adafactor may."""

    def __init__(self, parameters: Any, key: bool) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            group["lr"] = None
            if not key:
                del group["lr"]

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("selection", [sdp.DPSGD(), None])
def test_groups_without_a_learning_rate_train(key: bool, selection: Any, tmp_path: Path) -> None:
    for resumed in (False, True):
        torch.manual_seed(0)
        model, engine = TwoTables(), sdp.PrivacyEngine(seed=1)
        tables = [model.large.weight, model.small.weight]
        dense = [each for each in model.parameters() if all(each is not table for table in tables)]
        private = engine.make_private(
            module=model,
            optimizer=[torch.optim.SGD(tables, lr=0.1), WithoutRate(dense, key)],
            data_loader=DataLoader(DATA, batch_size=24),
            selection=selection or sdp.FEST({"large": range(300)}, always_on_rows=10, update_every=1000),
            max_grad_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=24,
        )
        if resumed:
            engine.resume(tmp_path / "state")
            assert selection is not None or (flushed(engine, private) != 0).all()
        else:
            train(private)
            engine.save(tmp_path / "state")
