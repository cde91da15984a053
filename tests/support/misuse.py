"""What a training loop may do with one batch, right or wrong."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from sparsedp.training import Private

RAMP = torch.tensor([1.0, -2.0])


class Trainer:
    """A user's training loop: one habit a batch, in turn."""

    def __init__(self, habits: Sequence[str], *, reduction: str = "mean", scale: float = 1.0) -> None:
        self._habits = habits
        self._reduction = reduction
        self._scale = scale

    def __call__(self, private: Private) -> None:
        self.private = private
        self.batches = iter(private.data_loader)
        self.kept: list[Any] = []
        while (batch := next(self.batches, None)) is not None:
            number = private.optimizer._owner.batch - 1
            if number >= len(self._habits):
                return
            HABITS[self._habits[number]](self, batch)

    def loss(self, ids: Tensor, features: Tensor, output: Tensor | None = None) -> Tensor:
        """Separate for each example."""
        output = self.private.module(ids, features) if output is None else output
        each = self._scale * (output * RAMP).sin().sum(1)
        return each.mean() if self._reduction == "mean" else each.sum()

    def step(self) -> None:
        self.private.optimizer.step()

    def zero_grad(self) -> None:
        self.private.optimizer.zero_grad()


Habit = Callable[[Trainer, Any], None]
HABITS: dict[str, Habit] = {}
EXACT = {
    "plain",
    "autograd.grad",
    "evaluate",
    "closure",
    "error in forward",
    "copy",
    "thrown away",
    "checkpoint",
}
"""After these, a step is the textbook's step on its batch."""


def _habit(name: str) -> Callable[[Habit], Habit]:
    def register(habit: Habit) -> Habit:
        HABITS[name] = habit
        return habit

    return register


@_habit("plain")
def _plain(t: Trainer, batch: Any) -> None:
    t.zero_grad()
    t.loss(*batch).backward()
    t.step()


@_habit("two passes")
def _two_passes(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()
    t.loss(*batch).backward()
    t.step()


@_habit("two views")
def _two_views(t: Trainer, batch: Any) -> None:
    ids, features = batch
    (t.loss(ids, features) - 2 * t.loss(ids.flip(1), -features)).backward()
    t.step()


@_habit("autograd.grad")
def _adversarial(t: Trainer, batch: Any) -> None:
    ids, features = batch
    features = features.clone().requires_grad_()
    output = t.private.module(ids, features)
    torch.autograd.grad(t.loss(ids, features, output), [output, features], allow_unused=True)
    t.loss(*batch).backward()
    t.step()


@_habit("adversarial backward")
def _adversarial_backward(t: Trainer, batch: Any) -> None:
    ids, features = batch
    features = features.clone().requires_grad_()
    t.loss(ids, features).backward()
    moved = features.detach() + (0 if features.grad is None else 0.1 * features.grad.sign())
    t.private.module.zero_grad()
    t.loss(ids, moved).backward()
    t.step()


@_habit("accumulate")
def _accumulate(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()


@_habit("step twice")
def _step_twice(t: Trainer, batch: Any) -> None:
    _plain(t, batch)
    t.loss(*batch).backward()
    t.step()


@_habit("step without backward")
def _no_backward(t: Trainer, batch: Any) -> None:
    t.loss(*batch)
    t.step()


@_habit("zero_grad too late")
def _zero_grad_late(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()
    t.zero_grad()
    t.step()


@_habit("thrown away")
def _thrown_away(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()
    t.zero_grad()
    _plain(t, batch)


@_habit("begin again")
def _begin_again(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()
    t.batches = iter(t.private.data_loader)


@_habit("old iterator")
def _old_iterator(t: Trainer, batch: Any) -> None:
    next(iter(t.private.data_loader), None)
    _plain(t, batch)


@_habit("read ahead")
def _read_ahead(t: Trainer, batch: Any) -> None:
    following = next(t.batches, None)
    _plain(t, batch)
    if following is not None:
        _plain(t, following)


@_habit("skip")
def _skip(t: Trainer, batch: Any) -> None:
    pass


@_habit("evaluate")
def _evaluate(t: Trainer, batch: Any) -> None:
    t.private.module.eval()
    t.loss(*batch)
    with torch.no_grad():
        t.private.module.train()
        t.loss(*batch)
    _plain(t, batch)


@_habit("backward in evaluation")
def _backward_in_evaluation(t: Trainer, batch: Any) -> None:
    t.private.module.eval()
    try:
        t.loss(*batch).backward()
    finally:
        t.private.module.train()
    t.step()


@_habit("more data")
def _more_data(t: Trainer, batch: Any) -> None:
    t.loss(*[torch.cat([part, part]) for part in batch]).backward()
    t.step()


@_habit("closure")
def _closure(t: Trainer, batch: Any) -> None:
    def closure() -> Tensor:
        t.zero_grad()
        loss = t.loss(*batch)
        loss.backward()
        return loss

    t.private.optimizer.step(closure)


@_habit("error in forward")
def _error_in_forward(t: Trainer, batch: Any) -> None:
    handles = [m.register_forward_hook(_raise) for m in t.private.module.children()]
    with contextlib.suppress(LookupError):
        t.loss(*batch).backward()
    for handle in handles:
        handle.remove()
    _plain(t, batch)


@_habit("error in backward")
def _error_in_backward(t: Trainer, batch: Any) -> None:
    first = t.loss(*batch)
    output = t.private.module(*batch)
    if output.requires_grad:
        output.register_hook(_raise)
    with contextlib.suppress(LookupError):
        (first + t.loss(*batch, output=output)).backward()
    t.loss(*batch).backward()
    t.step()


def _raise(*_: Any) -> None:
    raise LookupError("the user's own")


@_habit("retain_graph")
def _retain_graph(t: Trainer, batch: Any) -> None:
    loss = t.loss(*batch)
    loss.backward(retain_graph=True)
    loss.backward()
    t.step()


@_habit("old graph")
def _old_graph(t: Trainer, batch: Any) -> None:
    losses = t.kept.pop() if t.kept else []
    t.kept.append([t.loss(*batch)])
    for old in losses:
        _backward_of_old(old)
    t.loss(*batch).backward()
    t.step()


@_habit("old graph and new in one")
def _graphs_in_one(t: Trainer, batch: Any) -> None:
    losses = t.kept.pop() if t.kept else []
    t.kept.append([t.loss(*batch)])
    _backward_of_old(sum(losses, start=t.loss(*batch)))
    t.step()


def _backward_of_old(loss: Tensor) -> None:
    """Torch itself may refuse: the weights have been changed since."""
    try:
        loss.backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise


@_habit("changed in place before backward")
def _changed_before(t: Trainer, batch: Any) -> None:
    loss = t.loss(*batch)
    for part in batch:
        part.zero_()
    loss.backward()
    t.step()


@_habit("changed in place after backward")
def _changed_after(t: Trainer, batch: Any) -> None:
    t.loss(*batch).backward()
    for part in batch:
        part.copy_(part.flip(0) if len(part) > 1 else 0 * part)
    t.step()


@_habit("weights in the loss")
def _weights(t: Trainer, batch: Any) -> None:
    penalty = sum((p.square().sum() for p in t.private.module.parameters()), start=torch.zeros(()))
    (t.loss(*batch) + penalty).backward()
    t.step()


@_habit("copy")
def _copy(t: Trainer, batch: Any) -> None:
    twin = copy.deepcopy(t.private.module)
    own = torch.optim.SGD(twin.parameters(), lr=0.1)
    t.loss(*batch, output=twin(*batch)).backward()
    own.step()
    _plain(t, batch)


@_habit("freeze")
def _freeze(t: Trainer, batch: Any) -> None:
    layer = next(t.private.module.children())
    if all(parameter in set(layer.parameters()) for parameter in t.private.module.parameters()):
        return
    layer.requires_grad_(False)
    try:
        _plain(t, batch)
    finally:
        layer.requires_grad_(True)


@_habit("checkpoint")
def _checkpoint(t: Trainer, batch: Any) -> None:
    output = torch.utils.checkpoint.checkpoint(t.private.module, *batch, use_reentrant=False)
    t.zero_grad()
    t.loss(*batch, output=output).backward()
    t.step()
