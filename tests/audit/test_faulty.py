"""The known-bad forms are bad in the way that they say, and in no other; and never called private."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsedp.accounting.events import NonPrivateDpEvent
from sparsedp.audit.cases.steps import CanaryModel
from sparsedp.audit.faulty import (
    ClippedApart,
    DividedByRealised,
    FaultyEngine,
    QuietDense,
    QuietMap,
    QuietRows,
    RememberedReads,
)
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import FEST, AdaFEST
from sparsedp.training.step import PrivateStep


def gradients(
    step: type[PrivateStep], sigma: float, examples: int = 1
) -> Callable[[], tuple[Tensor, Tensor]]:
    model = CanaryModel()
    engine = FaultyEngine(step, seed=5)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=[torch.full((examples,), 7)],
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        selection=FEST({"table": range(30)}),
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )

    def one() -> tuple[Tensor, Tensor]:
        """(the table's gradient, the idle layer's), after one step."""
        for ids in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
        statement = engine.statement(0.1)
        assert not statement.private
        assert f"{step.__name__} is a known-bad form of a step" in str(statement)
        table, idle = model.table.weight.grad, model.idle.weight.grad
        assert table is not None
        assert idle is not None
        return table.to_dense().flatten(), idle.flatten()

    one.model = model  # type: ignore[attr-defined]
    return one


def test_clipped_apart_an_example_moves_by_the_root_of_two() -> None:
    for step, norm in ((ClippedApart, np.sqrt(2.0)), (PrivateStep, 1.0)):
        run = gradients(step, 0.0)
        table, _ = run()
        dense = run.model.dense.weight.grad  # type: ignore[attr-defined]
        assert float(torch.hypot(table[7], dense.flatten()[0])) == pytest.approx(norm, rel=0.01)


def test_divided_by_the_realised_size_all_of_it_is() -> None:
    for examples, factor in ((1, 1.0), (4, 0.25)):
        (table, idle), (right, right_idle) = (
            gradients(step, 0.5, examples)() for step in (DividedByRealised, PrivateStep)
        )
        assert torch.allclose(table, factor * right)
        assert torch.allclose(idle, factor * right_idle)


@pytest.mark.parametrize(
    ("step", "quiet_table", "quiet_idle"), [(QuietRows, True, False), (QuietDense, False, True)]
)
def test_half_the_noise_is_half_the_noise_there_and_only_there(
    step: type[PrivateStep], quiet_table: bool, quiet_idle: bool
) -> None:
    """30 coordinates, 60 steps: a standard deviation within 15%, nine standard errors."""
    run = gradients(step, 1.0, examples=0)
    tables, idle = (torch.cat(parts) for parts in zip(*[run() for _ in range(60)], strict=True))
    assert float(tables.std()) == pytest.approx(0.5 if quiet_table else 1.0, rel=0.15)
    assert float(idle.std()) == pytest.approx(0.5 if quiet_idle else 1.0, rel=0.15)


SPACE = RowSpace((TableShape("table", 50, 1),))


class Reads:
    space = SPACE

    def contributions(self, norm: float, domain: object = None) -> SparseCounts:
        return SparseCounts(np.array([3, 9]), np.ones(2), 50)


def test_faulty_maps_have_no_event_and_their_one_fault() -> None:
    options = {"noise_ratio": 1.0, "threshold": 1.0, "always_on_rows": 0, "memory_steps": 5}
    common = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 1.0}
    right = AdaFEST(**options).rule(SPACE, **common)
    quiet = QuietMap(**options).rule(SPACE, **common)
    assert quiet.map_std == right.map_std / 2
    assert quiet.gradient_noise_multiplier == right.gradient_noise_multiplier
    reads = RememberedReads(**options).rule(SPACE, **common)
    assert reads.select(Reads(), NoiseSource(1).selection).rows.tolist() == [3, 9]  # type: ignore[arg-type]
    for faulty in (QuietMap(**options), RememberedReads(**options)):
        assert faulty.step_event(10.0) == NonPrivateDpEvent()
        assert not faulty.is_private
