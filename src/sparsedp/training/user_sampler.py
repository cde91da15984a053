"""The rows of each user of a data set: a sampler for training whose privacy unit is the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from sparsedp.core.arrays import I64, U64
from sparsedp.core.compiled import compiled
from sparsedp.core.validation import check_count
from sparsedp.randomness import Stream, bernoulli_positions
from sparsedp.rows import Units

Sample = Literal["users", "rows"]
"""What a Poisson batch draws with equal probability."""

Words = Callable[[int], U64]
"""So many uniform 64-bit words."""


class UserSampler(Sampler[int]):
    """At most ``rows_per_user`` rows of each user, for ``make_private(..., unit="user")``.

    ``users`` holds one id per row of the data set: integers or strings. ``sample`` says what is drawn.

    - ``"users"``: each step draws users, and of each drawn user at most ``rows_per_user`` rows, chosen at random
      afresh. Their gradients are summed per user (``reduction="mean"``: averaged) and then clipped.
      ``expected_batch_size`` counts users.
    - ``"rows"``: every user is cut once to ``rows_per_user`` rows; each step draws rows, which are clipped one by
      one. ``expected_batch_size`` counts rows. Which rows of a user remain depends on their numbers within the
      user alone: one user's rows never change what remains of another's.

    Without privacy it is an ordinary sampler: an epoch is a random order of the capped rows. The numbers of users
    and of rows that remain are public constants, as the number of examples is for ``unit="example"``.
    """

    def __init__(
        self,
        users: Any,
        *,
        rows_per_user: int,
        sample: Sample = "users",
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        if sample not in get_args(Sample):
            raise ValueError(f"sample must be 'users' or 'rows', got {sample!r}")
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
        if reduction == "mean" and sample == "rows":
            raise ValueError(
                "reduction='mean' needs sample='users': with sample='rows' each row is clipped by itself"
            )
        self.rows_per_user = check_count("rows_per_user", rows_per_user)
        self.sample: Sample = sample
        self.reduction = reduction
        user_of_row = _numbered(users)
        self.examples = user_of_row.size
        """Rows of the data set, before any are left out."""
        self._rows: I64 = np.argsort(user_of_row, kind="stable")
        """The rows of user 0, of user 1, and so on."""
        self._sizes: I64 = np.bincount(user_of_row)
        if sample == "rows":
            self._cut()
        self._starts: I64 = np.cumsum(self._sizes) - self._sizes

    @property
    def users(self) -> int:
        """How many users there are."""
        return self._sizes.size

    @property
    def population(self) -> int:
        """How many users (or remaining rows) a batch is drawn from."""
        return self.users if self.sample == "users" else self._rows.size

    def __len__(self) -> int:
        return int(np.minimum(self._sizes, self.rows_per_user).sum())

    def __iter__(self) -> Iterator[int]:
        """An epoch without privacy."""
        random = np.random.default_rng(int(torch.empty((), dtype=torch.int64).random_().item()))
        rows, _ = self.rows_of(
            np.arange(self.users), lambda size: random.integers(2**64, size=size, dtype=np.uint64)
        )
        yield from random.permutation(rows).tolist()

    def draw(self, stream: Stream, rate: float) -> tuple[I64, Units | None]:
        """A Poisson batch: the rows, and which of them are one unit (None: each by itself)."""
        chosen = bernoulli_positions(stream, self.population, rate)
        if self.sample == "rows":
            return np.sort(self._rows[chosen]), None
        return self.rows_of(chosen, stream.uint64)

    def rows_of(self, users: I64, words: Words) -> tuple[I64, Units]:
        """At most ``rows_per_user`` rows of each of these users, user by user."""
        sizes = self._sizes[users]
        taken = np.minimum(sizes, self.rows_per_user)
        rows = np.empty(taken.sum(), dtype=np.int64)
        random = words(int((sizes > self.rows_per_user).sum()) * self.rows_per_user)
        _choose(rows, self._rows, self._starts[users], sizes, self.rows_per_user, random)
        units = Units(
            np.repeat(np.arange(users.size), taken), self.rows_per_user, mean=self.reduction == "mean"
        )
        return rows, units

    def in_pieces(self, words: Words, rows: int) -> Iterator[tuple[I64, Units]]:
        """Each user once, in pieces of whole users with at most so many ``rows`` (or one user)."""
        chosen, units = self.rows_of(np.arange(self.users), words)
        for cut in whole_units(units, rows):
            yield chosen[cut], part_of(units, cut)

    def _cut(self) -> None:
        """Keep ``rows_per_user`` rows of each user, by a fixed pseudo-random order of their numbers within the user."""
        user = np.repeat(np.arange(self._sizes.size), self._sizes)
        number = np.arange(user.size) - (np.cumsum(self._sizes) - self._sizes)[user]
        # The user stays the first key, so the second pass of numbers is the place in the new order.
        order = np.lexsort((_mixed(number.astype(np.uint64)), user))
        self._rows = self._rows[np.sort(order[number < self.rows_per_user])]
        self._sizes = np.minimum(self._sizes, self.rows_per_user)


def check_room(users: UserSampler, physical_batch_size: int) -> None:
    """Refuse pieces that may be smaller than one user."""
    if users.sample == "users" and physical_batch_size < users.rows_per_user:
        raise ValueError(
            f"physical_batch_size of {physical_batch_size} examples is below rows_per_user {users.rows_per_user}: a "
            "piece holds whole users"
        )


def whole_units(units: Units, rows: int) -> Iterator[slice]:
    """Cut a batch into pieces of whole units: at most so many rows each, or a single unit."""
    ends, begin = np.cumsum(units.sizes), 0
    while begin < units.of_example.size:
        fitting = int(np.searchsorted(ends, begin + rows, side="right")) - 1
        end = int(ends[max(fitting, units.of_example[begin])])
        yield slice(begin, end)
        begin = end


def part_of(units: Units, rows: slice) -> Units:
    """The units of some of the rows, numbered from 0."""
    part = units.of_example[rows]
    return Units(part - part[0], units.most, units.mean)


def _numbered(users: Any) -> I64:
    """The users of all rows as 0, 1, 2, ..."""
    ids: NDArray[Any] = users.cpu().numpy() if isinstance(users, torch.Tensor) else np.asarray(users)
    if (
        isinstance(users, list | tuple)
        and ids.dtype.kind == "U"
        and not all(isinstance(u, str) for u in users)
    ):
        raise ValueError(
            "users: texts and other values are mixed; a missing id is no user, so leave its rows out"
        )
    if ids.ndim != 1 or not ids.size:
        raise ValueError(f"users must hold one id per row of the data set, got an array of shape {ids.shape}")
    if ids.dtype == object and all(isinstance(each, str) for each in ids):
        ids = ids.astype(str)
    if ids.dtype.kind not in "iuUS":
        raise ValueError(f"users must be integers or strings, one per row, got {ids.dtype}")
    numbers: I64 = np.unique(ids, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _mixed(numbers: U64) -> U64:
    """A fixed pseudo-random key of each number, different for different ones (the finaliser of splitmix64)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


@compiled
def _choose(out: I64, rows: I64, starts: I64, sizes: I64, most: int, words: U64) -> None:
    """All rows of a user, or ``most`` of them: the first of a random order, of which no more is drawn."""
    at, word = 0, 0
    for user in range(starts.size):
        own = rows[starts[user] : starts[user] + sizes[user]]
        if sizes[user] <= most:
            out[at : at + sizes[user]] = own
            at += sizes[user]
            continue
        own = own.copy()
        for n in range(most):
            other = n + np.int64(words[word] % np.uint64(sizes[user] - n))
            word += 1
            out[at], own[other] = own[other], own[n]
            at += 1
