"""Jobs that the tests of ``sparsedp.distributed`` run in several processes, and the same in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch._dynamo  # torch's optimisers do so when they are made
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.distributed import DistributedEngine, Exchange, ShardedEmbedding, ShardedEmbeddingBag
from sparsedp.distributed.session import part_of_rank
from sparsedp.randomness import NoiseSource
from sparsedp.selection import Selection
from sparsedp.training import PrivacyEngine, RowWiseAdagrad
from sparsedp.training.batch import LogicalBatch

EXAMPLES, ROWS, BAG_ROWS, SMALL_ROWS, DIM = 60, 37, 53, 5, 3
BATCHES = [[0, 1, 2, 30, 31, 59], [3, 4, 5, 6], [], [7, 20, 40, 58], [33, 45, 44]]
"""Of examples over all processes: some processes have none of a batch."""

Weights = dict[str, Any]


def data() -> TensorDataset:
    """(id, bag of ids with repetitions, id of a small table, label)."""
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randint(0, ROWS, (EXAMPLES, 2), generator=generator),
        torch.randint(0, 9, (EXAMPLES, 4), generator=generator) * 5,
        torch.randint(0, SMALL_ROWS, (EXAMPLES,), generator=generator),
        torch.randn(EXAMPLES, generator=generator),
    )


class Model(nn.Module):
    """Two large tables (read as rows and as bags), a small one, dense layers."""

    def __init__(self, sharded: Exchange | None, by: Any = "hash") -> None:
        super().__init__()
        if sharded is None:
            self.rows: nn.Module = nn.Embedding(ROWS, DIM, padding_idx=1)
            self.bags: nn.Module = nn.EmbeddingBag(BAG_ROWS, DIM + 1, mode="mean")
        else:
            self.rows = ShardedEmbedding(ROWS, DIM, padding_idx=1, by=by, exchange=sharded)
            self.bags = ShardedEmbeddingBag(BAG_ROWS, DIM + 1, mode="mean", by=by, exchange=sharded)
        self.small = nn.Embedding(SMALL_ROWS, 2)
        self.dense = nn.Sequential(nn.Linear(2 * DIM + DIM + 1 + 2, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, ids: Tensor, bag: Tensor, small: Tensor) -> Tensor:
        parts = [self.rows(ids).flatten(1), self.bags(bag), self.small(small)]
        return self.dense(torch.cat(parts, dim=1)).squeeze(1)  # type: ignore[no-any-return]


def first_weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return Model(None).state_dict()


def load(model: Model, weights: dict[str, Tensor]) -> None:
    """Load whole tables into a model that may hold parts of them."""
    for name, module in model.named_modules():
        if isinstance(module, ShardedEmbedding | ShardedEmbeddingBag):
            module.load_rows(weights[f"{name}.weight"])
    rest = {name: value for name, value in weights.items() if not is_sharded(model, name)}
    model.load_state_dict(rest, strict=False)


def is_sharded(model: nn.Module, parameter: str) -> bool:
    module = model.get_submodule(parameter.rpartition(".")[0])
    return isinstance(module, ShardedEmbedding | ShardedEmbeddingBag)


def whole_weights(model: nn.Module) -> Weights:
    """All parameters as arrays, sharded tables put together. A collective."""
    return {
        name: (
            model.get_submodule(name.rpartition(".")[0]).whole_table()  # type: ignore[operator]
            if is_sharded(model, name)
            else parameter.detach()
        )
        .numpy()
        .copy()
        for name, parameter in model.named_parameters()
    }


def whole_grads(model: nn.Module) -> Weights:
    """All gradients as arrays, in the same way."""
    for parameter in model.parameters():
        with torch.no_grad():
            grad = parameter.grad
            parameter.zero_() if grad is None else parameter.copy_(grad.to_dense())
    return whole_weights(model)


SELECTIONS: dict[str, Callable[[], Selection]] = {
    "DPSGD": sdp.DPSGD,
    "FEST": lambda: sdp.FEST({"rows": range(0, ROWS, 2), "bags": range(0, BAG_ROWS, 5)}, always_on_rows=10),
    "AdaFEST": lambda: sdp.AdaFEST(threshold=1.5, always_on_rows=10),
    "AdaFEST+": lambda: sdp.AdaFEST(
        threshold=0.9,
        within=sdp.FEST({"rows": range(0, ROWS, 2), "bags": range(0, BAG_ROWS, 5)}, always_on_rows=10),
    ),
    "random": lambda: sdp.RandomSelection(rows=20, batch_clip=0.05, always_on_rows=10),
    "exponential": lambda: sdp.ExponentialSelection(
        rows=12, selection_epsilon=1.0, score_cap=1.0, batch_clip=0.05, always_on_rows=10
    ),
    "sparse vector": lambda: sdp.SparseVectorSelection(
        rows=12, selection_epsilon=1.0, threshold=0.01, score_cap=1.0, always_on_rows=10
    ),
}


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """SGD for the dense layers, Adagrad with a state of each row for the tables."""
    tables = [module.weight for name, module in model.named_children() if name != "dense"]
    return [torch.optim.SGD(model.dense.parameters(), lr=0.5), RowWiseAdagrad(tables, lr=0.3)]  # type: ignore[union-attr]


def train(engine: PrivacyEngine, model: Model, selection: Selection, noise: float, own: range) -> Weights:
    """The weights after all batches, and the gradient of the first."""
    private = engine.make_private(
        module=model,
        optimizer=optimizers(model),
        data_loader=DataLoader(data(), batch_size=6),
        noise_multiplier=noise,
        max_grad_norm=0.7,
        selection=selection,
        expected_batch_size=6,
    )
    loader = private.data_loader
    loader.steps_per_epoch = len(BATCHES)
    loader.indices = lambda step: np.array([i for i in BATCHES[step] if i in own], np.int64)
    session = engine.session
    stream = NoiseSource(8).selection
    if isinstance(engine, DistributedEngine):
        session._shared = stream  # type: ignore[attr-defined]
    else:
        session._source.selection = stream
    figures = []
    for ids, bag, small, label in loader:
        private.optimizer.zero_grad()
        (private.module(ids, bag, small) - label).square().mean().backward()
        private.optimizer.step()
        assert private.optimizer.last_step is not None
        figures.append(private.optimizer.last_step)
    engine.detach()
    return {"weights": whole_weights(model), "figures": figures, "grads": whole_grads(model)}


def distributed_training(
    exchange: Exchange, selection: str, sharded: bool, by: str = "hash", noise: float = 0.0
) -> Weights:
    torch.manual_seed(exchange.rank)  # the engine copies what is not sharded
    model = Model(exchange if sharded else None, by)
    if exchange.is_root or sharded:
        load(model, first_weights())
    engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
    own = part_of_rank(EXAMPLES, exchange.rank, exchange.size)
    return train(engine, model, SELECTIONS[selection](), noise, own)


def single_training(selection: str, noise: float = 0.0) -> Weights:
    model = Model(None)
    load(model, first_weights())
    return train(PrivacyEngine(seed=1, secure=False), model, SELECTIONS[selection](), noise, range(EXAMPLES))


def trainings(exchange: Exchange, cases: list[tuple[str, bool, str]]) -> list[Weights]:
    """Several trainings in one job."""
    return [distributed_training(exchange, *case) for case in cases]


class Wide(nn.Module):
    """One table of many rows and a small dense layer."""

    def __init__(self, exchange: Exchange, rows: int, dim: int) -> None:
        super().__init__()
        self.table = ShardedEmbedding(rows, dim, exchange=exchange, std=0.01)
        self.dense = nn.Linear(dim, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.table(ids)).squeeze(1)  # type: ignore[no-any-return]


def traffic(exchange: Exchange, rows: int, batch: int, dim: int) -> dict[str, Any]:
    """Bytes that this process sends in one step of AdaFEST, by purpose, and the rows that its examples touch."""
    torch.manual_seed(0)
    ids = torch.randint(0, 100_000, (2 * batch,))
    model = Wide(exchange, rows, dim)
    engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(ids, torch.randn(2 * batch)), batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(threshold=0.1),
    )
    own = part_of_rank(2 * batch, exchange.rank, exchange.size)
    private.data_loader.indices = lambda step: np.arange(own.start, own.stop)
    step, sums = iter(private.data_loader), list[int]()
    row_sums = LogicalBatch.row_sums

    def counting(*arguments: Any) -> Any:
        for table, rows, values in row_sums(*arguments):
            sums.append(rows.size)
            yield table, rows, values

    for _ in range(2):
        exchange.traffic.clear()
        read, label = next(step)
        private.optimizer.zero_grad()
        (private.module(read) - label).square().mean().backward()
        with mock.patch.object(LogicalBatch, "row_sums", counting):
            private.optimizer.step()
    engine.detach()
    return {
        "surviving": sums[-1],
        "sent": dict(exchange.traffic.sent),
        "messages": sum(exchange.traffic.messages.values()),
        "touched": len(torch.unique(read)),
        "held": model.table.weight.shape[0],
    }


def checkpointed(
    exchange: Exchange, folder: str, sharded: bool, selection: str, begin: int, end: int, table_optimizer: str
) -> Weights:
    """Train batches ``begin`` to ``end`` without noise, from the checkpoint in ``folder`` to one there."""
    torch.manual_seed(exchange.rank)
    model = Model(exchange if sharded else None)
    load(model, first_weights())
    made = optimizers(model)
    tables = [module.weight for name, module in model.named_children() if name != "dense"]
    made[1] = {
        "row-wise Adagrad": lambda: RowWiseAdagrad(tables, lr=0.3),
        "Adagrad": lambda: torch.optim.Adagrad(tables, lr=0.3),  # type: ignore[arg-type]
        "SparseAdam": lambda: torch.optim.SparseAdam(tables, lr=0.3),  # type: ignore[arg-type]
    }[table_optimizer]()
    engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
    private = engine.make_private(
        module=model,
        optimizer=made,
        data_loader=DataLoader(data(), batch_size=6),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        selection=SELECTIONS[selection](),
    )
    own = part_of_rank(EXAMPLES, exchange.rank, exchange.size)
    loader = private.data_loader
    loader.steps_per_epoch = len(BATCHES)
    loader.indices = lambda step: np.array([i for i in BATCHES[step] if i in own], np.int64)
    if begin:
        engine.resume(folder)
    assert private.optimizer.steps_taken == begin
    for ids, bag, small, label in loader:
        private.optimizer.zero_grad()
        (private.module(ids, bag, small) - label).square().mean().backward()
        private.optimizer.step()
        if private.optimizer.steps_taken == end:
            break
    engine.save(folder)
    engine.detach()
    return {"weights": whole_weights(model), "spent": engine.events()}


def _tables(exchange: Exchange | None, by: Any) -> nn.ModuleDict:
    torch.manual_seed(2)
    alone = nn.ModuleDict(
        {
            "rows": nn.Embedding(11, 3, padding_idx=2),
            "mean": nn.EmbeddingBag(17, 2, mode="mean", padding_idx=0),
            "sum": nn.EmbeddingBag(17, 2, mode="sum"),
        }
    )
    if exchange is None:
        return alone
    sharded = nn.ModuleDict(
        {
            "rows": ShardedEmbedding(11, 3, padding_idx=2, by=by, exchange=exchange),
            "mean": ShardedEmbeddingBag(17, 2, mode="mean", padding_idx=0, by=by, exchange=exchange),
            "sum": ShardedEmbeddingBag(17, 2, mode="sum", by=by, exchange=exchange, sparse=False),
        }
    )
    for name, table in sharded.items():
        table.load_rows(alone[name].weight)  # type: ignore[operator, union-attr]
    return sharded


def _outputs(tables: nn.ModuleDict, rank: int) -> dict[str, Tensor]:
    """Rank 1 has an empty batch."""
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 1 else 5
    ids = torch.randint(0, 11, (count, 4), generator=generator)
    flat = torch.randint(0, 17, (2 * count,), generator=generator)
    weights = torch.rand(2 * count, generator=generator)
    offsets = torch.arange(0, 2 * count, 2)
    return {
        "rows": tables["rows"](ids),
        "mean": tables["mean"](ids),
        "sum": tables["sum"](flat, offsets, weights),
    }


def drop_in(exchange: Exchange) -> dict[str, Any]:
    """Outputs and gradients of sharded tables without an engine."""
    torch.manual_seed(0)
    first = ShardedEmbedding(8, 3, exchange=exchange).weight.detach().numpy().copy()
    result: dict[str, Any] = {"first rows": first}
    for by in ("range", "hash"):
        tables = _tables(exchange, by)
        outputs = _outputs(tables, exchange.rank)
        sum(output.square().sum() for output in outputs.values()).backward()  # type: ignore[union-attr]
        result[by] = {"outputs": {name: output.detach().numpy() for name, output in outputs.items()}}
        assert tables["rows"].weight.grad.is_sparse  # type: ignore[union-attr]
        for table in tables.values():
            with torch.no_grad():
                table.weight.copy_(table.weight.grad.to_dense())  # type: ignore[union-attr, operator]
        result[by]["grads"] = {name: table.whole_table().numpy() for name, table in tables.items()}  # type: ignore[operator]
    return result


def drop_in_alone(ranks: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The same with torch's tables and the sum of all losses."""
    tables = _tables(None, None)
    outputs = [_outputs(tables, rank) for rank in range(ranks)]
    sum(output.square().sum() for each in outputs for output in each.values()).backward()  # type: ignore[union-attr]
    values = [{name: output.detach().numpy() for name, output in each.items()} for each in outputs]
    return values, {name: table.weight.grad.numpy() for name, table in tables.items()}  # type: ignore[union-attr]


def half_precision(exchange: Exchange, kind: str) -> bool:
    """Outputs, a gradient of two passes and new numbers of a table in a type that numpy may not know."""
    torch.manual_seed(1)
    dtype = getattr(torch, kind)
    alone = nn.Embedding(11, 3, padding_idx=2, dtype=dtype)
    table = ShardedEmbedding(11, 3, padding_idx=2, dtype=dtype, exchange=exchange)
    table.load_rows(alone.weight)
    ids = torch.tensor([[5, 2, 5], [10, 0, 4]])
    same = bool(torch.equal(table(ids), alone(ids)))
    for _ in range(1 if dtype == torch.float16 else 2):  # torch does not add sparse float16
        table(ids[:1] if exchange.rank else ids[1:]).sum().backward()
        alone(ids).sum().backward()
    table.load_rows(table.whole_table() * 0)
    with torch.no_grad():
        table.weight += table.weight.grad.to_dense()  # type: ignore[union-attr]
    same &= torch.equal(table.whole_table(), alone.weight.grad)  # type: ignore[arg-type]
    table.reset_parameters()
    return same and (table.whole_table() == 0).all(1).nonzero().flatten().tolist() == [2]


def refused_tables(exchange: Exchange) -> list[str]:
    table = ShardedEmbedding(9, 2, exchange=exchange)
    cases: list[Callable[[], Any]] = [
        lambda: ShardedEmbedding(0, 2, exchange=exchange),
        lambda: ShardedEmbedding(3, 2, padding_idx=3, exchange=exchange),
        lambda: ShardedEmbeddingBag(3, 2, mode="max", exchange=exchange),  # type: ignore[arg-type]
        lambda: ShardedEmbedding(3, 2, by="modulo", exchange=exchange),  # type: ignore[arg-type]
        lambda: table(torch.tensor([0.5])),
        lambda: table(torch.tensor([9])),
        lambda: table.load_rows(torch.zeros(8, 2)),
    ]
    messages = []
    for case in cases:
        try:
            case()
            messages.append("nothing")
        except ValueError as error:
            messages.append(str(error))
    return messages


def large_table(exchange: Exchange, rows: int, dim: int, steps: int) -> dict[str, int]:
    """Bytes by which this process grew, at most, while it trained a table of so many rows."""
    before = _memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from here
    torch.manual_seed(0)
    ids = torch.randint(0, rows, (4096,))
    model = Wide(exchange, rows, dim)
    engine = DistributedEngine(exchange=exchange)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(ids, torch.randn(4096)), batch_size=1024),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(),
    )
    taken = 0
    while taken < steps:
        for read, label in private.data_loader:
            private.optimizer.zero_grad()
            (private.module(read) - label).square().mean().backward()
            private.optimizer.step()
            taken += 1
    engine.detach()
    return {
        "grown": _memory("VmHWM") - before,
        "held": model.table.weight.numel() * 4,
        "touched": int(private.optimizer.last_step.rows),  # type: ignore[union-attr]
    }


def _memory(name: str) -> int:
    lines = open("/proc/self/status").read().splitlines()  # noqa: SIM115
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def exported(exchange: Exchange, path: str, sharded: bool) -> dict[str, Any]:
    """Take a step, export, and tell the weights; a seeded run is refused first."""
    torch.manual_seed(0)
    model = Model(exchange if sharded else None)
    engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
    private = engine.make_private(
        module=model,
        optimizer=optimizers(model),
        data_loader=DataLoader(data(), batch_size=6),
        noise_multiplier=1.0,
        max_grad_norm=0.7,
        selection=SELECTIONS["AdaFEST"](),
    )
    for ids, bag, small, label in private.data_loader:
        private.optimizer.zero_grad()
        (private.module(ids, bag, small) - label).square().mean().backward()
        private.optimizer.step()
        break
    try:
        engine.export(path, delta=1e-3)
    except ValueError as error:
        refusal = str(error)
    engine.export(path, delta=1e-3, allow_not_private=True)
    engine.detach()
    return {"refusal": refusal, "weights": whole_weights(model)}


def half_saved(exchange: Exchange, folder: str) -> tuple[str, str, str]:
    """A second save fails at rank 0 before it is complete; gives the name of the last checkpoint before and after."""
    from sparsedp.distributed import checkpoint

    torch.manual_seed(0)
    model = Model(exchange)
    engine = DistributedEngine(seed=1, secure=False, exchange=exchange)
    options = {"noise_multiplier": 1.0, "max_grad_norm": 0.7, "selection": SELECTIONS["AdaFEST"]()}
    loader = DataLoader(data(), batch_size=6)
    engine.make_private(module=model, optimizer=optimizers(model), data_loader=loader, **options)  # type: ignore[arg-type]
    engine.save(folder)
    before = checkpoint.latest(Path(folder))
    with mock.patch.object(checkpoint, "write_state", side_effect=OSError("the disk is full")):
        try:
            engine.save(folder)
        except OSError as error:
            text = str(error)
    after = checkpoint.latest(Path(folder))
    engine.detach()
    return before, text, after
