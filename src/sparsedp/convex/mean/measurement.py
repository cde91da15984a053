"""Random measurements for l1-recovery: a Gaussian matrix where it fits in memory, random cosines beyond."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from scipy.fft import dct, idct
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from sparsedp.core.arrays import F64, I64
from sparsedp.randomness import Stream

MOST_ENTRIES = 2**25
"""How many entries of a measurement matrix are held at most: 256 MB."""


class Measurement(Protocol):
    """A random m x d matrix that need not be held."""

    m: int
    d: int

    def columns(self, ids: I64) -> F64:
        """The columns of these coordinates, one a row of the answer."""
        ...

    def operator(self) -> LinearOperator:
        """The matrix for a solver: products with it and with its transpose."""
        ...


class GaussianMeasurement:
    """A ~ N(0, 1/m)^(m x d), held by columns: the matrix of SGO's Algorithm 2."""

    def __init__(self, m: int, d: int, stream: Stream) -> None:
        self.m, self.d = m, d
        self._columns: F64 = stream.normal((d, m)) / math.sqrt(m)

    def columns(self, ids: I64) -> F64:
        """The columns of these coordinates, one a row of the answer."""
        return self._columns[ids]

    def operator(self) -> LinearOperator:
        """The matrix for a solver."""
        return aslinearoperator(self._columns.T)


class CosineMeasurement:
    """m random rows of the cosine transform of length d, signs of the coordinates drawn first, norms kept.

    Never held: a product costs one fast transform, a column m cosines. Such a matrix recovers sparse vectors
    like a Gaussian one of almost as few rows (Rudelson and Vershynin 2008).
    """

    def __init__(self, m: int, d: int, stream: Stream) -> None:
        self.m, self.d = m, d
        self._frequencies = np.sort(stream.permutation(d - 1)[:m] + 1)
        self._signs = 1.0 - 2.0 * (np.frombuffer(stream.bytes(d), dtype=np.uint8) & 1)

    def columns(self, ids: I64) -> F64:
        """The columns of these coordinates, one a row of the answer."""
        turns = np.multiply.outer(2 * ids + 1, self._frequencies) % (4 * self.d)  # whole turns off, exactly
        cosines = np.cos(turns * (math.pi / (2 * self.d)))
        return np.asarray(math.sqrt(2 / self.m) * self._signs[ids, None] * cosines)

    def operator(self) -> LinearOperator:
        """The matrix for a solver, by fast transforms."""
        scale = math.sqrt(self.d / self.m)

        def times(x: F64) -> F64:
            return np.asarray(scale * dct(self._signs * x.ravel(), norm="ortho")[self._frequencies])

        def transposed_times(y: F64) -> F64:
            spectrum = np.zeros(self.d)
            spectrum[self._frequencies] = y.ravel()
            return np.asarray(scale * self._signs * idct(spectrum, norm="ortho"))

        return LinearOperator((self.m, self.d), matvec=times, rmatvec=transposed_times, dtype=np.float64)


def random_measurement(m: int, d: int, stream: Stream) -> Measurement:
    """A random m x d matrix; Gaussian if it can be held. It is public, and any choice of it is private."""
    return (GaussianMeasurement if m * d <= MOST_ENTRIES else CosineMeasurement)(m, d, stream)
