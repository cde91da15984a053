"""Attacks on the low bits of noise: lattice, rings and tails, on any source of Gaussian noise.

A sum of floats is a float: which one shows what was added. Each attack is run on the library's noise, which lies on a public
lattice, and on a broken form in which it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.audit.case import Case, Claim
from sparsedp.core.arrays import F32, F64
from sparsedp.mechanisms import gaussian
from sparsedp.randomness import Stream, lattice_of, release_on_lattice

Noisy = Callable[[F64, Stream], NDArray[Any]]
"""Sums, of sensitivity 1, with Gaussian noise of standard deviation 1."""

_PAIRS = 20_000
"""Pairs of coordinates a run; one example moves all of them together by 1."""
_NEAR = 0.125
"""How near to a ring, in parts of the distance between two, a radius counts as on it."""


def released(sums: F64, stream: Stream) -> F32:
    """The noise of a step."""
    out = np.empty(sums.size, dtype=np.float32)
    lattice = lattice_of(std=1.0, sensitivity=1.0, coordinates=sums.size)
    release_on_lattice(out, sums, lattice=lattice, std=1.0, divisor=1.0, stream=stream)
    return out


def mechanism(sums: F64, stream: Stream) -> F64:
    """The Gaussian mechanism on arrays."""
    return gaussian(sums, std=1.0, stream=stream)


def box_muller(bits: int, sums: F64, stream: Stream) -> F32:
    """A broken form: Box-Muller in float32 from so many bits, added in float32. Not private."""
    half = -(-sums.size // 2)
    magnitudes = (stream.uint64(half) >> np.uint64(64 - bits)).astype(np.int64) + 1
    uniform = magnitudes.astype(np.float32) * np.float32(2.0**-bits)
    radius = np.sqrt(np.float32(-2.0) * np.log(uniform))
    turn = (2.0 * np.pi * stream.uniform(half)).astype(np.float32)
    noise = np.concatenate([radius * np.cos(turn), radius * np.sin(turn)])[: sums.size]
    return np.asarray(sums.astype(np.float32) + noise, np.float32)


def added_doubles(sums: F64, stream: Stream) -> F64:
    """A broken form: Box-Muller in float64, added in float64. Not private."""
    radius = np.sqrt(-2.0 * np.log(stream.uniform(sums.size)))
    return np.asarray(sums + radius * np.cos(2.0 * np.pi * stream.uniform(sums.size)))


def finer_than_one(outputs: NDArray[Any]) -> F64:
    """Which outputs lie near zero, off the lattice that 1 plus a float reaches there."""
    bits = 24 if outputs.dtype == np.float32 else 53
    steps = outputs.astype(np.float64) * 2.0**bits
    return np.asarray((np.abs(outputs) < 0.5) & (steps != np.rint(steps)), np.float64)


def on_rings(outputs: NDArray[Any]) -> float:
    """Of pairs with a small radius, the share near one that 24 bits close to U = 1 give."""
    square = (outputs.astype(np.float64).reshape(2, -1) ** 2).sum(axis=0)
    k = -np.expm1(-0.5 * square[square < 2.0**-10]) * 2.0**24
    return float(np.mean(np.abs(k - np.rint(k)) < _NEAR)) if k.size else 0.5


def on_tail_radii(outputs: NDArray[Any]) -> float:
    """Of pairs with a large radius, the share near one that a small multiple of 2^-24 gives."""
    square = (outputs.astype(np.float64).reshape(2, -1) ** 2).sum(axis=0)
    m = 2.0**24 * np.exp(-0.5 * square[square > 16.0])
    return float(np.mean(np.abs(m - np.rint(m)) < _NEAR)) if m.size else 0.5


def single_values(noisy: Noisy, value: float, stream: Stream, runs: int) -> F64:
    """So many runs on one value each."""
    return finer_than_one(noisy(np.full(runs, value), stream))


def vectors(
    noisy: Noisy, look: Callable[[NDArray[Any]], float], norm: float, stream: Stream, runs: int
) -> F64:
    """So many runs on a vector of equal entries with this norm."""
    size = 2 * _PAIRS
    sums = np.full(size, norm / np.sqrt(size))
    return np.array([look(noisy(sums, stream)) for _ in range(runs)])


def attacks(name: str, noisy: Noisy, *, is_control: bool = False) -> list[Case]:
    """The three attacks on a source of noise, for whoever has one of their own."""
    return [
        _case(f"{name}: lattice", partial(single_values, noisy), 100_000, "off", is_control),
        _case(f"{name}: rings", partial(vectors, noisy, on_rings), 400, "rings", is_control),
        _case(f"{name}: tail", partial(vectors, noisy, on_tail_radii), 400, "tail", is_control),
    ]


_WHAT = {
    "off": "outputs near 0 that 1 plus noise cannot reach, 1 against 0",
    "rings": "the share of small radii on the rings of 24 bits, a shift of norm 1",
    "tail": "the share of large radii that 24 bits can give, a shift of norm 1",
}
_DELTAS = {"off": 0.1, "rings": 0.4, "tail": 0.4}
"""A shift of norm 1 under a standard Gaussian has the advantage 0.383: above that delta it costs nothing."""


def _case(name: str, statistics: Any, runs: int, look: str, is_control: bool) -> Case:
    def claim() -> Claim:
        delta = _DELTAS[look]
        return Claim(analytic_gaussian_epsilon(delta, 1.0), delta, "the noisy sums")

    return Case(name, "floats", claim, statistics, (0.0, 1.0), runs, _WHAT[look], is_control=is_control)


def cases() -> list[Case]:
    """The library's noise, and broken forms."""
    broken = attacks("float32 Box-Muller of 24 bits", partial(box_muller, 24), is_control=True)
    doubles = attacks("float64 noise added to float64 sums", added_doubles, is_control=True)[:1]
    return [
        *attacks("a step's noise", released),
        *attacks("the Gaussian mechanism", mechanism),
        *broken,
        *doubles,
    ]
