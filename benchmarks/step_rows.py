"""One table, d = 64, batch 1024, Zipf ids: the full AdaFEST step beside the non-private one and dense DP-SGD.

    python benchmarks/step_rows.py [--json] [--huge]

``--huge`` adds 1e8 rows in 16 dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from timing import endless, interleaved, show
from torch import Tensor, nn

import sparsedp as sdp

BATCH = 1024


class Model(nn.Module):
    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        # Written to, so that its memory is really there: torch.zeros would get it page by page in the steps.
        weight = torch.empty(rows, dim).zero_()
        self.table = nn.Embedding(rows, dim, sparse=True, _weight=weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).flatten(1).sum(dim=1)


def batches(rows: int, per_example: int, count: int = 16) -> list[Tensor]:
    generator = np.random.default_rng(0)
    ids = (generator.zipf(1.2, (count, BATCH, per_example)) - 1) % rows
    return [torch.from_numpy(each) for each in ids]


def non_private(model: Model, data: list[Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    turn = iter(range(10**9))

    def step() -> None:
        optimizer.zero_grad()
        torch.tanh(model(data[next(turn) % len(data)])).mean().backward()
        optimizer.step()

    return step


def private(model: Model, data: list[Tensor], selection: sdp.selection.Selection) -> Callable[[], None]:
    engine = sdp.PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=data,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
        expected_batch_size=BATCH,
        poisson=False,
    )
    turns = endless(made.data_loader)

    def step() -> None:
        ids = next(turns)
        made.optimizer.zero_grad()
        torch.tanh(made.module(ids)).mean().backward()
        made.optimizer.step()

    return step


def clipped(weight: Tensor, ids: Tensor) -> Tensor:
    """The clipped gradient of every lookup."""
    rows_read = weight.detach()[ids].requires_grad_()
    torch.tanh(rows_read.flatten(1).sum(dim=1)).mean().backward()
    grads = rows_read.grad.flatten(1) * len(ids)  # type: ignore[union-attr]
    factors = (1.0 / torch.linalg.vector_norm(grads, dim=1)).clamp(max=1.0)
    return (grads * factors.unsqueeze(1)).view(-1, weight.shape[1])


def dense_torch(rows: int, dim: int, data: list[Tensor]) -> Callable[[], None]:
    """Dense DP-SGD as one writes it in torch: sum, noise, mean, optimiser."""
    weight = nn.Parameter(torch.empty(rows, dim).zero_())
    optimizer = torch.optim.SGD([weight], lr=0.01)
    turn = iter(range(10**9))

    def step() -> None:
        ids = data[next(turn) % len(data)]
        optimizer.zero_grad()
        gradient = torch.zeros(rows, dim).index_add_(0, ids.flatten(), clipped(weight, ids))
        gradient += torch.randn(rows, dim)
        weight.grad = gradient.div_(len(ids))
        optimizer.step()

    return step


def dense_lean(rows: int, dim: int, data: list[Tensor]) -> Callable[[], None]:
    """The least that dense DP-SGD can do in torch: one buffer, kept, and no optimiser."""
    weight = torch.empty(rows, dim).zero_()
    gradient = torch.empty(rows, dim)
    turn = iter(range(10**9))

    def step() -> None:
        ids = data[next(turn) % len(data)]
        grads = clipped(weight, ids)
        torch.randn(gradient.shape, out=gradient)
        gradient.index_add_(0, ids.flatten(), grads)
        weight.add_(gradient, alpha=-0.01 / len(ids))

    return step


def measure(rows: int, per_example: int, dim: int = 64) -> dict[str, float]:
    data = batches(rows, per_example)
    # The dense steps come first: they meet torch's memory as it is, before an engine tells malloc to keep it.
    # One takes seconds at 1e7 rows: fewer rounds, one table at a time.
    dense = {}
    for name, made in (("dense DP-SGD", dense_torch), ("lean", dense_lean)) if dim == 64 else ():
        dense |= interleaved({name: made(rows, dim, data)}, rounds=3 if rows >= 10**7 else 7)
    seconds = interleaved(
        {
            "non-private": non_private(Model(rows, dim), data),
            "AdaFEST": private(Model(rows, dim), data, sdp.AdaFEST(always_on_rows=0)),
        },
        rounds=30,
        repeats=10,
    )
    result = {
        "rows": rows,
        "dim": dim,
        "ids": per_example,
        "non-private ms": 1e3 * seconds["non-private"],
        "AdaFEST ms": 1e3 * seconds["AdaFEST"],
        "of non-private": seconds["AdaFEST"] / seconds["non-private"],
    }
    for name, value in dense.items():
        result[f"{name} ms"] = 1e3 * value
        result[f"{name} / AdaFEST"] = value / seconds["AdaFEST"]
    return result


def run(huge: bool = False) -> list[dict[str, float]]:
    rows = [measure(rows, ids) for ids in (1, 26) for rows in (10**5, 10**6, 10**7)]
    if huge:
        rows += [measure(10**5, ids, 16) for ids in (1, 26)] + [measure(10**8, ids, 16) for ids in (1, 26)]
    return rows


def main() -> None:
    show("step-rows", run("--huge" in sys.argv))


if __name__ == "__main__":
    main()
