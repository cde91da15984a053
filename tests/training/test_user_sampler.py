"""The sampler of users: caps, pieces of whole users, laws, refusals, and use without privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.randomness import NoiseSource
from sparsedp.training.user_sampler import part_of, whole_units

USERS = np.array([5, 2, 5, 5, 9, 2, 5, 7, 5, 7, 9, 5])


def sampler(**options: Any) -> sdp.UserSampler:
    return sdp.UserSampler(USERS, **{"rows_per_user": 3} | options)


@pytest.mark.parametrize("sample", ["users", "rows"])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_batch_has_at_most_so_many_rows_of_a_user(sample: Any, rows: int) -> None:
    users = sampler(rows_per_user=rows, sample=sample)
    stream = NoiseSource(0).sampling
    for rate in (0.3, 1.0):
        for step in range(50):
            chosen, units = users.draw(stream.fork(step), rate)
            assert np.unique(chosen).size == chosen.size
            owners, sizes = np.unique(USERS[chosen], return_counts=True)
            assert (sizes <= rows).all()
            if sample == "rows":
                assert units is None
                continue
            assert units is not None
            assert units.count == owners.size
            for unit in range(units.count):  # a unit is one user, with all the rows it may have
                own = np.unique(USERS[chosen[units.of_example == unit]])
                assert own.size == 1
                assert units.sizes[unit] == min(rows, (own[0] == USERS).sum())


def test_users_are_drawn_by_themselves_and_so_are_their_rows() -> None:
    """Each user with probability q whatever its size, and each of its rows equally often (error rate 1e-9)."""
    users, stream, runs = sampler(), NoiseSource(1).sampling, 2000
    seen = np.zeros(USERS.size)
    for step in range(runs):
        seen[users.draw(stream.fork(step), 0.4)[0]] += 1
    for row, count in enumerate(seen):
        size = (USERS[row] == USERS).sum()
        assert stats.binomtest(int(count), runs, 0.4 * min(1, 3 / size)).pvalue > 1e-10, row
    both = sum(np.isin([5, 9], USERS[users.draw(stream.fork(step), 0.4)[0]]).all() for step in range(runs))
    assert stats.binomtest(int(both), runs, 0.16).pvalue > 1e-10


def test_a_cut_depends_on_the_users_own_rows_alone() -> None:
    """Sensitivity: without one user, the others' rows that remain are the same."""

    def kept(without: int | None) -> list[int]:
        rows = np.flatnonzero(without != USERS)
        left = sdp.UserSampler(USERS[rows], rows_per_user=2, sample="rows")
        return rows[left.draw(NoiseSource(0).sampling, 1.0)[0]].tolist()

    everybody = kept(None)
    assert len(everybody) == 8
    for user in (2, 5, 7, 9):
        assert kept(user) == [row for row in everybody if USERS[row] != user]


def test_the_cut_is_the_same_for_ever() -> None:
    """A resumed run that cut other rows would have used more of a user than it states."""
    users = sdp.UserSampler(np.zeros(10, int), rows_per_user=4, sample="rows")
    assert users.draw(NoiseSource(0).sampling, 1.0)[0].tolist() == [3, 4, 5, 7]


def test_pieces_hold_whole_users() -> None:
    users = sampler(rows_per_user=6)
    rows, units = users.draw(NoiseSource(0).sampling, 1.0)
    for most in (6, 7, 8, 100):
        cuts = list(whole_units(units, most))
        assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
        assert cuts[-1].stop == rows.size == 12
        parts = [part_of(units, cut) for cut in cuts]
        assert sum(part.count for part in parts) == 4
        for cut, part in zip(cuts, parts, strict=True):
            assert rows[cut].size <= most
            assert part.of_example[0] == 0
    assert [cut.stop - cut.start for cut in whole_units(units, 1)] == [2, 6, 2, 2], "one user each, at least"


def test_without_privacy_it_is_an_ordinary_sampler() -> None:
    for sample in ("users", "rows"):
        users = sampler(sample=sample)
        loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4, sampler=users)
        torch.manual_seed(0)
        epochs = [torch.cat([batch for (batch,) in loader]).numpy() for _ in range(20)]
        for rows in epochs:
            assert rows.size == len(users) == 9
            assert np.unique(rows).size == 9
            assert np.unique(USERS[rows], return_counts=True)[1].tolist() == [2, 3, 2, 2]
        assert len({tuple(rows) for rows in epochs}) == 20
        assert len({tuple(np.sort(rows)) for rows in epochs}) == (
            1 if sample == "rows" else pytest.approx(12, abs=8)
        )
        torch.manual_seed(0)
        first = list(users)
        torch.manual_seed(0)
        assert list(users) == first


@pytest.mark.parametrize(
    "ids", [USERS.astype(str), USERS.astype(str).tolist(), torch.tensor(USERS), USERS.tolist()]
)
def test_ids_may_be_strings_and_tensors(ids: Any) -> None:
    users = sdp.UserSampler(ids, rows_per_user=2)
    assert (users.users, users.examples, len(users)) == (4, 12, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": [[1, 2]]}, "users must hold one id per row"),
        ({"users": []}, "users must hold one id per row"),
        ({"users": [1.0, 2.0]}, "users must be integers or strings"),
        ({"users": ["a", None]}, "users must be integers or strings"),
        ({"users": ["a", float("nan")]}, "texts and other values are mixed"),
        ({"rows_per_user": 0}, "rows_per_user must be at least 1"),
        ({"sample": "people"}, "sample must be 'users' or 'rows'"),
        ({"reduction": "max"}, "reduction must be 'sum' or 'mean'"),
        ({"sample": "rows", "reduction": "mean"}, "reduction='mean' needs sample='users'"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sdp.UserSampler(**{"users": USERS, "rows_per_user": 3} | arguments)
