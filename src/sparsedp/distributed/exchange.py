"""All traffic of a run between its processes: one uneven all-to-all of arrays, and what rank 0 decides."""

from __future__ import annotations

import pickle
import zlib
from ast import literal_eval
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
MOST_ARRAYS = 4
"""A message has at most so many arrays: what announces it is of one size, whatever it is."""
HEAD = 16 * (1 + MOST_ARRAYS)
"""Bytes that announce a message: its turn and purpose, the type and length of each array."""

_Result = TypeVar("_Result")
_RAISED: tuple[type[Exception], ...] = (BudgetExceeded, ValueError, OSError)
"""What one process may raise on behalf of all; anything else becomes a RuntimeError elsewhere."""
_SAME_CALLS = (
    "all processes must take the same steps, also with an empty batch, and all must call save, resume, export and "
    "every forward pass through a sharded table"
)


class PeerLost(RuntimeError):
    """Another process of the run has ended or is out of reach, or waits for something else."""


@dataclass
class Traffic:
    """NOT PRIVATE: what this process has sent to others, by purpose; it tells how many rows its examples read.

    For tuning on data that may be looked at. Bytes to itself are not counted.
    """

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
    its connection closes, else after the group's timeout. Messages are announced by their number and purpose, so
    that nothing is taken for something else where processes do not do the same.

    Messages hold examples' sums and counts without noise, in clear: the processes trust each other and the network
    between them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "torch.distributed is not initialised: start the script with torchrun and call "
                "sparsedp.distributed.init_processes() first"
            )
        self.rank = dist.get_rank(group)
        backends = dist.get_backend_config(group) if self.rank >= 0 else ""  # -1: not one of the group
        if self.rank >= 0 and "cpu:gloo" not in backends:
            raise ValueError(
                f"group: must exchange tensors in main memory, through gloo, got {backends}: let "
                "sparsedp.distributed.init_processes() join the processes, also for a model on another device"
            )
        self.group = group
        self.world = dist.group.WORLD
        self.size = dist.get_world_size(group)
        self.traffic = Traffic()
        self._turn = 0

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
        here = self.rank
        sizes = [_size(message) if peer != here else 0 for peer, message in enumerate(messages)]
        incoming = [_size_of(layout) if peer != here else 0 for peer, layout in enumerate(layouts)]
        self._count(purpose, sizes)
        sent, received = np.empty(sum(sizes), dtype=np.uint8), torch.empty(sum(incoming), dtype=torch.uint8)
        parts = np.split(sent, np.cumsum(sizes)[:-1])
        for peer, message in enumerate(messages):
            if peer != here:
                _pack(message, parts[peer])
        with self._watched(purpose):
            dist.all_to_all_single(received, torch.from_numpy(sent), incoming, sizes, group=self.group)
        parts = np.split(received.numpy(), np.cumsum(incoming)[:-1])
        return [
            messages[here] if peer == here else _unpacked(parts[peer], layout)
            for peer, layout in enumerate(layouts)
        ]

    def all_gather(
        self, purpose: str, message: Arrays, expected: Sequence[Layout] | None = None
    ) -> list[Arrays]:
        """The messages of all processes."""
        return self.all_to_all(purpose, [message] * self.size, expected)

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
        if self._announced(purpose, int(error is not None)):
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
                outcome[1] = _in_words(raised)
        sent = pickle.dumps(outcome)
        words = bytearray(sent if self.is_root else self._announced(purpose, 0))
        if self.is_root:
            self._announced(purpose, len(sent))
        self._broadcast(purpose, [torch.frombuffer(words, dtype=torch.uint8)])
        if error is not None:
            raise error
        if not self.is_root:
            outcome = pickle.loads(words)
        if outcome[1] is not None:
            raise _error_of(0, *outcome[1])
        result: _Result = outcome[0]
        return result

    def everywhere(self, purpose: str, act: Callable[[], _Result]) -> _Result:
        """What ``act`` gives in this process; if it fails in any process, all raise."""
        error: Exception | None = None
        result: Any = None
        try:
            result = act()
        except Exception as raised:
            error = raised
        words = self._texts(purpose, "" if error is None else repr(_in_words(error)))
        if error is not None:
            raise error
        for rank, text in enumerate(words):
            if text:
                raise _error_of(rank, *literal_eval(text))
        outcome: _Result = result
        return outcome

    def broadcast(self, purpose: str, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with those of rank 0."""
        self._announced(purpose, 0)
        self._broadcast(purpose, tensors)

    def agree(self, name: str, value: object) -> None:
        """Refuse if ``value``, in words, is not the same in all processes."""
        everywhere = self._texts(name, str(value))
        if len(set(everywhere)) > 1:
            raise ValueError(
                f"{name}: must be the same in all processes, got {everywhere} on ranks 0, 1, ..."
            )

    def _texts(self, purpose: str, text: str) -> list[str]:
        """The texts of all processes."""
        message = np.frombuffer(text.encode(), dtype=np.uint8)
        return [words.tobytes().decode() for (words,) in self.all_gather(purpose, [message])]

    def _announced(self, purpose: str, number: int) -> int:
        """Rank 0's number. All broadcasts begin so."""
        frame = torch.tensor([*self._stamp(purpose), number])
        own = frame[:2].tolist()
        self._broadcast(purpose, [frame])
        *stamp, number = frame.tolist()
        self._check_stamp(purpose, 0, own, stamp)
        return int(number)

    def _broadcast(self, purpose: str, tensors: Sequence[Tensor]) -> None:
        root = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        with self._watched(purpose):
            for tensor in tensors:
                dist.broadcast(tensor, src=root, group=self.group)
        if self.is_root:
            self._count(purpose, [0, *[sum(t.numel() * t.element_size() for t in tensors)] * (self.size - 1)])

    def _stamp(self, purpose: str) -> tuple[int, int]:
        """Turn and purpose, as numbers."""
        self._turn += 1
        return self._turn, zlib.crc32(purpose.encode())

    def _check_stamp(self, purpose: str, peer: int, own: Sequence[int], stamp: Sequence[int]) -> None:
        if list(stamp) != list(own):
            raise RuntimeError(
                f"rank {self.rank} exchanges {purpose!r}, and rank {peer} something else: {_SAME_CALLS}"
            )

    def _layouts(self, purpose: str, messages: Sequence[Arrays]) -> list[list[tuple[DTypeLike, int]]]:
        arrays = len(messages[0])
        if arrays > MOST_ARRAYS:
            raise ValueError(f"messages: at most {MOST_ARRAYS} arrays, got {arrays}")
        heads = np.zeros((self.size, 1 + MOST_ARRAYS, 2), dtype=np.int64)
        heads[:, 0] = self._stamp(purpose)
        for peer, message in enumerate(messages):
            for n, array in enumerate(message, 1):
                heads[peer, n] = _TYPES.index(array.dtype.type), array.size
        received = torch.empty(heads.shape, dtype=torch.int64)
        self._count(purpose, [heads[0].nbytes] * self.size)
        with self._watched(purpose):
            dist.all_to_all_single(received, torch.from_numpy(heads), group=self.group)
        layouts: list[list[tuple[DTypeLike, int]]] = []
        for peer, (stamp, *each) in enumerate(received.tolist()):
            self._check_stamp(purpose, peer, heads[0, 0].tolist(), stamp)
            layouts.append([(_TYPES[kind], count) for kind, count in each[:arrays]])
        return layouts

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
                f"rank {self.rank} of {self.size}: another process of this run has ended, is out of reach, or does "
                f"something else (while exchanging {purpose}; {_SAME_CALLS}). Start all of them again and resume "
                f"from the last checkpoint. Steps that were charged stay charged. ({error})"
            ) from error


def _raise(error: Exception | None) -> None:
    assert error is not None
    raise error


def _in_words(error: Exception) -> tuple[int | None, str]:
    """The kind of an error and its text."""
    return next((n for n, each in enumerate(_RAISED) if isinstance(error, each)), None), str(error)


def _error_of(rank: int, kind: int | None, text: str) -> Exception:
    return (RuntimeError if kind is None else _RAISED[kind])(f"rank {rank}: {text}")


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def _size(message: Arrays) -> int:
    return sum(_padded(array.nbytes) for array in message)


def _size_of(layout: Layout) -> int:
    return sum(_padded(np.dtype(kind).itemsize * count) for kind, count in layout)


def _pack(message: Arrays, buffer: NDArray[np.uint8]) -> None:
    """The arrays one after the other, each from a multiple of 8 bytes on."""
    begin = 0
    for array in message:
        end = begin + array.nbytes
        buffer[begin:end].view(array.dtype)[...] = array.reshape(-1)
        begin += _padded(array.nbytes)
        buffer[end:begin] = 0


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
