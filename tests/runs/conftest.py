from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from sparsedp.data import Columns, HashRule, Label, Table, prepare


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in another order would differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of 400 rows with two features and a time."""
    folder = tmp_path_factory.mktemp("other")
    generator = np.random.default_rng(0)
    pl.DataFrame(
        {
            "click": generator.integers(0, 2, 400),
            "user": generator.integers(0, 3000, 400),
            "item": generator.integers(0, 30, 400),
            "price": generator.normal(size=400),
            "day": np.arange(400) // 100,
        }
    ).write_csv(folder / "clicks.csv")
    columns = Columns(Label.parse("click"), numeric=("price",), categorical=("user", "item"), time="day")
    rules = {"user": HashRule(5000), "item": HashRule(50)}
    prepare(Table.of([folder / "clicks.csv"], columns), folder / "prepared", rules)
    return folder / "prepared"
