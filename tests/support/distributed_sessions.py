"""Jobs about the engine and its session on several processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
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
        "AdaFEST(memory_steps=...)": lambda: start(exchange, selection=sdp.AdaFEST(memory_steps=9)),
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


def unlike_settings(exchange: Exchange, folder: str) -> dict[str, str]:
    """What is said to settings that are not the same in all processes."""
    other = exchange.rank == 1

    def model(table: nn.Module | None = None, buffer: bool = False, **options: Any) -> dict[str, Any]:
        module = nn.Sequential(table or nn.Embedding(50, 2), nn.Flatten(), nn.Linear(4, 1))
        if buffer:
            module.register_buffer("places", torch.zeros(3))
        return {"module": module, "optimizer": torch.optim.SGD(module.parameters(), **{"lr": 0.1, **options})}

    cases: dict[str, dict[str, Any]] = {
        "rows": {"selection": sdp.FEST({"0": [1, 2, 3 + other]})},
        "learning rate": model(lr=0.2 if other else 0.1),
        "buffers": model(buffer=other),
        "division": model(ShardedEmbedding(50, 2, by="hash" if other else "range", exchange=exchange)),
        "loss": {"loss_reduction": "sum" if other else "mean"},
        "noise": {"seed": 1, "secure": False} if other else {},
        "seed": {"seed": 1 + other, "secure": False},
        "data": {"dataset": "shard" if other else "whole"},
        "ledger": {} if other else {"ledger": folder + "/run.ledger"},
    }
    return {name: _refusal(lambda case=case: start(exchange, **case)) for name, case in cases.items()}  # type: ignore[misc]


def shard_refusals(exchange: Exchange) -> dict[str, str]:
    """A shard without examples, a batch larger than a shard, and one larger than all."""
    empty = 0 if exchange.rank == 1 else 30
    return {
        "empty": _refusal(lambda: start(exchange, dataset="shard", examples=empty, expected_batch_size=6)),
        "large": _refusal(lambda: start(exchange, dataset="shard", examples=30, expected_batch_size=40)),
        "larger": _refusal(lambda: start(exchange, dataset="shard", examples=30, expected_batch_size=70)),
    }


def ledger_refusal(exchange: Exchange, path: str) -> str:
    return _refusal(lambda: start(exchange, ledger=path))


def _refusal(act: Callable[[], Any]) -> str:
    try:
        engine, _ = act()
    except (ValueError, RuntimeError) as error:
        return str(error)
    engine.detach()
    return "nothing"


class Parts(nn.Module):
    """A sharded table that is frozen, and one that two modules share; ``also`` shares it too."""

    def __init__(self, exchange: Exchange, by: Any = "hash", also: nn.Module | None = None) -> None:
        super().__init__()
        self.frozen = ShardedEmbedding(51, 2, by=by, exchange=exchange).requires_grad_(False)
        self.first = ShardedEmbedding(51, 3, by=by, exchange=exchange)
        self.second = ShardedEmbedding(51, 3, by=by, exchange=exchange)
        self.second.weight = self.first.weight
        if also is not None:
            self.also = also
            self.also.weight = self.first.weight
        self.frozen.load_rows(torch.arange(102.0).view(51, 2))
        self.out = nn.Linear(16, 1)

    def forward(self, ids: Tensor) -> Tensor:
        read = [self.frozen(ids), self.first(ids), self.second(ids.flip(1))]
        return self.out(torch.cat(read, 2).flatten(1))  # type: ignore[no-any-return]

    def start(self, exchange: Exchange, **options: Any) -> tuple[Any, Private]:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        return start(exchange, module=self, optimizer=optimizer, seed=1, secure=False, **options)

    def tables(self) -> list[Any]:
        """All whole tables, also under a second name."""
        return [table.whole_table().numpy() for table in (self.frozen, self.first, self.second)]


def parts(exchange: Exchange, folder: str, resume: bool) -> tuple[list[Any], list[str]]:
    """The tables after a step and a save, or after a resume; and what a second division of a table is told."""
    model = Parts(exchange)
    engine, private = model.start(exchange)
    if resume:
        engine.resume(folder)
    else:
        for ids, _ in private.data_loader:
            step(private, ids)
            break
        engine.save(folder)
        engine.export(Path(folder) / "model.safetensors", delta=1e-3, allow_not_private=True)
    tables = model.tables()
    engine.detach()
    wholes = [nn.Linear(3, 51, bias=False), nn.Embedding(51, 3)]
    refused = [Parts(exchange, also=whole) for whole in wholes]
    refused.append(Parts(exchange))
    refused[-1].second.shards = replace(refused[-1].second.shards, by="range")
    return tables, [_refusal(lambda model=model: model.start(exchange)) for model in refused]  # type: ignore[misc]


def unlike_checkpoints(exchange: Exchange, folder: str) -> dict[str, str]:
    """What ``resume`` says to a checkpoint of tables that are divided in another way, and to damaged files."""

    def resumed(table: nn.Module) -> str:
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(4, 1))
        engine, _ = start(exchange, module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            engine.resume(folder)
        except ValueError as error:
            return str(error)
        finally:
            engine.detach()
        return "nothing"

    (Path(folder) / "step-results").mkdir(exist_ok=True)
    for _ in range(2):  # the second save removes the first one
        engine, _ = start(exchange, sharded=True)
        engine.save(folder)
        engine.detach()
    told = {
        "by range": resumed(ShardedEmbedding(50, 2, by="range", exchange=exchange)),
        "whole": resumed(nn.Embedding(50, 2)),
        "the same": resumed(ShardedEmbedding(50, 2, exchange=exchange)),
    }
    for name in ("rows/__1_0.distcp", "state.pt"):
        if exchange.is_root:
            (file,) = Path(folder).glob(f"step-*-*/{name}")
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        told[name] = resumed(ShardedEmbedding(50, 2, exchange=exchange))
    return told


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
