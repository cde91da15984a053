"""Poisson loading: every example enters every batch independently with the same probability."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from sparsedp.randomness import Stream, bernoulli_positions


class PoissonLoader:
    """Batches for DP training from any map-style dataset.

    Batch number t holds each of the n examples independently with probability ``sampling_rate``, drawn by
    geometric gaps from sub-stream t of ``stream``: O(batch) work however large the dataset, and a position
    that is one number to save. Empty batches come as empty tensors of the right shapes. With
    ``physical_batch_size`` a logical batch arrives in pieces of at most that many examples, and
    ``mid_batch`` is True until its last piece.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        sampling_rate: float,
        stream: Stream,
        physical_batch_size: int | None = None,
    ) -> None:
        if physical_batch_size is not None and physical_batch_size < 1:
            raise ValueError(f"physical_batch_size must be at least 1, got {physical_batch_size}")
        self.dataset = loader.dataset
        self.sampling_rate = sampling_rate
        self._examples = len(loader.dataset)  # type: ignore[arg-type]
        self.steps_per_epoch = steps_per_epoch(sampling_rate)
        self.position = 0
        self.mid_batch = False
        self.logical_batches = 0
        self._stream = stream
        self._physical = physical_batch_size
        self._last_piece: deque[bool] = deque()
        self._template: Any = None
        self._collate = _collates_itself(self.dataset) or loader.collate_fn
        self._options = {
            "num_workers": loader.num_workers,
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
        }

    def __len__(self) -> int:
        return self.steps_per_epoch

    def reseed(self, stream: Stream) -> None:
        """Draw later batches from another stream."""
        self._stream = stream

    def indices(self, step: int) -> NDArray[np.int64]:
        """The examples of batch number ``step``."""
        return bernoulli_positions(self._stream.fork(step), self._examples, self.sampling_rate)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch in which ``position`` lies."""
        last = (self.position // self.steps_per_epoch + 1) * self.steps_per_epoch
        self._last_piece.clear()
        pieces = self._pieces(range(self.position, last))
        for batch in self._fetched(pieces):
            self.mid_batch = not self._last_piece.popleft()
            if not self.mid_batch:
                self.position += 1
                self.logical_batches += 1
            yield batch

    def _pieces(self, steps: range) -> Iterator[NDArray[np.int64]]:
        for step in steps:
            indices = self.indices(step)
            size = self._physical or max(indices.size, 1)
            starts = range(0, max(indices.size, 1), size)
            for start in starts:
                self._last_piece.append(start + size >= indices.size)
                yield indices[start : start + size]

    def _fetched(self, pieces: Iterator[NDArray[np.int64]]) -> Iterator[Any]:
        fetch = _Fetch(self.dataset, self._collate)
        if not self._options["num_workers"]:
            for indices in pieces:
                yield fetch[indices]
        else:
            yield from DataLoader(fetch, sampler=pieces, batch_size=None, **self._options)


class _Fetch(torch.utils.data.Dataset[Any]):
    """A dataset whose index is a whole batch; an empty batch is an example's batch cut to nothing."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | str) -> None:
        self._dataset = dataset
        self._collate = collate

    def __getitem__(self, indices: NDArray[np.int64]) -> Any:
        if not indices.size:
            return _empty_like(self[np.zeros(1, dtype=np.int64)])
        if self._collate == "tensors":
            rows = torch.from_numpy(indices)
            return tuple(tensor[rows] for tensor in self._dataset.tensors)
        if self._collate == "itself":
            return self._dataset.__getitems__(indices)
        chosen = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(chosen))  # type: ignore[operator]
        return self._collate([self._dataset[n] for n in chosen])  # type: ignore[operator]


def _collates_itself(dataset: Any) -> str | None:
    """Datasets that give whole batches at once: tensors, and those that declare ``collates = True``."""
    if type(dataset) is TensorDataset:
        return "tensors"
    return "itself" if getattr(dataset, "collates", False) else None


def _empty_like(batch: Any) -> Any:
    """The same structure with no examples. Offsets of bags are one-dimensional too, and become empty."""
    if isinstance(batch, torch.Tensor):
        return batch[:0]
    if isinstance(batch, dict):
        return {key: _empty_like(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[_empty_like(value) for value in batch])
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return type(batch)(_empty_like(value) for value in batch)  # type: ignore[call-arg]
    if isinstance(batch, np.ndarray):
        return batch[:0]
    return batch


def steps_per_epoch(sampling_rate: float) -> int:
    """How many Poisson batches the loader hands out in one pass: 1 / rate, the last one begun counted whole."""
    return max(1, math.ceil(1.0 / sampling_rate - 1e-6))


def steps_in(epochs: float, steps_per_epoch: int) -> int:
    """How many steps so many passes over a loader take; of a part of a pass, the last one begun is whole.

    Passes are what a training loop makes, so this is never less than the loop will ask for: ``epochs`` times
    1 / rate can be, where 1 / rate is no whole number.
    """
    return max(1, math.ceil(epochs * steps_per_epoch - 1e-6))


def check_loader(loader: Any) -> None:
    """Refuse what cannot be sampled by Poisson, with advice."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"data_loader must be a torch DataLoader, got {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "data_loader iterates over a stream; Poisson sampling needs a map-style dataset with a length "
            "(or pass poisson=False, which is accounted without amplification)"
        )
    if not len(loader.dataset):  # type: ignore[arg-type]
        raise ValueError("data_loader has an empty dataset")
    sampler = loader.sampler
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        raise ValueError(
            f"data_loader samples with {type(sampler).__name__}, which is not Poisson sampling; "
            "give a loader without a sampler of its own, or poisson=False"
        )
