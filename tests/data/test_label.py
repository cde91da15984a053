import polars as pl
import pytest

from sparsedp.data.label import Label


def labels(text, values):
    return pl.DataFrame({"x": values}).select(Label.parse(text).expression)["x"].to_list()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x>15", [0, 0, 1, None]),
        ("x >= 15", [0, 1, 1, None]),
        ("x<15", [1, 0, 0, None]),
        ("x<=-2.5", [1, 0, 0, None]),
        ("x==15", [0, 1, 0, None]),
        ("x!=15", [1, 0, 1, None]),
    ],
)
def test_comparisons_with_numbers(text, expected):
    assert labels(text, [-2.5, 15.0, 16.0, None]) == expected
    assert labels(text, ["-2.5", "15", "16", None]) == expected


def test_a_column_of_zeros_and_ones():
    assert labels("x", ["0", "1", "2", "yes", None]) == [0, 1, None, None, None]
    assert labels("x", [0, 1, 2, 3, None]) == [0, 1, None, None, None]
    assert labels("x", [True, False]) == [1, 0]


def test_what_is_no_number_cannot_be_compared_as_one():
    assert labels("x>1", ["2", "NaN", "inf", "two"]) == [1, None, None, None]


def test_texts_can_be_equal_or_not():
    assert labels("x==paid", ["paid", "free", None]) == [1, 0, None]
    assert labels("x != paid", ["paid", "free", None]) == [0, 1, None]


@pytest.mark.parametrize("text", ["", ">5", "x>", "x>1>2", "x=5"])
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match=r"^label must be a column or a comparison"):
        Label.parse(text)


def test_order_needs_a_number():
    with pytest.raises(ValueError, match=r"^label compares x with 'abc', which is not a number"):
        Label.parse("x>abc")


def test_the_rule_says_what_is_predicted():
    assert Label.parse("delay>15").rule == "delay > 15"
    assert Label.parse("click").rule == "click, 0 or 1"


def test_a_comparison_with_no_finite_number_is_one_of_texts():
    assert labels("x==nan", ["nan", "1"]) == [1, 0]
    for text in ("x>nan", "x<=inf", "x>1e400"):
        with pytest.raises(ValueError, match="which is not a number"):
            Label.parse(text)
