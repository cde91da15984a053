"""All traffic of a run between its processes: one uneven all-to-all of arrays, and what rank 0 decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from sparsedp.accounting import BudgetExceeded

Arrays = list[NDArray[Any]]
"""The arrays of one message."""
Layout = Sequence[tuple[DTypeLike, int]]
"""The type and length of each array of a message."""

_TYPES = (np.int64, np.int32, np.float64, np.float32, np.uint8)
_ALIGNED = 8
"""Every array of a message begins at a multiple of this many bytes."""

_Result = TypeVar("_Result")
_RAISED: tuple[type[Exception], ...] = (BudgetExceeded, ValueError, OSError)
"""What rank 0 may raise on behalf of all; anything else becomes a RuntimeError elsewhere."""


class PeerLost(RuntimeError):
    """Another process of the run has ended or is out of reach."""


@dataclass
class Traffic:
    """What this process has sent to others, by purpose. Bytes to itself are not counted."""

    sent: Counter[str] = field(default_factory=Counter)
    """Bytes."""
    messages: Counter[str] = field(default_factory=Counter)
    """Messages that were not empty."""

    @property
    def bytes(self) -> int:
        """All bytes sent."""
        return sum(self.sent.values())

    def clear(self) -> None:
        """Count from zero."""
        self.sent.clear()
        self.messages.clear()


class Exchange:
    """The processes of a ``torch.distributed`` group, as a private run uses them.

    Every method is a collective: all processes call it, in the same order. Messages may be empty, so that a process
    without examples takes part like the others. Where a process is lost, the others raise ``PeerLost``: at once if
    its connection closes, else after the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "torch.distributed is not initialised: start the script with torchrun and call "
                "sparsedp.distributed.init_processes() first"
            )
        self.group = group
        self.world = dist.group.WORLD
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.traffic = Traffic()

    @property
    def is_root(self) -> bool:
        """Rank 0 writes the ledger and decides what all must agree on."""
        return self.rank == 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Exchange:
        return self

    def all_to_all(
        self, purpose: str, messages: Sequence[Arrays], expected: Sequence[Layout] | None = None
    ) -> list[Arrays]:
        """Send ``messages[p]`` to process p; the messages of all processes to this one.

        ``expected`` is the layout of what each process sends, where it is known: that saves a round of messages.
        """
        if self.size == 1:
            return [messages[0]]
        layouts = self._layouts(purpose, messages) if expected is None else expected
        buffers = [_packed(message) for message in messages]
        sizes = [buffer.size for buffer in buffers]
        incoming = [sum(_padded(np.dtype(kind).itemsize * count) for kind, count in each) for each in layouts]
        self._count(purpose, sizes)
        received = torch.empty(sum(incoming), dtype=torch.uint8)
        sent = torch.from_numpy(np.concatenate(buffers))
        with self._watched(purpose):
            dist.all_to_all_single(received, sent, incoming, sizes, group=self.group)
        parts = np.split(received.numpy(), np.cumsum(incoming)[:-1])
        return [_unpacked(part, layout) for part, layout in zip(parts, layouts, strict=True)]

    def all_gather(self, purpose: str, message: Arrays) -> list[Arrays]:
        """The messages of all processes."""
        return self.all_to_all(purpose, [message] * self.size)

    def gather(self, purpose: str, message: Arrays) -> list[Arrays]:
        """The messages of all processes at rank 0; empty ones elsewhere."""
        nothing = [array[:0] for array in message]
        return self.all_to_all(purpose, [message, *[nothing] * (self.size - 1)])

    def permitted(self, purpose: str, permit: Callable[[], None]) -> None:
        """Return when ``permit`` has returned at rank 0, where alone it is called; its errors are raised everywhere."""
        error: Exception | None = None
        if self.is_root:
            try:
                permit()
            except Exception as raised:
                error = raised
        refused = torch.tensor([error is not None], dtype=torch.uint8)
        self.broadcast(purpose, [refused])
        if refused:
            self.from_root(purpose, lambda: _raise(error))

    def from_root(self, purpose: str, decide: Callable[[], _Result]) -> _Result:
        """What ``decide`` gives at rank 0, where alone it is called; its errors are raised everywhere."""
        outcome: list[Any] = [None, None]
        error: Exception | None = None
        if self.is_root:
            try:
                outcome[0] = decide()
            except Exception as raised:
                error = raised
                kind = next((n for n, each in enumerate(_RAISED) if isinstance(raised, each)), None)
                outcome[1] = (kind, str(raised))
        with self._watched(purpose):
            root = 0 if self.group is None else dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(outcome, src=root, group=self.group)
        self.traffic.messages[purpose] += (self.size - 1) * self.is_root
        if error is not None:
            raise error
        if outcome[1] is not None:
            kind, text = outcome[1]
            raise (RuntimeError if kind is None else _RAISED[kind])(f"rank 0: {text}")
        result: _Result = outcome[0]
        return result

    def broadcast(self, purpose: str, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with those of rank 0."""
        root = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        with self._watched(purpose):
            for tensor in tensors:
                dist.broadcast(tensor, src=root, group=self.group)
        if self.is_root:
            self._count(purpose, [0, *[sum(t.numel() * t.element_size() for t in tensors)] * (self.size - 1)])

    def agree(self, name: str, value: object) -> None:
        """Refuse if ``value``, in words, is not the same in all processes."""
        everywhere: list[Any] = [None] * self.size
        with self._watched(name):
            dist.all_gather_object(everywhere, str(value), group=self.group)
        if len(set(everywhere)) > 1:
            raise ValueError(
                f"{name}: must be the same in all processes, got {everywhere} on ranks 0, 1, ..."
            )

    def _layouts(self, purpose: str, messages: Sequence[Arrays]) -> list[list[tuple[DTypeLike, int]]]:
        arrays = len(messages[0])
        heads = np.empty((self.size, arrays, 2), dtype=np.int64)
        for peer, message in enumerate(messages):
            for n, array in enumerate(message):
                heads[peer, n] = _TYPES.index(array.dtype.type), array.size
        received = torch.empty(heads.shape, dtype=torch.int64)
        self._count(purpose, [heads[0].nbytes] * self.size)
        with self._watched(purpose):
            dist.all_to_all_single(received, torch.from_numpy(heads), group=self.group)
        return [[(_TYPES[kind], count) for kind, count in each] for each in received.tolist()]

    def _count(self, purpose: str, sizes: Sequence[int]) -> None:
        others = [size for peer, size in enumerate(sizes) if peer != self.rank and size]
        self.traffic.sent[purpose] += sum(others)
        self.traffic.messages[purpose] += len(others)

    @contextmanager
    def _watched(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, dist.DistBackendError) as error:
            raise PeerLost(
                f"rank {self.rank} of {self.size}: another process of this run has ended or is out of reach (while "
                f"exchanging {purpose}); start all of them again and resume from the last checkpoint. Steps that "
                f"were charged stay charged. ({error})"
            ) from error


def _raise(error: Exception | None) -> None:
    assert error is not None
    raise error


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def _packed(message: Arrays) -> NDArray[np.uint8]:
    """The arrays one after the other, each from a multiple of 8 bytes on."""
    buffer = np.empty(sum(_padded(array.nbytes) for array in message), dtype=np.uint8)
    begin = 0
    for array in message:
        buffer[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer[begin + array.nbytes : begin + _padded(array.nbytes)] = 0
        begin += _padded(array.nbytes)
    return buffer


def _unpacked(buffer: NDArray[np.uint8], layout: Layout) -> Arrays:
    message, begin = [], 0
    for kind, count in layout:
        size = np.dtype(kind).itemsize * count
        message.append(buffer[begin : begin + size].view(kind))
        begin += _padded(size)
    return message


_default: Exchange | None = None


def default_exchange() -> Exchange:
    """The exchange over all processes: one object, so that all parts of a run count on it."""
    global _default
    if _default is None or _default.world is not dist.group.WORLD:
        _default = Exchange()
    return _default
