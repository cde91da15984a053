"""Many steps of several processes on one of two neighbouring data sets, and planted faults of the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.core.counts import contains
from sparsedp.distributed import DistributedEngine, Exchange, ShardedEmbedding
from sparsedp.distributed.rank_sums import RankSums
from sparsedp.distributed.session import part_of_rank
from sparsedp.distributed.step import DistributedStep
from sparsedp.rows import RowGradient
from sparsedp.training.step import StepGradient

SIGMA, RATIO, THRESHOLD, ROWS, IDLE = 1.0, 1.0, 1.0, 240, 600


class Canaries(nn.Module):
    """Example i alone touches row i, and its gradient of norm 100 is clipped; 600 dense coordinates get none."""

    def __init__(self, sharded: Exchange | None) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1) if sharded is None else ShardedEmbedding(ROWS, 1, exchange=sharded)
        self.idle = nn.Linear(1, IDLE, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return 100 * self.table(ids).squeeze(1) + self.idle(torch.zeros(len(ids), 1)).sum(dim=1)


def steps(
    exchange: Exchange, sharded: bool, pair: tuple[int, int], runs: int, fault: str | None, fixed: bool
) -> dict[str, Any]:
    """What this process holds after each of ``runs`` steps with ``pair[0]`` and then with ``pair[1]`` of the canaries.

    Rows are NaN where they did not survive, or are held elsewhere. ``fixed``: all rows are selected, at every step.
    """
    torch.manual_seed(0)
    model = Canaries(exchange if sharded else None)
    engine = DistributedEngine(seed=11, secure=False, exchange=exchange)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=1),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        selection=sdp.FEST({"table": range(ROWS)})
        if fixed
        else sdp.AdaFEST(noise_ratio=RATIO, threshold=THRESHOLD, always_on_rows=0, contribution_norm=1.0),
        expected_batch_size=1,
        loss_reduction="sum",
    )
    loader, own = private.data_loader, part_of_rank(ROWS, exchange.rank, exchange.size)
    loader.steps_per_epoch = 2 * runs
    loader.indices = lambda step: np.arange(max(own.start, ROWS - pair[step // runs]), own.stop)
    rows, idle = np.full((2 * runs, ROWS), np.nan), np.empty((2 * runs, IDLE))
    with FAULTS[fault]():
        for step, (ids,) in enumerate(loader):
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
            held, values = _rows(model)
            rows[step, held] = values
            idle[step] = model.idle.weight.grad.flatten()  # type: ignore[union-attr]
    engine.detach()
    return {"rows": rows.reshape(2, -1), "idle": idle.reshape(2, runs, IDLE)}


def _rows(model: Canaries) -> tuple[Any, Any]:
    """The ids and gradients of the rows that this process holds a gradient of."""
    grad = model.table.weight.grad
    assert grad is not None
    ids = grad.indices()[0].numpy()
    if isinstance(model.table, ShardedEmbedding):
        ids = model.table.shards.ids(ids + model.table.span.start)
    return ids, grad.values()[:, 0].numpy()


@contextmanager
def _own_noise() -> Iterator[None]:
    """Each process adds its own noise to its copy of the sum."""
    release = RankSums.release
    draws = np.random.default_rng(torch.initial_seed() + torch.distributed.get_rank())

    def faulty(self: RankSums, source: Any) -> StepGradient:
        rule, std = self._rule, self._rule.gradient_noise_multiplier
        self._rule = replace(rule, gradient_noise_multiplier=0.0)
        exact = release(self, source)

        def noised(values: Tensor) -> Tensor:
            return values + torch.from_numpy(draws.normal(0.0, std, values.shape).astype(np.float32))

        tables: dict[str, Any] = {
            name: RowGradient(rows.ids, noised(rows.values))  # type: ignore[union-attr]
            for name, rows in exact.tables.items()
        }
        return exact._replace(
            dense={name: noised(values) for name, values in exact.dense.items()}, tables=tables
        )

    with mock.patch.object(RankSums, "release", faulty):
        yield


@contextmanager
def _own_batch_size() -> Iterator[None]:
    """Each process divides what it owns by the number of its own examples."""
    release = DistributedStep.release

    def faulty(self: DistributedStep) -> StepGradient:
        examples = sum(piece.batch_size for piece in self._stored_pieces)
        self._rule = replace(self._rule, expected_batch_size=max(examples, 1))
        return release(self)

    with mock.patch.object(DistributedStep, "release", faulty):
        yield


@contextmanager
def _touched_rows_only() -> Iterator[None]:
    """No process adds noise to rows that nobody touched."""
    survivors = sdp.selection.adafest.ContributionMap.survivors

    def faulty(self: Any, counts: Any, domain: Any, stream: Any) -> Any:
        found = survivors(self, counts, domain, stream)
        return found[contains(counts.ids, found)]

    with mock.patch.object(sdp.selection.adafest.ContributionMap, "survivors", faulty):
        yield


@contextmanager
def _no_fault() -> Iterator[None]:
    yield


FAULTS = {
    None: _no_fault,
    "each rank adds its own noise": _own_noise,
    "ranks normalise by their own batch size": _own_batch_size,
    "no rank adds noise to rows that nobody touched": _touched_rows_only,
}
