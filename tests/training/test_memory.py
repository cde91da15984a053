"""Rows, never tables: a step allocates nothing of a table's size."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from support.allocations import LargestAllocation
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp

ROWS, DIM = 200_000, 4


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM, sparse=True)
        self.out = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids)).squeeze(1)


def largest_allocation(
    selection: sdp.selection.Selection, optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> int:
    model = Table()
    tables, dense = [model.table.weight], list(model.out.parameters())
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=[optimizer(tables), torch.optim.SGD(dense, lr=0.1)],
        data_loader=DataLoader(TensorDataset(torch.randint(0, ROWS, (400,))), batch_size=100),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
    )
    # The table, and what an optimiser or lazy noise keeps for it, was made before the step.
    batches = iter(private.data_loader)
    private.module(*next(batches)).sum().backward()
    private.optimizer.step()
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for inner in private.optimizer.optimizers:
        for state in inner.state.values():
            known |= {
                v.untyped_storage().data_ptr()
                for v in state.values()
                if isinstance(v, Tensor) and v.layout == torch.strided
            }
    run = private.optimizer
    if run._lazy is not None:
        known |= {
            pending["applied"].untyped_storage().data_ptr() for pending in run._lazy.state_dict().values()
        }
        private.module(
            *next(batches)
        ).sum().backward()  # looking at the tables has flushed: a lattice is chosen anew
        private.optimizer.step()
    with LargestAllocation(known) as watch:
        for (ids,) in private.data_loader:
            private.optimizer.zero_grad()
            private.module(ids).sum().backward()
            private.optimizer.step()
    return watch.largest


SPARSE = {
    "adafest": sdp.AdaFEST(always_on_rows=0),
    "fest": sdp.FEST({"table": range(100)}),
    "fest-turns": sdp.FEST({"table": range(100)}, update_every=3),
    "adafest+": sdp.AdaFEST(within=sdp.FEST({"table": range(1000)})),
    "exponential": sdp.ExponentialSelection(rows=50, selection_epsilon=0.5, score_cap=0.1),
    "sparse vector": sdp.SparseVectorSelection(rows=50, selection_epsilon=0.5, score_cap=0.1, threshold=0.5),
    "random": sdp.RandomSelection(rows=50),
    "lazy": sdp.DPSGD(lazy=True),
    "adafest, memory": sdp.AdaFEST(always_on_rows=0, memory_steps=50),
    "fest, lazy": sdp.FEST({"table": range(0, ROWS, 2)}, lazy=True),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_step_allocates_nothing_table_sized(name: str) -> None:
    assert largest_allocation(SPARSE[name], lambda p: torch.optim.SGD(p, lr=0.1)) < ROWS


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adagrad, torch.optim.SparseAdam, sdp.training.RowWiseAdagrad]
)
def test_nor_do_the_optimisers(optimizer: type[torch.optim.Optimizer]) -> None:
    assert largest_allocation(SPARSE["adafest"], lambda p: optimizer(p, lr=0.1)) < ROWS


def test_the_watch_sees_a_table_sized_allocation() -> None:
    assert largest_allocation(sdp.DPSGD(), lambda p: torch.optim.SGD(p, lr=0.1)) >= ROWS * DIM * 4


@pytest.mark.slow
def test_resident_memory_stays_within_64_mb_of_the_table() -> None:
    """5M x 64 with 1000 active rows, in a process of its own: 1.3 GB of table."""
    code = """
        import sys
        sys.path.insert(0, "benchmarks")
        from memory import measure
        print(measure(5 * 10**6, 64)["peak MB above it"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) <= 64
