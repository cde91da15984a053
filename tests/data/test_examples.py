import math

import numpy as np
import polars as pl
import pytest

from sparsedp.data.examples import Bag, Examples, encode, log_transform
from sparsedp.data.hashing import buckets, hash_strings
from sparsedp.data.rules import HashRule
from sparsedp.data.schema import Feature, Schema


def test_numbers_are_logged_with_their_sign_and_missing_ones_are_zero():
    values = pl.DataFrame({"x": [0.0, 1.0, 1e6, -1.0, -3.0, None, math.nan, math.inf, -math.inf]})
    found = values.select(log_transform(pl.col("x")))["x"]
    expected = [0, math.log(2), math.log1p(1e6), -math.log(2), -math.log(4), 0, 0, 0, 0]
    assert found.to_list() == pytest.approx(expected, rel=1e-6)
    assert found.dtype == pl.Float32


def test_columns_come_in_the_order_of_the_schema():
    schema = Schema(
        label="label",
        label_rule="",
        numeric=("x",),
        numeric_rule="",
        categorical=(Feature("c", 9, ""),),
        multi_hot=(Feature("m", 9, ""),),
        time="time",
    )
    hashes = hash_strings(pl.Series(["a", "b"]))
    plain = pl.DataFrame({"time": [1, 2], "x": [0.5, 1.5], "label": [0.0, 1.0]})
    bag = Bag(np.concatenate([hashes, hashes]), np.array([0, 3, 4]))
    frame = encode(Examples(plain, [hashes], [bag], []), schema, {"c": HashRule(9), "m": HashRule(9)})
    a, b = buckets(hashes, 9).tolist()
    assert frame.columns == ["label", "x", "c", "m", "time"]
    assert frame["c"].to_list() == [a, b]
    assert frame["m"].to_list() == [[a, b, a], [b]]
