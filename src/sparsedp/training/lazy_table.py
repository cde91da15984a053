"""One table under lazy noise: how much noise is pending on which rows, and how it is applied."""

from __future__ import annotations

import math
import warnings
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsedp.core.arrays import F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.core.counts import distinct, positions_in
from sparsedp.randomness import Stream
from sparsedp.rows import RowGradient

FEWEST_CELLS, AIM, MOST_CELLS = 32.0, 128.0, 512.0
"""A step's noise in cells of the table's lattice: at least, when a lattice is chosen, at most."""
FLUSH_COORDINATES = 1 << 17
"""A flush works on at most this many coordinates at a time, to bound its memory."""


class LazyTable:
    """A table whose rows lie on a public lattice; the noise of several untouched steps is drawn at once.

    ``rows`` are those that are trained, sorted, by default all; the others have neither gradient nor noise, and
    nothing is stored for them. A step moves the rows that it touches by ``-lr`` times their released gradient, noise
    included; every other trained row has pending Gaussian noise of variance ``(lr std)^2``. After T steps without a
    touch a row lacks one Gaussian of the summed variance, which is added before the row is read. No weight ever
    holds data without noise.

    **Floats.** A row that was touched T times was rounded T times, a row whose noise was applied once was rounded
    once; weights of touched rows also show the lattice of the released gradient, those of the others would not.
    To make both look alike every write is rounded, at random and without bias, to a public lattice whose cell is
    a power of two near ``lr std / 128``: ``floor(value / cell + U)``, U uniform. T roundings add the variance
    ``T cell^2 / 6`` and so what is pending after T steps is ``sum (lr std)^2 + (T - 1) cell^2 / 6``.

    What remains: two rounding laws of the same mean and variance, which differ first in their fourth
    cumulants, by ``(T - 1) cell^4 / 60``: a Kullback-Leibler divergence of ``4e-7 s^-8`` for noise of s cells
    a step, that is 4e-19 at the required 32 cells; and the lattice of the released gradient, where its cell is
    2^-22 of its standard deviation: 5e-18 at 512 cells. An example that touches m coordinates,
    counted over all steps, hence adds at most ``(1 + e^epsilon) sqrt(m 5e-18 / 2)`` to delta
    (m = 1e5: 5e-7 (1 + e^epsilon); at the usual 128 to 256 cells a tenth of that).

    The cell changes only after a flush, so it is a function of public numbers and of the largest trained weight of a
    table that might be released. A lattice must be fine enough for the noise and coarse enough for the largest
    weight: 2^23 cells in float32, 2^52 in float64. If no lattice satisfies both at the first step, the table is
    refused; later (a learning rate that falls to nearly zero) the step skips the whole table, touched rows
    included, with a warning.
    """

    def __init__(self, name: str, parameter: nn.Parameter, stream: Stream, rows: I64 | None = None) -> None:
        self.name = name
        self.parameter = parameter
        self.shows_pending = False
        """True while a checkpoint reads the table without its pending noise."""
        self._stream = stream
        self._begun = False
        self._warned = False
        self._cell: float | None = None
        self._largest: float | None = None
        self._variance = array("d", [0.0])
        """After each step the summed pending variance of a row that no step has touched."""
        self.train(rows)

    def train(self, rows: I64 | None) -> None:
        """From here on train these rows (sorted; None: all). Refused where noise is pending on other rows."""
        if self.has_pending_noise:
            raise ValueError(f"table {self.name!r}: noise is pending on the rows that were trained so far")
        self._rows = rows
        trained = self.parameter.shape[0] if rows is None else rows.size
        self._applied = torch.zeros(trained, dtype=torch.int32)
        """The step up to which each trained row has its noise, counted since the last flush."""

    @property
    def has_pending_noise(self) -> bool:
        """May any row's noise still be pending?"""
        return len(self._variance) > 1

    def step(self, lr: float, std: float, gradient: RowGradient) -> None:
        """Move the rows of ``gradient``, which contains noise of ``std``; as much is pending on every other row.

        If interrupted, rows have more noise than they should, never less: pending noise is recorded first, and
        a row is marked as up to date last.
        """
        rows = gradient.ids.numpy()
        places = self._places(rows)
        if places.size and places.min() < 0:
            raise ValueError(f"table {self.name!r}: a step moved rows that are not among those to train")
        change = gradient.values.numpy() * np.float64(-lr)
        if std == 0.0:
            self._largest = None
            _add(self.parameter, rows, change)
        elif lr > 0.0 and self._has_lattice_for(lr * std):
            self._apply(places)
            assert self._cell is not None
            self._variance.append(self._variance[-1] + (lr * std) ** 2 + self._cell**2 / 6)
            self._write(places, change)

    def apply_pending_noise(self, rows: I64) -> None:
        """Bring distinct ``rows`` up to date; rows that are not trained always are."""
        if self.has_pending_noise:
            places = self._places(rows)
            self._apply(places if self._rows is None else places[places >= 0])

    def _places(self, rows: I64) -> I64:
        """Where each of ``rows`` stands among the trained ones; -1 where it is not trained."""
        return rows if self._rows is None else positions_in(self._rows, rows)

    def _apply(self, places: I64) -> None:
        """Draw what is pending on the trained rows at ``places``."""
        history, applied = np.frombuffer(self._variance), self._applied.numpy()
        late = places[applied[places] < history.size - 1]
        if not late.size:
            return
        assert self._cell is not None
        # Writing rounds once more, which is the last of the pending roundings.
        std = np.sqrt(history[-1] - history[applied[late]] - self._cell**2 / 6)
        noise = self._stream.normal((late.size, self.parameter.shape[1]))
        noise *= std[:, None]
        self._write(late, noise)

    def apply_pending_noise_to_ids(self, ids: Tensor) -> None:
        """Bring the rows of ``ids`` up to date before they are read."""
        if self.has_pending_noise:
            self.apply_pending_noise(distinct(ids.detach().cpu().numpy()))

    def flush(self) -> None:
        """Bring every row up to date."""
        if self.has_pending_noise:
            for places in _chunks(self._applied.numel(), self.parameter.shape[1]):
                self._apply(places)
            # All rows are at the same step: the history before it is no longer needed.
            self._variance = array("d", [0.0])
            self._applied.zero_()
        self._cell = self._largest = None

    def state_dict(self) -> dict[str, Any]:
        """What is pending, as tensors and plain values."""
        return {
            "applied": self._applied,
            "variance": list(self._variance),
            "cell": self._cell,
            "begun": self._begun,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        if state["applied"].shape != self._applied.shape:
            raise ValueError(
                f"table {self.name!r}: noise is pending on {state['applied'].numel()} rows there, "
                f"{self._applied.numel()} rows are trained here"
            )
        if not _is_pending_noise(state):
            raise ValueError(f"table {self.name!r}: its pending noise is not as a table writes it")
        self._applied.copy_(state["applied"])
        self._variance = array("d", state["variance"])
        self._cell, self._begun = state["cell"], state["begun"]
        self._largest = None

    def _has_lattice_for(self, noise: float) -> bool:
        """Is there a lattice for steps with this much noise? Flushes before it changes the lattice."""
        if self._cell is None or not FEWEST_CELLS <= noise / self._cell <= MOST_CELLS:
            largest = self._largest
            self.flush()
            self._largest = _largest_weight(self.parameter, self._rows) if largest is None else largest
            self._cell = cell_for(noise, self._largest, self.parameter.dtype)
            if self._cell is None:
                self._refuse_or_skip(noise)
                return False
        self._begun = True
        return True

    def _refuse_or_skip(self, noise: float) -> None:
        reason = (
            f"table {self.name!r}: lazy noise of {noise:.3g} a step (learning rate times the gradient's noise) "
            f"is too fine for {self.parameter.dtype} weights as large as {self._largest:.3g}: rounding would "
            "show which rows were read. Use a float64 table, a higher learning rate, or leave out lazy=True"
        )
        if not self._begun:
            raise ValueError(reason)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{reason}. Until then the table stays as it is", stacklevel=2)

    def _write(self, places: I64, change: F64) -> None:
        """Add ``change`` to distinct trained rows, round them to the lattice and mark them as up to date."""
        assert self._cell is not None
        self._largest = None
        words = self._stream.uint64((change.size + 1) // 2).view(np.uint32)[: change.size]
        most = _exact_integers(self.parameter.dtype)
        rows = places if self._rows is None else self._rows[places]
        _add(self.parameter, rows, change, (words.reshape(change.shape), self._cell, most))
        self._applied.numpy()[places] = len(self._variance) - 1


def cell_for(noise: float, largest: float, dtype: torch.dtype) -> float | None:
    """The cell of a lattice for steps of this noise and weights this large; None if there is none.

    A power of two, near ``noise / 128`` if weights of that ``dtype`` can be twice as large as ``largest``
    with it, else as small as they allow.
    """
    if not math.isfinite(largest):
        raise ValueError("lazy noise: a table has weights that are not finite")
    preferred = _power_of_two_below(noise / AIM)
    allowed = _power_of_two_below(2.0 * largest / _exact_integers(dtype)) * 2.0 if largest else 0.0
    cell = max(preferred, allowed, torch.finfo(dtype).smallest_normal)
    return cell if noise / cell >= FEWEST_CELLS else None


def _is_pending_noise(state: Mapping[str, Any]) -> bool:
    """Whether a state could be one of ``state_dict``: with another, rows would get less noise than was charged."""
    applied, variance, cell = state["applied"], state["variance"], state["cell"]
    if type(state["begun"]) is not bool or applied.dtype != torch.int32 or not isinstance(variance, list):
        return False
    if not variance or any(type(value) is not float for value in variance):
        return False
    if cell is not None and not (type(cell) is float and cell > 0.0 and math.frexp(cell)[0] == 0.5):
        return False
    steps = np.diff(variance)
    if steps.size and (cell is None or not (steps > cell**2 / 6).all()):
        return False
    if variance[0] != 0.0 or not math.isfinite(variance[-1]):
        return False
    return applied.numel() == 0 or (int(applied.min()) >= 0 and int(applied.max()) <= steps.size)


def _power_of_two_below(value: float) -> float:
    return math.ldexp(0.5, math.frexp(value)[1])


def _exact_integers(dtype: torch.dtype) -> float:
    """Every integer up to this size is a number of this type."""
    return 2.0 / torch.finfo(dtype).eps


def _largest_weight(parameter: nn.Parameter, rows: I64 | None) -> float:
    """The largest absolute weight of the rows (None: of all)."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if rows is None:
            parts = [parameter.aminmax()]
        else:
            chunks = (torch.from_numpy(rows[places]) for places in _chunks(rows.size, parameter.shape[1]))
            parts = [parameter[ids.to(parameter.device)].aminmax() for ids in chunks]
        ends = [value for low, high in parts for value in (-float(low), float(high))]
        return math.nan if any(map(math.isnan, ends)) else max(ends, default=0.0)


def _chunks(rows: int, dim: int) -> Iterator[I64]:
    """The integers below ``rows``, as many at a time as a flush works on."""
    most = max(1, FLUSH_COORDINATES // dim)
    for start in range(0, rows, most):
        yield np.arange(start, min(start + most, rows))


Rounding = tuple[NDArray[np.uint32], float, float]
"""(32 random bits a coordinate, the lattice's cell, the largest number of cells)"""


def _add(parameter: nn.Parameter, rows: I64, change: F64, rounding: Rounding | None = None) -> None:
    """``parameter[rows] += change`` in float64, rounded once, to the lattice if there is one."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        weight = parameter.detach()
        if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64):
            _add_to_rows(weight.numpy(), rows, change, rounding)
        else:
            ids = torch.from_numpy(rows).to(weight.device)
            values = weight[ids].double().cpu()
            _add_to_rows(values.numpy(), np.arange(rows.size), change, rounding)
            weight[ids] = values.to(weight)


def _add_to_rows(table: NDArray[Any], rows: I64, change: F64, rounding: Rounding | None) -> None:
    if rounding is None:
        table[rows] = table[rows] + change
    else:
        _add_on_lattice(table, rows, change, *rounding)


@compiled
def _add_on_lattice(
    table: NDArray[Any], rows: I64, change: F64, words: NDArray[np.uint32], cell: float, most: float
) -> None:
    """Round each coordinate at random to the lattice point below or above, without bias."""
    per_cell = 1.0 / cell  # exact: the cell is a power of two
    for n in range(rows.size):
        row, change_of_row, words_of_row = table[rows[n]], change[n], words[n]
        for c in range(row.size):
            cells = np.floor((row[c] + change_of_row[c]) * per_cell + words_of_row[c] * 2.0**-32)
            cells = cells if cells < most else most
            cells = cells if cells > -most else -most
            row[c] = cells * cell
