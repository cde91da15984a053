import datetime

import polars as pl
import pytest

from sparsedp.data import Columns, Label, Table
from sparsedp.data.column_types import check_type

LISTS, NESTED, BYTES = [["a"], ["b"]], [[["a"]], [["b"]]], [b"\xff", b"b"]
DAY = [datetime.date(2020, 1, 1)] * 2
FRAME = pl.DataFrame({"y": [0, 1], "word": ["a", "b"]})


@pytest.mark.parametrize(
    ("values", "columns", "said"),
    [
        (LISTS, {"label": Label.parse("x")}, "label: column 'x' must hold numbers, and holds List"),
        (DAY, {"label": Label.parse("x>2019")}, "label: column 'x' must hold numbers, and holds Date"),
        (LISTS, {"numeric": ("x",)}, "numeric: column 'x' must hold numbers"),
        (DAY, {"numeric": ("x",)}, "numeric: column 'x' must hold numbers"),
        (LISTS, {"categorical": ("x",)}, "categorical: column 'x' must hold texts or integers"),
        (BYTES, {"crosses": (("word", "x"),)}, "cross: column 'x' must hold texts or integers"),
        (BYTES, {"user": "x", "rows_per_user": 1}, "user: column 'x' must hold texts or integers"),
        ([1, 2], {"multi_hot": ("x",)}, "multi-hot: column 'x' must hold lists, or texts to cut"),
        (NESTED, {"multi_hot": ("x",)}, "multi-hot: column 'x' must hold lists, or texts to cut"),
        ([datetime.time(1)] * 2, {"time": "x"}, "time: column 'x' must hold numbers, dates or timestamps"),
        ([datetime.timedelta(1)] * 2, {"time": "x"}, "time: column 'x' must hold numbers, dates"),
        ([True, False], {"time": "x"}, "time: column 'x' must hold numbers, dates"),
    ],
)
def test_a_column_of_a_type_that_its_role_cannot_read_is_refused_by_name(values, columns, said, tmp_path):
    FRAME.with_columns(x=pl.Series(values)).write_parquet(tmp_path / "t.parquet")
    given = {"label": Label.parse("y"), "categorical": ("word",), **columns}
    with pytest.raises(ValueError, match=f"^{said}"):
        Table.of([tmp_path / "t.parquet"], Columns(**given))


def test_what_can_be_read_is_taken():
    for role, kinds in {
        "numeric": (pl.Int8(), pl.Decimal(9, 2), pl.Boolean(), pl.String(), pl.Null()),
        "categorical": (pl.Float64(), pl.Date(), pl.Categorical(), pl.Null()),
        "multi-hot": (pl.List(pl.Int64), pl.Array(pl.String, 2), pl.String(), pl.Null()),
        "time": (pl.Float64(), pl.Date(), pl.Datetime("us", "UTC"), pl.String(), pl.Null()),
    }.items():
        for kind in kinds:
            check_type(role, "x", kind)


def test_a_date_is_compared_as_a_text(tmp_path):
    FRAME.with_columns(x=pl.Series(DAY)).write_parquet(tmp_path / "t.parquet")
    Table.of([tmp_path / "t.parquet"], Columns(Label.parse("x==2020-01-01"), categorical=("word",)))
