"""Rows made to satisfy the assumption: shortened to a public norm, and averaged without rounding."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_positive

# Norms of up to 2^27 entries in float64 are off by less than 2^-26, so a row shortened to (1 - 2^-26) of the
# bound never passes it.
_SAFE = 1.0 - 2.0**-26
_EXACT_BITS = 52
SMALLEST_BOUND = 1e-150
"""The smallest norm to clip to; the largest is its reciprocal."""

Rows = F64 | sparse.csr_array


def check_rows(name: str, rows: ArrayLike | sparse.sparray | sparse.spmatrix) -> sparse.csr_array:
    """The rows as a float64 CSR array of at least one row and column, without duplicates."""
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
    return _without_duplicates(matrix)


def as_rows(checked: Any) -> Rows:
    """Rows that a scikit-learn validator has passed: a CSR array, or an array as it is."""
    return checked if isinstance(checked, np.ndarray) else _without_duplicates(sparse.csr_array(checked))


def check_bound(name: str, value: float) -> float:
    """A public norm to clip to: far enough from the ends of float64 that scaling by it stays exact enough."""
    bound = check_positive(name, value)
    if not SMALLEST_BOUND <= bound <= 1 / SMALLEST_BOUND:
        raise ValueError(
            f"{name} must lie between {SMALLEST_BOUND:g} and {1 / SMALLEST_BOUND:g}, got {bound:g}: "
            "rescale the data"
        )
    return bound


@overload
def zero_broken_rows(rows: sparse.csr_array) -> tuple[sparse.csr_array, NDArray[np.bool_]]: ...
@overload
def zero_broken_rows(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]: ...
def zero_broken_rows(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """The rows, with those that hold a NaN or an infinity set to zero, and a mask of these.

    Such a row must neither spoil the others nor be refused: a refusal would tell that it is there.
    """
    if isinstance(rows, np.ndarray):
        broken: NDArray[np.bool_] = np.asarray(~np.isfinite(rows).all(axis=1))
        return (np.where(broken[:, None], 0.0, rows) if broken.any() else rows), broken
    broken = np.diff(np.append(0, np.cumsum(~np.isfinite(rows.data)))[rows.indptr]) > 0
    return (zero_other_rows(rows, ~broken) if broken.any() else rows), broken


@overload
def zero_other_rows(rows: sparse.csr_array, mask: NDArray[np.bool_]) -> sparse.csr_array: ...
@overload
def zero_other_rows(rows: Rows, mask: NDArray[np.bool_]) -> Rows: ...
def zero_other_rows(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows with those outside ``mask`` set to zero."""
    if isinstance(rows, np.ndarray):
        return np.where(mask[:, None], rows, 0.0)
    data = np.where(np.repeat(mask, np.diff(rows.indptr)), rows.data, 0.0)
    return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)


def row_norms(rows: Rows, order: int) -> F64:
    """The l1 (``order`` 1) or l2 (``order`` 2) norm of every finite row; infinite where it overflows."""
    unit = _row_units(rows)
    with np.errstate(over="ignore"):
        return unit * _relative_norms(rows, unit, order)


def _without_duplicates(matrix: sparse.csr_array) -> sparse.csr_array:
    """Sum duplicate entries, which would count separately in a norm. The caller's matrix is left alone."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _row_units(rows: Rows) -> F64:
    """The largest magnitude of every row, 1 for a row of zeros."""
    if isinstance(rows, np.ndarray):
        largest = np.abs(rows).max(axis=1)
    else:
        highest = np.maximum.reduceat(np.append(np.abs(rows.data), 0.0), rows.indptr[:-1])
        largest = np.where(np.diff(rows.indptr) > 0, highest, 0.0)
    return np.where(largest > 0.0, largest, 1.0)


def _relative_norms(rows: Rows, unit: F64, order: int) -> F64:
    """Norms in units of each row's largest entry: its square can neither overflow nor vanish."""
    if isinstance(rows, np.ndarray):
        return np.asarray((np.abs(rows / unit[:, None]) ** order).sum(axis=1) ** (1.0 / order))
    lengths = np.diff(rows.indptr)
    powers = np.abs(rows.data / np.repeat(unit, lengths)) ** order
    sums = np.add.reduceat(np.append(powers, 0.0), rows.indptr[:-1])
    return np.asarray(np.where(lengths > 0, sums, 0.0) ** (1.0 / order))


@overload
def clip_rows(rows: sparse.csr_array, *, l2: float, l1: float = math.inf) -> sparse.csr_array: ...
@overload
def clip_rows(rows: Rows, *, l2: float, l1: float = math.inf) -> Rows: ...
def clip_rows(rows: Rows, *, l2: float, l1: float = math.inf) -> Rows:
    """Every row clipped to l2 norm at most ``l2`` and l1 norm at most ``l1``.

    A row's result depends on that row alone. A row within both bounds is returned bit for bit. Rows must be
    finite: ``zero_broken_rows`` makes them so.
    """
    unit = _row_units(rows)
    shrink = np.ones(rows.shape[0])
    for order, bound in ((2, l2), (1, l1)):
        if math.isinf(bound):
            continue
        norms = _relative_norms(rows, unit, order)
        with np.errstate(over="ignore"):
            long = unit * norms > bound * _SAFE
        shrink[long] = np.minimum(shrink[long], bound * _SAFE / norms[long] / unit[long])
    if isinstance(rows, np.ndarray):
        return rows * shrink[:, None]
    factors = np.repeat(shrink, np.diff(rows.indptr))
    return sparse.csr_array((rows.data * factors, rows.indices, rows.indptr), shape=rows.shape)


def exact_mean(rows: sparse.csr_array, *, l2: float) -> F64:
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


def cut_for_sums(values: F64, largest: float) -> F64:
    """The values cut towards zero so that sums of them which stay within ``largest`` are exact in any order."""
    grid = math.ldexp(1.0, math.ceil(math.log2(largest)) - _EXACT_BITS)
    return np.asarray(np.trunc(values / grid) * grid)
