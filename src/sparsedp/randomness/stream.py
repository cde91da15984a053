"""A stream: the standard distributions, drawn from one keystream."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.compiled import compiled
from sparsedp.randomness.cells import CHUNK, rounded_gaussian
from sparsedp.randomness.keystream import Keystream

Size = int | tuple[int, ...]

_TWO_TO_MINUS_64 = 2.0**-64
_TWO_TO_MINUS_128 = 2.0**-128
_NORMAL_BITS = 44
_SMALLEST = 2.0**-65
_LARGEST = 1.0 - 2.0**-53


class Stream:
    """Random numbers from one AES-256-CTR keystream.

    A stream is used for one purpose, by one process. What it draws is a function of its key and position
    alone; ``state`` and ``restore`` carry both. The state of a private stream is a secret.
    """

    __slots__ = ("_keystream", "name")

    def __init__(self, name: str, key: bytes, *, private: bool) -> None:
        self.name = name
        self._keystream = Keystream(key, private=private)

    @property
    def is_private(self) -> bool:
        """False for a stream that grew from a seed: reproducible, not private."""
        return self._keystream.private

    @property
    def keystream(self) -> Keystream:
        """The bytes below, for those who fill buffers in bulk."""
        return self._keystream

    def bytes(self, n: int) -> bytes:
        """The next ``n`` bytes."""
        return self._keystream.take(_count("n", n))

    def uint64(self, size: int) -> NDArray[np.uint64]:
        """Uniform 64-bit words."""
        words = np.empty(_count("size", size), dtype=np.uint64)
        self._keystream.fill(words.data)
        return words if sys.byteorder == "little" else words.byteswap()

    def uniform(self, size: Size) -> NDArray[np.float64]:
        """Uniform on the open interval (0, 1): a 64-bit word rounded to 53 significant bits.

        Small values are as fine as 2^-65, so that the logarithm of a uniform has its whole tail.
        """
        shape = shape_of(size)
        values = self.uint64(math.prod(shape)).astype(np.float64)
        values *= _TWO_TO_MINUS_64
        return np.clip(values, _SMALLEST, _LARGEST, out=values).reshape(shape)

    def normal(self, size: Size) -> NDArray[np.float64]:
        """Standard normals: multiples of 2^-44, each with its probability to a relative 2^-40.

        For public randomness and simulations. Where data and noise meet, see ``round_gaussian``.
        """
        shape = shape_of(size)
        values = np.empty(math.prod(shape))
        cells = values.view(np.int64)
        rounded_gaussian(2.0**_NORMAL_BITS).fill(cells, self)
        for begin in range(0, values.size, CHUNK):
            values[begin : begin + CHUNK] = cells[begin : begin + CHUNK] * 2.0**-_NORMAL_BITS
        return values.reshape(shape)

    def exponential(self, size: Size) -> NDArray[np.float64]:
        """Standard exponentials (mean 1), from 128 bits each.

        Guarantee: each is a continuous exponential number, rounded to a relative 2^-50, from 2^-75 to 88. So
        a comparison of exponentials times constants has its probability to a relative 2^-48.
        """
        shape = shape_of(size)
        values = np.empty(math.prod(shape))
        _exponentials(self.uint64(2 * values.size), values)
        return values.reshape(shape)

    def laplace(self, size: Size) -> NDArray[np.float64]:
        """Standard Laplace (scale 1): an exponential with a random sign."""
        shape = shape_of(size)
        count = math.prod(shape)
        values = self.exponential(count)
        signs = np.frombuffer(self.bytes(count), dtype=np.uint8) & 1
        np.negative(values, out=values, where=signs.astype(bool))
        return values.reshape(shape)

    def gumbel(self, size: Size) -> NDArray[np.float64]:
        """Standard Gumbel: minus the logarithm of an exponential, fine in both tails."""
        values = self.exponential(size)
        np.log(values, out=values)
        return np.negative(values, out=values)

    def integers(self, high: int, size: Size) -> NDArray[np.int64]:
        """Uniform on 0 .. high - 1 without bias: words beyond the last whole multiple are redrawn."""
        high = operator.index(high)
        if not 0 < high <= 2**63:
            raise ValueError(f"high: must lie in 1 .. 2^63, got {high}")
        shape = shape_of(size)
        words = self.uint64(math.prod(shape))
        last = np.uint64(2**64 // high * high - 1)
        while (redraw := np.flatnonzero(words > last)).size:
            words[redraw] = self.uint64(redraw.size)
        return (words % np.uint64(high)).astype(np.int64).reshape(shape)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniformly random order of 0 .. n - 1: that of n random words, all redrawn if two are equal."""
        n = _count("n", n)
        while True:
            words = self.uint64(n)
            order = np.argsort(words)
            ranked = words[order]
            if not np.any(ranked[1:] == ranked[:-1]):
                return order.astype(np.int64, copy=False)

    def fork(self, index: int) -> Stream:
        """Sub-stream number ``index``: always the same one, independent of this and of every other.

        It depends on this stream's key, not on its position, and does not move it: use an index once.
        """
        index = operator.index(index)
        return Stream(
            f"{self.name}/{index}", self._keystream.derive(f"fork {index}"), private=self.is_private
        )

    def state(self) -> dict[str, str | int]:
        """Key, position and whether the stream is private; the state of a private stream is secret."""
        return {
            "key": self._keystream.key.hex(),
            "position": self._keystream.position,
            "private": self.is_private,
        }

    def restore(self, state: Mapping[str, str | int]) -> None:
        """Continue exactly where ``state`` was taken. A stream that was ever seeded stays not private."""
        try:
            key, position, private = state["key"], state["position"], state["private"]
            if not (isinstance(key, str) and isinstance(position, int)):
                raise TypeError
            keystream = Keystream(bytes.fromhex(key), position, private=self.is_private and bool(private))
        except (KeyError, TypeError, ValueError):
            raise ValueError("state: not the state of a stream") from None
        self._keystream = keystream

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream is not copied or pickled, a copy would draw the same noise again: "
            "use fork() for another stream, state() and restore() to resume one"
        )

    def __repr__(self) -> str:
        kind = "secure" if self.is_private else "reproducible, not private"
        return f"<Stream {self.name!r} ({kind}) at byte {self._keystream.position}>"


@compiled
def uniform_of(word: np.uint64) -> float:
    """A word as a number in (0, 1)."""
    return min(max(np.float64(word) * _TWO_TO_MINUS_64, _SMALLEST), _LARGEST)


@compiled
def exponential_of(high: np.uint64, low: np.uint64) -> float:
    """The 128 bits of two words as an exponential number, to a relative 2^-50 everywhere."""
    if high < np.uint64(1 << 63):
        below = np.float64(high) * _TWO_TO_MINUS_64 + (np.float64(low) + 0.5) * _TWO_TO_MINUS_128
        return -math.log1p(-below)
    above = np.float64(~high) * _TWO_TO_MINUS_64 + (np.float64(~low) + 0.5) * _TWO_TO_MINUS_128
    return -math.log(above)


@compiled
def _exponentials(words: NDArray[np.uint64], values: NDArray[np.float64]) -> None:
    for i in range(values.size):
        values[i] = exponential_of(words[2 * i], words[2 * i + 1])


def _count(argument: str, value: int) -> int:
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{argument}: must not be negative, got {value}")
    return value


def shape_of(size: Size) -> tuple[int, ...]:
    """A size as a tuple of non-negative integers."""
    if not isinstance(size, tuple):
        return (_count("size", size),)
    return tuple(_count("size", each) for each in size)
