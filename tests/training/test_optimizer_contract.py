"""What a private optimiser does with passes, pieces and failures around the one step of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.models import TwoTables
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded
from sparsedp.training import Private
from sparsedp.training import noise as noise_module

IDS = torch.stack([torch.arange(16) * 11, torch.arange(16) % 7], 1)


class Once(torch.optim.SGD):
    """Fails as often as it is told to."""

    failures = 0

    def step(self, closure: Any = None) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("no more")
        return super().step(closure)


def make(
    optimizer: type[torch.optim.SGD] = torch.optim.SGD, **options: Any
) -> tuple[Private, torch.optim.SGD]:
    torch.manual_seed(0)
    model = TwoTables()
    own = optimizer(model.parameters(), lr=0.1)
    chosen: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    private = sdp.PrivacyEngine(seed=1, secure=False).make_private(
        module=model,
        optimizer=own,
        data_loader=DataLoader(TensorDataset(IDS, torch.ones(16)), batch_size=8),
        **chosen,
    )
    return private, own


def backward(private: Private, ids: Tensor, target: Tensor) -> None:
    (private.module(ids) - target).square().sum().backward()


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The sums of every step, in the place of their release."""
    found: list[np.ndarray] = []
    own = noise_module.release_on_lattice

    def noted(out: Any, given: Any, **options: Any) -> None:
        if given is not None:
            found.append(given.copy())
        own(out, given, **options)

    monkeypatch.setattr(noise_module, "release_on_lattice", noted)
    return found


@pytest.mark.parametrize("forgotten", ["zero_grad", "nothing"])
def test_zero_grad_forgets_the_passes_before_it(sums: list[np.ndarray], forgotten: str) -> None:
    once, _ = make(loss_reduction="sum", max_grad_norm=1e6)
    backward(once, *next(iter(once.data_loader)))
    once.optimizer.step()
    due = [each.copy() for each in sums]
    sums.clear()
    twice, _ = make(loss_reduction="sum", max_grad_norm=1e6)
    batch = next(iter(twice.data_loader))
    backward(twice, *batch)
    if forgotten == "zero_grad":
        twice.optimizer.zero_grad()
    backward(twice, *batch)
    twice.optimizer.step()
    factor = 1 if forgotten == "zero_grad" else 2
    for found, expected in zip(sums, due, strict=True):
        np.testing.assert_allclose(found, factor * expected, rtol=1e-5, atol=1e-6)


def test_zero_grad_reaches_every_optimiser() -> None:
    private, own = make()
    backward(private, *next(iter(private.data_loader)))
    private.optimizer.step()
    assert all(p.grad is not None for p in private.module.parameters())
    private.optimizer.zero_grad()
    assert all(p.grad is None for p in private.module.parameters())
    backward(private, *next(iter(private.data_loader)))
    private.optimizer.step()
    private.optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.to_dense().any() for p in own.param_groups[0]["params"])


def test_a_batch_whose_update_failed_has_had_its_step() -> None:
    """It is paid for, its noise is drawn: a second try would be a second step on the same examples."""
    private, own = make(Once)
    own.failures = 1  # type: ignore[attr-defined]
    batches = iter(private.data_loader)
    batch = next(batches)
    backward(private, *batch)
    with pytest.raises(OSError, match="no more"):
        private.optimizer.step()
    assert private.optimizer.steps_taken == 1
    assert not private.optimizer.is_mid_batch
    backward(private, *batch)
    with pytest.raises(RuntimeError, match="each batch allows one step only"):
        private.optimizer.step()
    with pytest.raises(RuntimeError, match="of the optimiser that was given"):
        own.step()
    backward(private, *next(batches))
    private.optimizer.step()
    assert private.optimizer.steps_taken == 2


def test_a_step_that_is_refused_gives_its_batch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    private, _ = make()
    refused = True

    def charge() -> None:
        if refused:
            raise BudgetExceeded("enough")

    monkeypatch.setattr(private.optimizer, "_charge", charge)
    batches = iter(private.data_loader)
    batch = next(batches)
    backward(private, *batch)
    with pytest.raises(BudgetExceeded):
        private.optimizer.step()
    assert private.optimizer.steps_taken == 0
    refused = False
    with pytest.raises(RuntimeError, match="each batch allows one step only"):
        private.optimizer.step()


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 2, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(1)


@pytest.mark.parametrize("changed_piece", [None, 0, 1])
def test_pieces_that_read_other_ids_than_were_counted_are_refused(changed_piece: int | None) -> None:
    """The rows were chosen by the ids of the whole batch as the loader gave them."""
    model = Rows()
    private = sdp.PrivacyEngine(seed=1, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.arange(40)), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        physical_batch_size=4,
        selection=sdp.AdaFEST(always_on_rows=0),
    )

    def train() -> Iterator[None]:
        for number, (ids,) in enumerate(private.data_loader):
            second = private.optimizer.steps_taken == 1
            private.module(ids + 1 if second and changed_piece == number % 2 else ids).sum().backward()
            private.optimizer.step()
            yield

    if changed_piece is None:
        assert len([*train()]) > 4
    else:
        with pytest.raises(ValueError, match="was given other ids than those of the batch"):
            [*train()]


def test_a_closure_is_run_once_with_gradients_and_its_loss_returned() -> None:
    private, _ = make()
    ids, target = next(iter(private.data_loader))
    ran = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        loss = (private.module(ids) - target).square().mean()
        loss.backward()
        ran.append(loss)
        return loss

    assert private.optimizer.step(closure) is ran[0]
    assert len(ran) == 1
    assert private.optimizer.steps_taken == 1


def test_what_others_see_of_a_step() -> None:
    private, _ = make(selection=sdp.FEST({"large": [1, 2, 3]}, always_on_rows=10))
    seen: list[Any] = []
    private.optimizer.callbacks.append(seen.append)
    for number, batch in enumerate(private.data_loader, 1):
        backward(private, *batch)
        private.optimizer.step()
        last = private.optimizer.last_step
        assert seen[-1] is last
        assert (last.step, last.rows, last.gradient_size) == (number, 3 + 7, 3 * 5 + 7 * 3)
        assert (last.dense_size, last.table_coordinates) == (8 * 6 + 6 + 6 + 1, 300 * 5 + 7 * 3)
        assert last.rows_per_table == {"large": 3, "small": 7}
    assert len(seen) == 2


def test_hooks_on_a_parameter_see_the_noised_gradient_once() -> None:
    private, _ = make()
    weight = private.module.hidden.weight
    seen: list[Tensor] = []
    weight.register_hook(lambda grad: seen.append(grad.clone()) or 2 * grad)
    after: list[nn.Parameter] = []
    weight.register_post_accumulate_grad_hook(after.append)
    backward(private, *next(iter(private.data_loader)))
    private.optimizer.step()
    assert len(seen) == len(after) == 1
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2 * seen[0])
