"""One model in training on several processes: what differs from one process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, Subset
from typing_extensions import override

from sparsedp.core.counts import SparseCounts
from sparsedp.distributed.embedding import ShardedTable, without_exchange
from sparsedp.distributed.exchange import Exchange
from sparsedp.distributed.ownership import Ownership
from sparsedp.distributed.shards import RowShards
from sparsedp.distributed.step import DistributedStep
from sparsedp.randomness import Stream
from sparsedp.randomness.keystream import KEY_BYTES
from sparsedp.selection import AdaFEST, Selection
from sparsedp.training.loader import PoissonLoader
from sparsedp.training.session import TrainingSession
from sparsedp.training.step_config import StepConfig

Dataset = Literal["whole", "shard"]
"""What the loader of each process holds: the same whole data set everywhere, or a shard of its own."""


def part_of_rank(examples: int, rank: int, ranks: int) -> range:
    """The examples of a data set that a process samples from: disjoint ranges that cover all of them."""
    return range(examples * rank // ranks, examples * (rank + 1) // ranks)


class DistributedSession(TrainingSession):
    """A session whose steps are taken by all processes together.

    Rank 0 alone holds the ledger and the cap: ``charge`` returns in every process when it has charged the step, and
    raises in every process where it refuses.
    """

    def __init__(self, exchange: Exchange, dataset: Dataset, *args: Any, **kwargs: Any) -> None:
        self.exchange = exchange
        self._dataset = dataset
        self._ownership: Ownership | None = None
        super().__init__(*args, **kwargs)
        self.parts = sharded_parameters(self.module)
        """By name, the parameters of which each process holds a part, frozen ones too."""
        divided = {id(parameter): shards for parameter, shards in self.parts.values()}
        self.shards: dict[str, RowShards] = {}
        """How each table is divided: sharded ones in memory, others for the drawing of noise only."""
        self.sharded: set[str] = set()
        """The tables of which each process trains a part."""
        for name, table in self.capture.tables.items():
            self.shards[name] = divided.get(id(table.parameter), RowShards(table.rows, exchange.size))
            if id(table.parameter) in divided:
                self.sharded.add(name)
        self._refuse_pieces()
        exchange.agree("make_private", self._summary())
        self._copy_parameters()
        self.share_stream()

    def share_stream(self) -> None:
        """Give all processes one new stream, for choices that all must make alike."""
        key = self.exchange.from_root("key", lambda: self._source.selection.bytes(KEY_BYTES))
        self._shared = Stream("shared selection", key, private=self._source.is_private)

    @override
    def _poisson_loader(self, *args: Any, **kwargs: Any) -> PoissonLoader | None:
        check_supported(self.stated, self.step_config)
        return super()._poisson_loader(*args, **kwargs)

    def _refuse_pieces(self) -> None:
        if self.parts and self.loader is not None and self.loader.is_in_pieces:
            raise ValueError(
                "physical_batch_size: processes would have different numbers of pieces, and every pass through "
                f"the sharded table {next(iter(self.parts))!r} needs all of them; leave it out, and use more "
                "processes or a smaller expected_batch_size"
            )

    def _summary(self) -> str:
        """What must be the same in all processes, in a few words."""
        digest = hashlib.sha256()
        for part in _flattened(self.stated.state_dict()):
            digest.update(part)
        assert self.loader is not None
        examples = self.loader.examples if self._dataset == "whole" else "their own"
        divided = {name: shards.by for name, (_, shards) in self.parts.items()}
        trained = [*self.capture.dense, *self.capture.tables]
        held = {name: (tuple(value.shape), value.dtype) for name, value in self._copied().items()}
        return (
            f"{self.step_config}, {examples} examples, tables {self.shapes}, sharded {divided}, trained {trained}, "
            f"parameters and buffers {held}, loss_reduction {self.capture.loss_reduction!r}, optimisers "
            f"{_settings(self.optimizer.optimizers)}, selection {type(self.stated).__name__} {digest.hexdigest()[:16]}"
        )

    def _copied(self) -> dict[str, Tensor]:
        """Parameters and buffers of which every process holds a copy."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: tensor for name, tensor in named.items() if name not in self.parts}

    @torch.no_grad()
    def _copy_parameters(self) -> None:
        """Start from rank 0's parameters and buffers, except for the rows of sharded tables."""
        tensors = [tensor.data for tensor in self._copied().values()]
        here = [tensor.cpu().contiguous() for tensor in tensors]
        self.exchange.broadcast("parameters", here)
        for tensor, copy in zip(tensors, here, strict=True):
            if copy is not tensor:
                tensor.copy_(copy)

    @override
    def finalize_selection(self, selection: Selection) -> None:
        super().finalize_selection(selection)
        self._ownership = Ownership(self.space, self.shards, self.exchange.rank, self.exchange.size)

    @override
    def _new_step(self, *args: Any, **kwargs: Any) -> DistributedStep:
        assert self._ownership is not None
        return DistributedStep(
            *args,
            **kwargs,
            exchange=self.exchange,
            ownership=self._ownership,
            sharded=frozenset(self.sharded),
            shared=self._shared,
        )

    @override
    def _part_of(self, data_loader: Any) -> range | None:
        if self._dataset == "shard":
            return None
        return part_of_rank(len(data_loader.dataset), self.exchange.rank, self.exchange.size)

    @override
    def charge(self) -> None:
        self.exchange.permitted("charge", super().charge)

    @override
    def _charge_choice(self) -> None:
        self.exchange.permitted("charge", super()._charge_choice)

    @override
    def _resolve(self) -> Selection:
        """Choose at rank 0, which has the counts of all; the others make the same passes, and take its choice."""
        resolved = super()._resolve()
        if resolved is self.selection:
            return resolved
        return Selection.from_state_dict(self.exchange.from_root("selection", resolved.state_dict))

    @override
    def _count_rows(self, loader: Any, norm: float) -> Mapping[str, SparseCounts]:
        """Each process counts its own examples; rank 0 gets the sum, before any noise."""
        with without_exchange():
            counts = super()._count_rows(self._own_examples(loader), norm)
        return merge_counts(counts, self.exchange)

    def _own_examples(self, loader: Any) -> Any:
        if self._dataset == "shard":
            return loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                "private_top_k: every process counts its own part of the data, which needs a DataLoader over a "
                "map-style dataset; or give the counts themselves"
            )
        part = self._part_of(loader)
        assert part is not None
        return DataLoader(
            Subset(loader.dataset, part),
            batch_size=loader.batch_size,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )


def sharded_parameters(module: nn.Module) -> dict[str, tuple[nn.Parameter, RowShards]]:
    """The parameters of which each process holds a part, by name; refuses one that another layer takes for whole."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    tables = {name: part for name, part in module.named_modules() if isinstance(part, ShardedTable)}
    found: dict[str, tuple[nn.Parameter, RowShards]] = {}
    for name, table in tables.items():
        assert isinstance(table.weight, nn.Parameter)
        _, shards = found.setdefault(names[id(table.weight)], (table.weight, table.shards))
        if shards != table.shards:
            raise ValueError(
                f"module {name!r}: shares its rows with a table that divides them by {shards.by!r}, not by "
                f"{table.shards.by!r}; divide both in the same way"
            )
    for name, part in module.named_modules():
        for parameter in part._parameters.values():
            if name not in tables and parameter is not None and names[id(parameter)] in found:
                raise ValueError(
                    f"module {name!r}: shares the weight of a sharded table, of which each process holds a part "
                    "only; use nn.Embedding for a table that another layer reads as a whole"
                )
    return found


def _settings(optimizers: list[Optimizer]) -> list[Any]:
    """The kind of each optimiser and the options of its groups."""
    return [
        (
            type(optimizer).__name__,
            [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        )
        for optimizer in optimizers
    ]


def merge_counts(counts: Mapping[str, SparseCounts], exchange: Exchange) -> dict[str, SparseCounts]:
    """The sum of all processes' counts at rank 0; zeros elsewhere. They have no noise yet."""
    return {
        name: SparseCounts.sum(
            [
                SparseCounts(ids, values, own.size)
                for ids, values in exchange.gather("counts", [own.ids, own.values])
            ],
            own.size,
        )
        for name, own in counts.items()
    }


def check_supported(selection: Selection, config: StepConfig) -> None:
    """Refuse what one process can do and several cannot, with advice."""
    if not config.poisson:
        raise ValueError(
            "poisson=False: over several processes batches are Poisson samples, each process drawing from its "
            "own examples; leave it out"
        )
    if config.unit != "example":
        raise ValueError(
            f"unit={config.unit!r}: over several processes the unit is the example; train users in one process"
        )
    if selection.lazy:
        raise ValueError(
            f"{type(selection).__name__}(lazy=True): lazy noise works in one process only; leave it out, or use AdaFEST()"
        )
    if getattr(selection, "update_every", None) not in (None, 1):
        raise ValueError(
            f"{type(selection).__name__}(update_every=...): rows take turns in one process only; leave it out"
        )
    if isinstance(selection, AdaFEST) and selection.memory_steps is not None:
        raise ValueError("AdaFEST(memory_steps=...): memory works in one process only; leave it out")
    if getattr(selection, "coordinates", None) is not None:
        raise ValueError(
            f"{type(selection).__name__}(coordinates=...): single coordinates cannot be selected over several "
            "processes; give rows"
        )


def _flattened(value: Any) -> Iterator[bytes]:
    """A state of plain values and tensors as bytes, for a checksum."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from _flattened(value[key])
    elif isinstance(value, Tensor):
        yield np.ascontiguousarray(value.numpy()).tobytes()
    else:
        yield repr(value).encode()
