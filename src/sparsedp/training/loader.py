"""Poisson loading: every example enters every batch independently with the same probability."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from sparsedp.core.observing import draw
from sparsedp.core.steps import steps_per_epoch
from sparsedp.randomness import Stream, bernoulli_positions
from sparsedp.rows import Units
from sparsedp.training.empty_batch import empty_batch
from sparsedp.training.user_sampler import UserSampler, check_room, part_of, whole_units


class BatchReceiver(Protocol):
    """Is told what a loader hands out (see ``BatchOwner``)."""

    def begin_epoch(self) -> None:
        """A new iterator begins."""

    def end_epoch(self) -> None:
        """An iterator has ended."""

    def hand_out(
        self,
        contents: Any,
        examples: int | None,
        *,
        first: bool,
        last: bool,
        batch: Sequence[Any],
        units: Sequence[Units] = (),
    ) -> None:
        """A piece of a logical batch is about to be yielded to the user."""


class PoissonLoader:
    """Batches for DP training from any map-style dataset.

    Batch number t holds each of the n examples independently with probability ``sampling_rate``, drawn by
    geometric gaps from sub-stream t of ``stream``: O(batch) work for any dataset size, and the loader's position
    is one number. A number is used once: the position advances when a batch is handed out. Empty batches have
    the structure of the others and hold no example. With ``physical_batch_size`` a logical batch arrives in
    pieces of at most that many examples; with ``whole_batches`` all its pieces are fetched before the first is
    handed out. The ``owner`` is told of every piece; a new iterator ends the previous one. ``part`` is the range
    of examples to draw from, by default all of them.

    With a ``UserSampler`` the batch is drawn from its users (or its capped rows). A piece then holds whole users,
    and ``physical_batch_size`` still counts examples.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        sampling_rate: float,
        stream: Stream,
        physical_batch_size: int | None = None,
        owner: BatchReceiver | None = None,
        on_start: Callable[[], None] | None = None,
        part: range | None = None,
    ) -> None:
        if physical_batch_size is not None and physical_batch_size < 1:
            raise ValueError(f"physical_batch_size must be at least 1, got {physical_batch_size}")
        self.dataset = loader.dataset
        self.sampling_rate = sampling_rate
        self.examples = len(loader.dataset)  # type: ignore[arg-type]
        self._part = range(self.examples) if part is None else part
        self._users = loader.sampler if isinstance(loader.sampler, UserSampler) else None
        if self._users is not None and physical_batch_size is not None:
            check_room(self._users, physical_batch_size)
        self.steps_per_epoch = steps_per_epoch(sampling_rate)
        self.position = 0
        self.whole_batches = False
        self._stream = stream
        self._physical = physical_batch_size
        self._owner = owner
        self._on_start = on_start
        self._iterators = 0
        self._fetch = _Fetch(self.dataset, _collates_itself(loader) or loader.collate_fn, self.examples)
        self._options = {name: getattr(loader, name) for name in _OPTIONS}

    def __len__(self) -> int:
        return self.steps_per_epoch

    @property
    def is_in_pieces(self) -> bool:
        """A logical batch may arrive in several pieces."""
        return self._physical is not None

    def reseed(self, stream: Stream) -> None:
        """Draw later batches from another stream."""
        self._stream = stream

    @draw
    def indices(self, step: int) -> NDArray[np.int64]:
        """The examples of batch number ``step``."""
        if self._users is not None:
            return self._draw(self._users, step)[0]
        chosen = bernoulli_positions(self._stream.fork(step), len(self._part), self.sampling_rate)
        chosen += self._part.start
        return chosen

    @draw
    def _draw(self, users: UserSampler, step: int) -> tuple[NDArray[np.int64], Units | None]:
        """The examples of batch number ``step``, and whose they are where a user's examples are one unit."""
        return users.draw(self._stream.fork(step), self.sampling_rate)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch in which ``position`` lies."""
        self._iterators += 1
        iterator = self._iterators
        if self._on_start is not None:
            self._on_start()
        if self._owner is not None:
            self._owner.begin_epoch()
        for batch in self._batches():
            for number, (piece, contents) in enumerate(batch):
                if iterator != self._iterators:
                    raise RuntimeError(
                        "data_loader: a newer iterator is in use; a loader has one iterator at a time"
                    )
                if piece.first:
                    self.position = piece.step + 1
                if self._owner is not None:
                    rest = batch[number:]
                    self._owner.hand_out(
                        contents,
                        piece.indices.size,
                        first=piece.first,
                        last=piece.last,
                        batch=[following for _, following in rest] if self.whole_batches else (),
                        units=[each.units for each, _ in rest if each.units is not None],
                    )
                yield contents
        if self._owner is not None and iterator == self._iterators:
            self._owner.end_epoch()

    def _batches(self) -> Iterator[list[tuple[_Piece, Any]]]:
        """The fetched pieces of each logical batch together, or each piece by itself."""
        end = (self.position // self.steps_per_epoch + 1) * self.steps_per_epoch
        pending: list[tuple[_Piece, Any]] = []
        for fetched in self._fetched(range(self.position, end)):
            pending.append(fetched)
            if fetched[0].last or not self.whole_batches:
                yield pending
                pending = []

    def _pieces(self, steps: range) -> Iterator[_Piece]:
        for step in steps:
            users, units = self._users, None
            if users is not None and users.sample == "users":
                indices, units = self._draw(users, step)
            else:
                indices = self.indices(step)
            size = self._physical or max(indices.size, 1)
            cuts = [slice(start, start + size) for start in range(0, max(indices.size, 1), size)]
            if units is not None and indices.size:
                cuts = list(whole_units(units, size))
            for number, cut in enumerate(cuts):
                own = part_of(units, cut) if units is not None and indices.size else units
                yield _Piece(step, indices[cut], number == 0, number == len(cuts) - 1, own)

    def _fetched(self, steps: range) -> Iterator[tuple[_Piece, Any]]:
        pieces = self._pieces(steps)
        if not self._options["num_workers"]:
            yield from ((piece, self._fetch[piece.indices]) for piece in pieces)
            return
        requested: deque[_Piece] = deque()

        def indices() -> Iterator[NDArray[np.int64]]:
            for piece in pieces:
                requested.append(piece)
                yield piece.indices

        for contents in DataLoader(self._fetch, sampler=indices(), batch_size=None, **self._options):
            yield requested.popleft(), contents


class _Piece(NamedTuple):
    step: int
    indices: NDArray[np.int64]
    first: bool
    last: bool
    units: Units | None = None


class FixedLoader:
    """The user's batches, one per step; the ``owner`` is told of each.

    The number of examples in a batch comes from the loader's batch sampler, which must not repeat an example in
    a batch; for other iterables, from the size that the tensors of a batch share along dimension 0.
    """

    def __init__(self, loader: Any, owner: BatchReceiver, on_start: Callable[[], None]) -> None:
        self._loader = loader
        self._owner = owner
        self._on_start = on_start

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._on_start()
        self._owner.begin_epoch()
        for batch, examples in self._counted():
            self._owner.hand_out(batch, examples, first=True, last=True, batch=(batch,))
            yield batch
        self._owner.end_epoch()

    def _counted(self) -> Iterator[tuple[Any, int]]:
        loader = self._loader
        plain = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        if not plain or loader.batch_sampler is None:
            for batch in loader:
                yield batch, _known_size(batch)
            return
        sizes: deque[int] = deque()

        def indices() -> Iterator[list[int]]:
            for chosen in loader.batch_sampler:
                chosen = list(chosen)
                if len(set(chosen)) != len(chosen):
                    raise ValueError(
                        "data_loader: its sampler gave an example twice in one batch; each counts once"
                    )
                sizes.append(len(chosen))
                yield chosen

        options = {name: getattr(loader, name) for name in _OPTIONS}
        fetched = DataLoader(loader.dataset, batch_sampler=indices(), collate_fn=loader.collate_fn, **options)
        for batch in fetched:
            yield batch, sizes.popleft()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


_OPTIONS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


def _known_size(batch: Any) -> int:
    examples = examples_in(batch)
    if examples is None:
        raise ValueError(
            "data_loader: the number of examples in a batch is unclear, since its tensors do not share one size along "
            "dimension 0; use a DataLoader over a map-style dataset, or put the examples first in every tensor"
        )
    return examples


def examples_in(batch: Any) -> int | None:
    """The size that all tensors of a batch share along dimension 0; None where they do not."""
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in array_leaves(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def array_leaves(batch: Any) -> list[Any]:
    """The tensors and arrays of a batch, from nested mappings, sequences and dataclasses."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return [batch]
    if isinstance(batch, Mapping):
        return [leaf for value in batch.values() for leaf in array_leaves(value)]
    if isinstance(batch, list | tuple):
        return [leaf for value in batch for leaf in array_leaves(value)]
    if is_dataclass(batch) and not isinstance(batch, type):
        return [leaf for field in fields(batch) for leaf in array_leaves(getattr(batch, field.name))]
    return []


class _Fetch(torch.utils.data.Dataset[Any]):
    """A dataset whose index is a whole batch, which may be empty."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | str, examples: int) -> None:
        self._dataset = dataset
        self._collate = collate
        self._empty = empty_batch(self.__getitem__, examples)

    def __getitem__(self, indices: NDArray[np.int64]) -> Any:
        if not indices.size:
            return copy.deepcopy(self._empty)  # the user may change it
        if self._collate == "tensors":
            rows = torch.from_numpy(indices)
            return tuple(tensor[rows] for tensor in self._dataset.tensors)
        if self._collate == "itself":
            return self._dataset.__getitems__(indices)
        chosen = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(chosen))  # type: ignore[operator]
        return self._collate([self._dataset[n] for n in chosen])  # type: ignore[operator]


def batch_of(loader: DataLoader[Any]) -> Callable[[NDArray[np.int64]], Any]:
    """What a loader would give for these examples."""
    how = _collates_itself(loader) or loader.collate_fn
    return _Fetch(loader.dataset, how, len(loader.dataset)).__getitem__  # type: ignore[arg-type]


def _collates_itself(loader: DataLoader[Any]) -> str | None:
    """How a dataset returns whole batches: "tensors", "itself" if it declares ``collates = True``, else None."""
    if getattr(loader.dataset, "collates", False):
        return "itself"
    plain = type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate
    return "tensors" if plain else None


def check_loader(loader: Any) -> None:
    """Refuse a loader that cannot be Poisson sampled, with advice."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"data_loader must be a torch DataLoader, got {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "data_loader iterates over a stream; Poisson sampling needs a map-style dataset with a length "
            "(or pass poisson=False and expected_batch_size, which is accounted without amplification)"
        )
    if not len(loader.dataset):  # type: ignore[arg-type]
        raise ValueError("data_loader has an empty dataset")
    for sampler, kinds in (
        (loader.sampler, RandomSampler | SequentialSampler | UserSampler),
        (loader.batch_sampler, BatchSampler | None),
    ):
        if not isinstance(sampler, kinds):
            raise ValueError(
                f"data_loader samples with {type(sampler).__name__}, which is not Poisson sampling; "
                "give a loader without a custom sampler, or poisson=False"
            )


def check_once(loader: Any) -> None:
    """Refuse a loader that may hold an example twice in one pass."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return
    sampler = loader.sampler
    if getattr(sampler, "replacement", False):
        raise ValueError(
            f"data_loader samples with {type(sampler).__name__} with replacement, which may give an example twice; give "
            "a loader that holds each example once"
        )


def each_once(loader: Any) -> Iterator[Any]:
    """The batches of one pass over a loader; an example that its sampler repeats is refused.

    A stream or another iterable cannot be checked: its examples have no index.
    """
    check_once(loader)
    has_indices = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not has_indices or _gives_each_once(loader):
        yield from loader
        return
    batched = loader.batch_sampler is not None
    seen: set[Any] = set()

    def indices() -> Iterator[Any]:
        for chosen in loader.batch_sampler if batched else loader.sampler:
            chosen = list(chosen) if batched else chosen
            ids = np.atleast_1d(chosen).tolist()
            if len(set(ids)) != len(ids) or not seen.isdisjoint(ids):
                raise ValueError(
                    "data_loader: its sampler gave an example twice in one pass; give a loader that holds each once"
                )
            seen.update(ids)
            yield chosen

    source = {"batch_sampler": indices()} if batched else {"sampler": indices(), "batch_size": None}
    options = {name: getattr(loader, name) for name in _OPTIONS}
    yield from DataLoader(loader.dataset, collate_fn=loader.collate_fn, **source, **options)


def _gives_each_once(loader: DataLoader[Any]) -> bool:
    """Torch's samplers without replacement need no record of the indices they gave."""
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) is SequentialSampler
