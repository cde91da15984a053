from __future__ import annotations

import polars as pl
import pytest

from sparsedp.data.scales import Scale, scales_in_words


def test_bounds_become_one_and_what_lies_outside_is_moved_to_them() -> None:
    frame = pl.DataFrame({"x": [-10.0, 0.0, 15.0, 30.0, 99.0, None, float("nan"), float("inf")]})
    scaled = frame.select(Scale(-10, 30).transform(pl.col("x")))["x"]
    assert scaled.to_list() == pytest.approx([-1.0, -0.5, 0.25, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert scaled.dtype == pl.Float32


def test_a_row_is_scaled_without_a_look_at_others() -> None:
    """A rule that looked at the data would give one example's value a say in another's."""
    one, many = pl.DataFrame({"x": [3.0]}), pl.DataFrame({"x": [3.0, 1e9, -1e9]})
    rule = Scale(0, 4).transform(pl.col("x"))
    assert one.select(rule)["x"][0] == many.select(rule)["x"][0] == 0.5


def test_words() -> None:
    assert Scale.parse("-2:5.5") == Scale(-2.0, 5.5)
    assert Scale.parse("log") is None
    assert scales_in_words({"age": Scale(0, 100)}) == "age: 0:100 to -1:1, 0 where missing"


@pytest.mark.parametrize("text", ["", "1", "1:", "a:b", "5:1", "1:1", "0:inf", "nan:1", "-1e308:1e308"])
def test_what_is_no_pair_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^scale must be"):
        Scale.parse(text)
