"""Jobs about the engine and its session on several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded
from sparsedp.distributed import DistributedEngine, Exchange, ShardedEmbedding
from sparsedp.distributed.session import DistributedSession
from sparsedp.selection.adafest import ContributionMap
from sparsedp.training import Private


def start(
    exchange: Exchange, sharded: bool = False, examples: int = 120, **options: Any
) -> tuple[Any, Private]:
    engine_options = {
        name: options.pop(name) for name in ("ledger", "seed", "secure", "dataset") if name in options
    }
    torch.manual_seed(0)
    table = ShardedEmbedding(50, 2, exchange=exchange) if sharded else nn.Embedding(50, 2)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(4, 1))
    engine = DistributedEngine(exchange=exchange, **engine_options)
    make = engine.make_private_with_epsilon if "target_epsilon" in options else engine.make_private
    private = make(
        **{
            "module": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "data_loader": DataLoader(
                TensorDataset(torch.randint(0, 50, (examples, 2)), torch.arange(examples)), batch_size=10
            ),
            "max_grad_norm": 1.0,
            "selection": sdp.AdaFEST(always_on_rows=0),
            **({} if "target_epsilon" in options else {"noise_multiplier": 1.0}),
            **options,
        }
    )
    return engine, private


def step(private: Private, ids: Any) -> None:
    private.optimizer.zero_grad()
    private.module(ids).square().mean().backward()
    private.optimizer.step()


def budget(exchange: Exchange, ledger: str) -> dict[str, Any]:
    """Train until the budget is used up."""
    engine, private = start(exchange, ledger=ledger, target_epsilon=1.0, target_delta=1e-3, epochs=2)
    refusal = ""
    try:
        for _ in range(4):
            for ids, _ in private.data_loader:
                step(private, ids)
    except BudgetExceeded as error:
        refusal = str(error)
    result = {"steps": private.optimizer.steps_taken, "refusal": refusal}
    try:
        result["epsilon"] = engine.epsilon(1e-3)
    except RuntimeError as error:
        result["epsilon"] = str(error)
    engine.detach()
    return result


def charged_first(exchange: Exchange, folder: str) -> list[int]:
    """How many steps were charged when this process began to draw, at each of three steps."""
    engine, private = start(exchange, sharded=True, seed=1, secure=False)
    seen, charges = [], Path(folder) / "charges"
    survivors, charge = ContributionMap.survivors, sdp.training.session.TrainingSession.charge

    def charging(self: Any) -> None:
        torch.zeros(300, 300) @ torch.zeros(300, 300)
        with open(charges, "a") as file:
            file.write(".")
        charge(self)

    def drawing(self: Any, *arguments: Any) -> Any:
        seen.append(charges.stat().st_size)
        return survivors(self, *arguments)

    with (
        mock.patch.object(ContributionMap, "survivors", drawing),
        mock.patch.object(sdp.training.session.TrainingSession, "charge", charging),
    ):
        for _, (ids, _) in zip(range(3), private.data_loader, strict=False):
            step(private, ids)
    engine.detach()
    return seen


def sampled(exchange: Exchange) -> dict[str, Any]:
    engine, private = start(exchange, seed=1, secure=False)
    loader = private.data_loader
    batches = [loader.indices(number).tolist() for number in range(400)]
    rate = engine.session.step_config.sampling_rate
    engine.detach()
    return {
        "indices": [index for batch in batches for index in batch],
        "sizes": [len(batch) for batch in batches],
        "rate": rate,
    }


def shard_sampling(exchange: Exchange) -> tuple[float, float, int]:
    engine, private = start(
        exchange, dataset="shard", examples=30 * (exchange.rank + 1), expected_batch_size=6
    )
    config = engine.session.step_config
    largest = max(int(index) for number in range(50) for index in private.data_loader.indices(number))
    engine.detach()
    return config.sampling_rate, config.expected_batch_size, largest


def refusals(exchange: Exchange) -> dict[str, str]:
    cases: dict[str, Callable[[], Any]] = {
        "poisson=False": lambda: start(exchange, poisson=False),
        "DPSGD(lazy=True)": lambda: start(exchange, selection=sdp.DPSGD(lazy=True)),
        "FEST(lazy=True)": lambda: start(exchange, selection=sdp.FEST({"0": [1]}, lazy=True)),
        "AdaFEST(memory_false_positives=...)": lambda: start(
            exchange, selection=sdp.AdaFEST(memory_false_positives=9)
        ),
        "RandomSelection(coordinates=...)": lambda: start(
            exchange, selection=sdp.RandomSelection(coordinates=5)
        ),
        "physical_batch_size": lambda: start(exchange, sharded=True, physical_batch_size=2),
        "dataset must be": lambda: start(exchange, dataset="half"),
        "state_dict": lambda: start(exchange)[0].state_dict(),
    }
    messages = {}
    for name, case in cases.items():
        try:
            case()
            messages[name] = "nothing"
        except (ValueError, RuntimeError) as error:
            messages[name] = str(error)
    return messages


def unlike_settings(exchange: Exchange) -> str:
    rows = {"0": [1, 2, 3 + exchange.rank]}
    try:
        start(exchange, selection=sdp.FEST(rows))
    except ValueError as error:
        return str(error)
    return "nothing"


def top_k(exchange: Exchange, sharded: bool, ledger: str) -> dict[str, Any]:
    """What a private top-k over the examples of all processes sees, and what it costs."""
    from sparsedp.selection import fest

    seen: list[Any] = []
    draw = fest.top_k_gaussian

    def watched(ids: Any, counts: Any, size: int, **options: Any) -> Any:
        seen.append((ids.tolist(), counts.tolist(), size))
        return draw(ids, counts, size, **options)

    torch.manual_seed(0)
    data = TensorDataset(torch.randint(0, 50, (121, 2)), torch.arange(121))
    loader = DataLoader(data, batch_size=10)
    selection = sdp.FEST.private_top_k(loader, 7, mu=0.5, always_on_rows=0)
    engine, private = start(
        exchange, sharded, data_loader=loader, selection=selection, ledger=ledger, seed=1, secure=False
    )
    with mock.patch.object(fest, "top_k_gaussian", watched):
        for ids, _ in private.data_loader:
            step(private, ids)
            break
    session = engine.session
    assert isinstance(session, DistributedSession)
    result = {
        "counted": seen[0],
        "rows": session.selection.sorted_rows["0"].tolist(),  # type: ignore[attr-defined]
        "spent": session.spent(),
        "expected": _clipped_counts(data.tensors[0]),
    }
    engine.detach()
    return result


def _clipped_counts(ids: torch.Tensor) -> list[float]:
    """How often each id occurs, an example's part of norm 1."""
    total = torch.zeros(50, dtype=torch.float64)
    for row in ids:
        distinct = torch.unique(row)
        total[distinct] += len(distinct) ** -0.5
    return total.tolist()  # type: ignore[no-any-return]
