"""Rows made to satisfy the assumption: shortened to a public norm, and averaged without rounding."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sparsedp.mechanisms.histogram import Floats

# Norms of up to 2^27 entries in float64 are off by less than 2^-26, so a row shortened to (1 - 2^-26) of the
# bound never passes it.
_SAFE = 1.0 - 2.0**-26
_EXACT_BITS = 52

Rows = Floats | sparse.csr_array


def check_rows(name: str, rows: ArrayLike | sparse.sparray | sparse.spmatrix) -> sparse.csr_array:
    """The rows as a float64 CSR array of at least one row and column, without duplicates, all finite."""
    if not sparse.issparse(rows):
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise ValueError(f"{name} must be a matrix with one example a row, got shape {rows.shape}")
    try:
        matrix = sparse.csr_array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers: {error}") from error
    if matrix.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one example, got n = 0")
    if matrix.shape[1] == 0:
        raise ValueError(f"{name} must have at least one coordinate, got d = 0")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()  # two entries of one coordinate would count twice in a norm
    if not np.isfinite(matrix.data).all():
        raise ValueError(f"{name} must be finite, got NaN or an infinity")
    return matrix


def as_rows(checked: Any) -> Rows:
    """Rows that a scikit-learn validator has passed: a CSR array, or an array as it is."""
    if isinstance(checked, np.ndarray):
        return checked
    matrix: sparse.csr_array = sparse.csr_array(checked)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def row_norms(rows: Rows, order: int) -> Floats:
    """The l1 (``order`` 1) or l2 (``order`` 2) norm of every row; infinite where a square overflows."""
    with np.errstate(over="ignore"):
        if not sparse.issparse(rows):
            return np.asarray((np.abs(rows) ** order).sum(axis=1) ** (1.0 / order))
        powers = sparse.csr_array((np.abs(rows.data) ** order, rows.indices, rows.indptr), shape=rows.shape)
        return np.asarray(powers @ np.ones(rows.shape[1])) ** (1.0 / order)


@overload
def clip_rows(rows: sparse.csr_array, *, l2: float, l1: float = math.inf) -> sparse.csr_array: ...
@overload
def clip_rows(rows: Rows, *, l2: float, l1: float = math.inf) -> Rows: ...
def clip_rows(rows: Rows, *, l2: float, l1: float = math.inf) -> Rows:
    """Every row shortened, where it must be, so that its l2 norm is at most ``l2`` and its l1 norm ``l1``.

    A row's result depends on that row alone. A row within both bounds is returned bit for bit.
    """
    shrink = np.ones(rows.shape[0])
    for order, bound in ((2, l2), (1, l1)):
        norms = row_norms(rows, order)
        long = norms > bound * _SAFE
        shrink[long] = np.minimum(shrink[long], bound * _SAFE / norms[long])
    if isinstance(rows, np.ndarray):
        return rows * shrink[:, None]
    factors = np.repeat(shrink, np.diff(rows.indptr))
    return sparse.csr_array((rows.data * factors, rows.indices, rows.indptr), shape=rows.shape)


def exact_mean(rows: sparse.csr_array, *, l2: float) -> Floats:
    """The mean of rows of norm at most ``l2``, summed without rounding.

    Guarantee: replacing one row moves the sum by exactly the difference of two vectors of norm at most
    ``l2`` (and of no larger l1 norm than the rows had): floating-point sums, whose error depends on every
    row, would not promise that.
    Proof: entries are cut, towards zero, to multiples of a power of two g with n l2 <= 2^52 g. Cutting
    shrinks every norm, and all partial sums are multiples of g below 2^53 g, which float64 holds exactly.
    """
    n, d = rows.shape
    cut = cut_for_sums(rows.data, n * l2)
    return np.asarray(np.bincount(rows.indices, weights=cut, minlength=d) / n, dtype=np.float64)


def cut_for_sums(values: Floats, largest: float) -> Floats:
    """The values cut towards zero so that sums of them which stay within ``largest`` are exact in any order."""
    grid = math.ldexp(1.0, math.ceil(math.log2(largest)) - _EXACT_BITS)
    return np.asarray(np.trunc(values / grid) * grid)
