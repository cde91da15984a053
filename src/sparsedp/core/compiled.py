"""Loops over rows and examples at the speed of machine code.

A batch of a thousand examples is so little work that a chain of array operations spends its time in starting
each of them. The few loops that every step runs are therefore compiled by numba, on first use, and kept in its
cache. They work on plain arrays, hold no lock of the interpreter's and start no threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """The loop in machine code: each operation rounds as written, on every machine."""
    return cast(Loop, numba.njit(cache=True, nogil=True)(loop))


def compiled_sums(loop: Loop) -> Loop:
    """The same for a loop whose sums may be added in any order, so that they can be vectorised."""
    return cast(Loop, numba.njit(cache=True, nogil=True, fastmath={"reassoc"})(loop))
