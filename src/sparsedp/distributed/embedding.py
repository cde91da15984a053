"""Embedding tables whose rows are divided among the processes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from sparsedp.clipping import register_layer_rule
from sparsedp.clipping.layers.embedding import EmbeddingRule
from sparsedp.clipping.layers.embedding_bag import EmbeddingBagRule
from sparsedp.distributed.exchange import Exchange, default_exchange
from sparsedp.distributed.ownership import Routes
from sparsedp.distributed.shards import By, RowShards, narrow

_is_offline = False


@contextmanager
def without_exchange() -> Iterator[None]:
    """Sharded tables answer without asking their owners, by fixed numbers in place of the rows.

    For passes that need the model's structure and the ids, not its weights, and that not all processes make:
    the probe for layers that mix examples, and counting.
    """
    global _is_offline
    before, _is_offline = _is_offline, True
    try:
        yield
    finally:
        _is_offline = before


class ShardedTable(nn.Module):
    """What both kinds of table share: this process's rows and the exchange."""

    shards: RowShards
    weight: Tensor
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    sparse: bool

    def _set_up(
        self,
        rows: int,
        dim: int,
        padding_idx: int | None,
        sparse: bool,
        by: By,
        exchange: Exchange | None,
        dtype: torch.dtype | None,
        std: float,
    ) -> None:
        if rows < 1 or dim < 1:
            raise ValueError(f"num_embeddings and embedding_dim must be at least 1, got {rows} and {dim}")
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise ValueError(f"padding_idx must be a row of the table, got {padding_idx} of {rows}")
        self.exchange = exchange or default_exchange()
        self.shards = RowShards(rows, self.exchange.size, by)
        self.num_embeddings, self.embedding_dim = rows, dim
        self.padding_idx = None if padding_idx is None else padding_idx % rows
        self.max_norm, self.norm_type, self.scale_grad_by_freq = None, 2.0, False
        self.sparse = sparse
        self.weight = nn.Parameter(torch.empty(len(self.span), dim, dtype=dtype))
        self._std = std
        self.reset_parameters()

    @property
    def span(self) -> range:
        """The positions of the rows that this process holds."""
        return self.shards.span(self.exchange.rank)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Normal numbers, other ones in every process also where all have the same seed."""
        seed = int(torch.randint(2**48, ()))
        generator = torch.Generator().manual_seed(seed + self.exchange.rank)
        if self.weight.device.type == "cpu":
            self.weight.normal_(0.0, self._std, generator=generator)
        else:
            drawn = torch.empty(self.weight.shape, dtype=self.weight.dtype)
            self.weight.copy_(drawn.normal_(0.0, self._std, generator=generator))
        if self.padding_idx is not None:
            position = int(self.shards.positions(np.array([self.padding_idx]))[0])
            if position in self.span:
                self.weight[position - self.span.start] = 0.0

    @torch.no_grad()
    def load_rows(self, table: Tensor) -> None:
        """Take this process's rows from a whole table."""
        if tuple(table.shape) != (self.num_embeddings, self.embedding_dim):
            raise ValueError(
                f"table must have shape {(self.num_embeddings, self.embedding_dim)}, got {tuple(table.shape)}"
            )
        ids = self.shards.ids(np.arange(self.span.start, self.span.stop))
        self.weight.copy_(table[torch.from_numpy(ids).to(table.device)])

    @torch.no_grad()
    def whole_table(self) -> Tensor:
        """The rows of all processes, in the order of their ids, in the main memory of every process.

        A collective; for small tables.
        """
        parts = self.exchange.all_gather("tables", [_as_bytes(self.weight.detach()).ravel()])
        joined = _from_bytes(np.concatenate([part for (part,) in parts]), self.weight)
        return joined[torch.from_numpy(self.shards.positions(np.arange(self.num_embeddings)))]

    def _distinct_rows(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct ids of a call, their rows, and the index of each id among them."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids must be int64 or int32, not {ids.dtype}")
        distinct, index = torch.unique(ids.long(), return_inverse=True)
        if distinct.numel() and (int(distinct[0]) < 0 or int(distinct[-1]) >= self.num_embeddings):
            wrong = int(distinct[0]) if int(distinct[0]) < 0 else int(distinct[-1])
            raise ValueError(f"id {wrong} is out of range, the table has {self.num_embeddings} rows")
        if _is_offline:
            return distinct, _stand_in_rows(distinct, self.embedding_dim).to(self.weight.dtype), index
        rows: Tensor = _Lookup.apply(self.weight, distinct, self)  # type: ignore[no-untyped-call]
        return distinct, rows, index


def _stand_in_rows(ids: Tensor, dim: int) -> Tensor:
    """Fixed numbers between -1 and 1, other ones for every id and coordinate."""
    frequencies = torch.arange(1, dim + 1, dtype=torch.float64, device=ids.device) * 12.9898
    return torch.sin((ids.double().unsqueeze(1) + 1.0) * frequencies)


def _as_bytes(rows: Tensor) -> NDArray[np.uint8]:
    """Rows of any type of float, some of which numpy does not know, as rows of bytes."""
    return rows.cpu().contiguous().view(torch.uint8).numpy()


def _from_bytes(rows: NDArray[np.generic], like: Tensor) -> Tensor:
    """The reverse, of the type and width of ``like``, in main memory."""
    return torch.from_numpy(np.ascontiguousarray(rows).reshape(-1)).view(like.dtype).view(-1, like.shape[1])


class _Lookup(torch.autograd.Function):
    """The rows of distinct ids from their owners; backward sends their gradients there."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: ShardedTable) -> Tensor:
        shards, exchange = table.shards, table.exchange
        positions = shards.positions(ids.cpu().numpy())
        owners = shards.owners(positions)
        routes = Routes(owners, shards.ranks)
        requests = routes.split(narrow(positions - owners * shards.chunk, shards.chunk))
        asked = [rows for (rows,) in exchange.all_to_all("ids", [[part] for part in requests])]
        held, width = weight.detach(), table.embedding_dim * weight.element_size()
        answers = [
            [_as_bytes(held[torch.from_numpy(rows.astype(np.int64)).to(held.device)]).ravel()]
            for rows in asked
        ]
        received = exchange.all_to_all(
            "rows", answers, [[(np.uint8, part.size * width)] for part in requests]
        )
        ctx.table, ctx.routes, ctx.ids = table, routes, ids
        ctx.asked = asked if weight.requires_grad else None
        found = _from_bytes(routes.joined([rows.reshape(-1, width) for (rows,) in received]), weight)
        return found.to(weight.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        if ctx.asked is None:
            return None, None, None
        table, width = ctx.table, ctx.table.embedding_dim * grad.element_size()
        if table.padding_idx is not None:
            grad = grad * (ctx.ids != table.padding_idx).unsqueeze(1)
        parts = [[part.ravel()] for part in ctx.routes.split(_as_bytes(grad))]
        received = table.exchange.all_to_all(
            "gradients", parts, [[(np.uint8, rows.size * width)] for rows in ctx.asked]
        )
        rows = torch.tensor(np.concatenate(ctx.asked), dtype=torch.int64).unsqueeze(0)
        # A copy: torch adds the gradient of a second pass to it in place, and numpy's memory cannot grow.
        values = _from_bytes(np.concatenate([part for (part,) in received]), grad).clone()
        size = (len(table.span), table.embedding_dim)
        total = torch.sparse_coo_tensor(rows, values, size, check_invariants=False).coalesce()
        total = total.to(grad.device)
        return total if table.sparse else total.to_dense(), None, None


class ShardedEmbedding(ShardedTable, nn.Embedding):
    """``nn.Embedding`` whose rows are divided among the processes: each holds ``1 / W`` of them.

    A forward pass sends the distinct ids of the local batch to the processes that own them and receives their
    rows: traffic is proportional to the ids read, never to the table. It is a collective: all processes call the
    module equally often and in the same order, also with an empty batch. Under ``DistributedEngine`` the owner of
    a row draws its survival and its noise, and the optimiser's state of a row lives with it. Without the engine,
    backward gives ``weight`` the gradient of the sum of all processes' losses.

    ``weight`` holds this process's rows; ``num_embeddings`` counts all. ``by`` is how rows are divided (see
    ``RowShards``); "hash" balances the load where often-read ids are neighbours.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        sparse: bool = True,
        by: By = "hash",
        exchange: Exchange | None = None,
        dtype: torch.dtype | None = None,
        std: float = 1.0,
    ) -> None:
        nn.Module.__init__(self)
        self._set_up(num_embeddings, embedding_dim, padding_idx, sparse, by, exchange, dtype, std)

    @override
    def forward(self, input: Tensor) -> Tensor:
        """The row of every id."""
        _, rows, index = self._distinct_rows(input)
        return functional.embedding(index, rows)


class ShardedEmbeddingBag(ShardedTable, nn.EmbeddingBag):
    """``nn.EmbeddingBag`` (modes "sum" and "mean") whose rows are divided among the processes.

    See ``ShardedEmbedding``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: Literal["sum", "mean"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        sparse: bool = True,
        by: By = "hash",
        exchange: Exchange | None = None,
        dtype: torch.dtype | None = None,
        std: float = 1.0,
    ) -> None:
        nn.Module.__init__(self)
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode must be 'sum' or 'mean', got {mode!r}")
        self.mode, self.include_last_offset = mode, include_last_offset
        self._set_up(num_embeddings, embedding_dim, padding_idx, sparse, by, exchange, dtype, std)

    @override
    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """The sum or mean of the rows of every bag."""
        distinct, rows, index = self._distinct_rows(input)
        padding = None
        if self.padding_idx is not None:
            found = (distinct == self.padding_idx).nonzero()
            padding = int(found[0]) if found.numel() else None
        return functional.embedding_bag(
            index,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )


@register_layer_rule(ShardedEmbedding)
class ShardedEmbeddingRule(EmbeddingRule):
    """As for ``nn.Embedding``: the example's own process knows its ids and the gradient of each lookup."""

    @override
    def rows(self, module: nn.Module) -> int:
        assert isinstance(module, ShardedEmbedding)
        return module.num_embeddings


@register_layer_rule(ShardedEmbeddingBag)
class ShardedEmbeddingBagRule(EmbeddingBagRule):
    """As for ``nn.EmbeddingBag``."""

    @override
    def rows(self, module: nn.Module) -> int:
        assert isinstance(module, ShardedEmbeddingBag)
        return module.num_embeddings
