from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import config

from sparsedp.runs.sources import fresh_model, open_data, split


def test_generated_rows_are_the_same_every_time() -> None:
    first, second = open_data("generated:300x3"), open_data("generated:300x3")
    rows = np.arange(300)
    assert np.array_equal(first.take(rows).ids, second.take(rows).ids)
    assert np.array_equal(first.label, second.label)
    assert sorted(set(first.time.tolist())) == [0, 1, 2]


def test_a_prepared_folder_is_opened(other_data: Path) -> None:
    assert len(open_data(str(other_data))) == 400


@pytest.mark.parametrize("name", ["generated:1", "generated:0", "generated:100x0"])
def test_too_little_data_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^data: {name}"):
        open_data(name)


def test_more_generated_rows_than_memory_holds_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^data: generated:100000001 has too many rows, at most 100,000,000 are"
    ):
        open_data("generated:100000001")


@pytest.mark.parametrize("name", ["generated:", "generated:-5", "generated:1e5", "no/such/folder"])
def test_what_is_no_data_is_named(name: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=name.split(":")[0]):
        open_data(name)


def test_splits_by_hash_and_by_time() -> None:
    data = open_data("generated:1000x10")
    training, held_out = split(config(holdout=0.2), data)
    assert len(training) + len(held_out) == 1000
    assert 120 < len(held_out) < 280
    training, held_out = split(config(holdout=0.2, holdout_by="time"), data)
    assert training.time.max() < held_out.time.min()
    assert len(held_out) == 200


def test_a_seeded_model_starts_the_same() -> None:
    data = open_data("generated:100")
    first, second = (fresh_model(config(seed=4), data).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = fresh_model(config(seed=5), data).state_dict()
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])
