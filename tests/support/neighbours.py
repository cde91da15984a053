"""One training loop on two neighbouring data sets: how far one example moves what a step releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sparsedp as sdp
from sparsedp.rows import Units
from sparsedp.selection import Selected
from sparsedp.training import Private

Gradient = dict[str, Tensor]
Loop = Callable[[Private], None]


@dataclass
class Outcome:
    """What a loop released, step by step, before noise; and how it ended."""

    sums: dict[int, Gradient] = field(default_factory=dict)
    """By the number of the batch (from 0), the clipped sum over all parameters: ``.grad`` times the divisor."""
    masks: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """By the number of the batch, which rows (or coordinates) of which parameters were selected."""
    selected: dict[int, Selected] = field(default_factory=dict)
    maps: dict[int, dict[int, float]] = field(default_factory=dict)
    """By the number of the batch its contribution map, where the selection has one."""
    error: Exception | None = None


@dataclass
class Setting:
    """A model, a data set and how it is trained."""

    model: Callable[[], nn.Module]
    data: Sequence[Tensor] | Dataset[Any]
    batches: Sequence[Sequence[int]]
    """Which examples are in which batch."""
    expected: float = 4.0
    clip: float = 1.0
    poisson: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    users: sdp.UserSampler | None = None
    """Whose the examples are: batches then hold users, and a user is what is taken away."""

    @property
    def dataset(self) -> Any:
        return self.data if isinstance(self.data, Dataset) else TensorDataset(*self.data)

    def _own_batches(self, loader: DataLoader[Any], batches: list[list[int]]) -> Any:
        """A loader of these batches; DataLoader itself cannot give an empty one."""
        if all(batches):
            return DataLoader(self.dataset, batch_sampler=batches, **self.loader)
        return GivenBatches(loader, batches)

    def run(self, loop: Loop, without: int | None = None, like: Outcome | None = None) -> Outcome:
        """Train on all examples, or without one; ``like``: with the rows that were selected there."""
        torch.manual_seed(0)
        model = self.model()
        batches = [[i for i in batch if i != without] for batch in self.batches]
        own = {} if self.users is None else {"sampler": self.users}
        loader = DataLoader(self.dataset, **{"batch_size": len(self.dataset)} | self.loader | own)
        engine = sdp.PrivacyEngine(seed=0)
        private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            data_loader=loader if self.poisson else self._own_batches(loader, batches),
            noise_multiplier=0.0,
            max_grad_norm=self.clip,
            expected_batch_size=self.expected,
            poisson=self.poisson,
            **self.options | ({} if self.users is None else {"unit": "user"}),
        )
        if self.users is not None:
            sampler = self.users
            private.data_loader.steps_per_epoch = len(batches)
            private.data_loader._draw = lambda _, step: rows_of_users(sampler, batches[step % len(batches)])
        elif self.poisson:
            private.data_loader.steps_per_epoch = len(batches)
            private.data_loader.indices = lambda step: np.array(batches[step % len(batches)], np.int64)
        outcome = Outcome()
        _watch_selection(engine, outcome, like)
        owner = private.optimizer._owner

        def keep(_: Any) -> None:
            outcome.sums[owner.batch - 1] = _sums(model, self.expected)

        private.optimizer.callbacks.append(keep)
        try:
            loop(private)
        except Exception as error:
            outcome.error = error
        finally:
            engine.detach()
        return outcome


def rows_of_users(sampler: sdp.UserSampler, users: Sequence[int]) -> tuple[Any, Units]:
    """The rows of a batch of users; which ones of a user does not depend on the others."""

    def words(user: int) -> Callable[[int], Any]:
        return lambda size: np.random.default_rng(user).integers(2**64, size=size, dtype=np.uint64)

    rows = [sampler.rows_of(np.array([user]), words(user))[0] for user in users]
    of_row = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    mean = sampler.reduction == "mean"
    return np.concatenate([np.empty(0, np.int64), *rows]), Units(of_row, sampler.rows_per_user, mean)


class GivenBatches:
    """The user's own loader: these examples in these batches."""

    def __init__(self, loader: DataLoader[Any], batches: Sequence[Sequence[int]]) -> None:
        self._loader, self._batches = loader, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(
            DataLoader(self._loader.dataset, batch_sampler=self._batches, collate_fn=self._loader.collate_fn)
        )


def moves(setting: Setting, loop: Loop, example: int) -> list[float]:
    """How far removing an example moves each step's sum, in units of the clipping norm.

    Raises the error with which the loop ended. The rows selected are those of the run with the example.
    """
    full = setting.run(loop)
    if full.error is not None:
        raise full.error
    without = setting.run(loop, without=example, like=full)
    if without.error is not None:
        raise without.error
    assert list(full.sums) == list(without.sums), "whether a step is taken depends on the example"
    return [distance(full.sums[n], without.sums[n]) / setting.clip for n in full.sums]


def distance(first: Gradient, second: Gradient) -> float:
    """Over all parameters jointly."""
    return math.sqrt(sum(float((first[name] - second[name]).square().sum()) for name in first))


def _sums(model: nn.Module, expected: float) -> Gradient:
    return {
        name: torch.zeros(p.shape, dtype=torch.float64)
        if p.grad is None
        else p.grad.detach().to_dense().double() * expected
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _watch_selection(engine: sdp.PrivacyEngine, outcome: Outcome, like: Outcome | None) -> None:
    """Remember what is selected, or select what was selected before."""
    run, settle = engine.session, engine.session.finalize_selection
    owner = run.optimizer._owner

    def finalized(selection: Any) -> None:
        settle(selection)
        rule = run.rule()
        select = rule.select

        def chosen(batch: Any, stream: Any) -> Selected:
            number = owner.batch - 1
            norm = getattr(rule, "contribution_norm", None)
            if norm is not None:
                counts = batch.contributions(norm, rule.domain)
                outcome.maps[number] = dict(zip(counts.ids.tolist(), counts.values.tolist(), strict=True))
            known = None if like is None else like.selected.get(number)
            found = select(batch, stream) if known is None else known
            outcome.selected[number] = found
            outcome.masks[number] = _masks(run, found)
            return found

        object.__setattr__(rule, "select", chosen)

    run.finalize_selection = finalized  # type: ignore[method-assign]


def _masks(run: Any, selected: Selected) -> dict[str, Tensor]:
    """For the parameters in which rows or coordinates were selected: 1 where they were."""
    masks = {}
    for place, table in enumerate(run.space.selectable):
        mask = np.zeros((table.rows, table.dim))
        rows = selected.rows - run.space.offsets[place]
        mask[rows[(rows >= 0) & (rows < table.rows)]] = 1.0
        if selected.coordinates is not None:
            own = selected.coordinates - run.space.coordinate_offsets[place]
            mask[:] = 0.0
            mask.reshape(-1)[own[(own >= 0) & (own < mask.size)]] = 1.0
        masks[run.capture.tables[table.name].parameter_name] = torch.from_numpy(mask)
    return masks
