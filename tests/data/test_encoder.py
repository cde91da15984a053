"""New rows get the numbers and ids that a preparation would have given them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.served import prepare_frame, raw_frame

from sparsedp.data import ClickData, Columns, Criteo, HashRule, Label, Table, prepare
from sparsedp.data.batch import Batch
from sparsedp.data.encoder import Encoder
from sparsedp.data.encoding import Encoding
from sparsedp.data.generated import GeneratedClicks
from sparsedp.data.scales import Scale


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    prepare_frame(raw_frame(), folder / "clicks.csv", folder / "prepared")
    return folder / "prepared"


@pytest.fixture(scope="module")
def encoder(prepared: Path) -> Encoder:
    return Encoder(Encoding.read(prepared))


def assert_same(given: Batch, data: ClickData) -> None:
    expected = data.take(np.arange(len(data)))
    np.testing.assert_array_equal(given.numeric, expected.numeric)
    np.testing.assert_array_equal(given.ids, expected.ids)
    for mine, theirs in zip(given.multi_hot, expected.multi_hot, strict=True):
        np.testing.assert_array_equal(mine.values, theirs.values)
        np.testing.assert_array_equal(mine.offsets, theirs.offsets)


def one_row(encoder: Encoder, **values: Any) -> tuple[Batch, dict[int, str]]:
    row = {"user": "user number 7 é", "item": "3", "tags": "t1|t2", "price": "2.5", **values}
    return encoder.encode(pl.DataFrame({name: [value] for name, value in row.items()}))


def test_raw_rows_encode_as_they_were_prepared(prepared: Path, encoder: Encoder) -> None:
    examples, reasons = encoder.encode(raw_frame())
    assert not reasons
    assert_same(examples, ClickData.open(prepared))
    assert examples.ids[:, 1].max() == 20
    assert (examples.ids[:, 1] == 0).any()  # items that the vocabulary does not list


def test_scaled_numbers_encode_as_they_were_prepared(tmp_path: Path) -> None:
    frame = raw_frame()
    frame.write_csv(tmp_path / "clicks.csv")
    columns = Columns(
        Label.parse("click"), numeric=("price", "when"), categorical=("item",), scales={"price": Scale(-2, 3)}
    )
    prepare(Table.of([tmp_path / "clicks.csv"], columns), tmp_path / "prepared", {"item": HashRule(9)})
    data = ClickData.open(tmp_path / "prepared")
    examples, reasons = Encoder(data.encoding).encode(frame)
    assert not reasons
    assert_same(examples, data)
    assert examples.numeric[:, 0].min() == -1.0
    data.encoding.require_schema(data.schema)
    with pytest.raises(ValueError, match="scales numeric columns otherwise than the schema"):
        data.encoding.require_schema(replace(data.schema, scales=()))


def test_columns_may_be_texts_numbers_lists_and_in_any_order(prepared: Path, encoder: Encoder) -> None:
    frame = raw_frame()
    texts = frame.select(pl.all().cast(pl.String)).with_columns(pl.col("price").fill_null("NA"))
    listed = frame.with_columns(pl.col("tags").str.split("|"), pl.col("user").cast(pl.Categorical))
    for given in (texts, listed.select(reversed(listed.columns))):
        examples, reasons = encoder.encode(given)
        assert not reasons
        assert_same(examples, ClickData.open(prepared))


def test_criteo_lines_in_either_case(tmp_path: Path, criteo_file: Path, criteo_rules: Any) -> None:
    prepare(Criteo.of([criteo_file]), tmp_path / "out", criteo_rules)
    encoding = Encoding.read(tmp_path / "out")
    assert encoding.header is not None
    frame = pl.read_csv(
        criteo_file, separator="\t", has_header=False, schema=dict.fromkeys(encoding.header, pl.String)
    )
    for given in (frame, frame.with_columns(pl.col("^C.*$").str.to_uppercase())):
        examples, reasons = Encoder(encoding).encode(given)
        assert not reasons
        assert_same(examples, ClickData.open(tmp_path / "out"))
    spoiled = frame[:3].with_columns(C4=pl.Series(["", "xyzxyzxy", "12"]))
    assert Encoder(encoding).encode(spoiled)[1] == {
        1: "C4 is 'xyzxyzxy', not 8 hex digits",
        2: "C4 is '12', not 8 hex digits",
    }


def test_generated_rows_are_their_own_ids() -> None:
    data = GeneratedClicks(50)
    batch = data.take(np.arange(50))
    counts = np.sign(batch.numeric) * np.expm1(np.abs(batch.numeric.astype(np.float64)))
    frame = pl.DataFrame(
        {
            **{f"I{n + 1}": counts[:, n].round() for n in range(13)},
            **{f"C{n + 1}": batch.ids[:, n] for n in range(26)},
        }
    )
    examples, _ = Encoder(data.encoding).encode(frame)
    assert_same(examples, data)
    far = frame.with_columns(C1=pl.lit(10**15), C2=pl.lit(-1), C3=pl.lit("no id"), C4=pl.lit(None))
    np.testing.assert_array_equal(Encoder(data.encoding).encode(far)[0].ids[:, :4], 0)
    with pytest.raises(ValueError, match="C1: must be a column of ids"):
        Encoder(data.encoding).encode(frame.with_columns(C1=pl.lit(0.5)))


@pytest.mark.parametrize("price", [None, "", "NaN", "inf", "-inf", float("nan"), float("inf")])
def test_numbers_that_are_missing_or_not_finite_are_zero(encoder: Encoder, price: Any) -> None:
    examples, reasons = one_row(encoder, price=price)
    assert examples.numeric[0, 0] == 0
    assert not reasons


def test_huge_numbers_stay_finite(encoder: Encoder) -> None:
    examples, reasons = one_row(encoder, price="9" * 300)
    assert examples.numeric[0, 0] == pytest.approx(300 * np.log(10), rel=1e-6)
    assert not reasons
    assert one_row(encoder, price=10**30)[0].numeric[0, 0] == pytest.approx(30 * np.log(10), rel=1e-6)


def test_missing_and_unseen_values(encoder: Encoder) -> None:
    examples, _ = one_row(encoder, user=None, item=None, tags=None)
    np.testing.assert_array_equal(examples.ids, 0)
    assert len(examples.multi_hot[0].values) == 0
    np.testing.assert_array_equal(one_row(encoder, user="NA", item="NA")[0].ids, 0)
    unseen, _ = one_row(encoder, user="nobody yet", item=10**12)
    assert unseen.ids[0, 0] > 0
    assert unseen.ids[0, 1] == 0


def test_a_text_that_is_no_number_is_named(encoder: Encoder) -> None:
    frame = raw_frame(3).with_columns(price=pl.Series(["1", "dear", "2"]))
    assert encoder.encode(frame)[1] == {1: "price is 'dear', which is no number"}


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("item", 3.0, "item: values of type Float64 have no one text; give texts or integers"),
        ("user", True, "user: values of type Boolean"),
        ("tags", 3, "tags: must be a column of lists, or of texts to cut, is Int64"),
        ("tags", [0.5], "tags: values of type Float64"),
        ("price", [1.0], "price: must be a column of numbers, is List"),
    ],
)
def test_types_without_one_text_are_refused(encoder: Encoder, column: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        one_row(encoder, **{column: value})


def test_a_type_that_was_prepared_is_the_only_one_taken(tmp_path: Path) -> None:
    frame = pl.DataFrame({"y": [0, 1] * 5, "half": [0.5, 1.5] * 5})
    frame.write_parquet(tmp_path / "raw.parquet")
    table = Table.of([tmp_path / "raw.parquet"], Columns(Label.parse("y"), categorical=("half",)))
    prepare(table, tmp_path / "out", {"half": HashRule(100)})
    encoder = Encoder(Encoding.read(tmp_path / "out"))
    assert_same(encoder.encode(frame)[0], ClickData.open(tmp_path / "out"))
    with pytest.raises(ValueError, match="half: was Float64 when it was prepared, is String here"):
        encoder.encode(frame.with_columns(pl.col("half").cast(pl.String)))
    assert encoder.encode(frame.with_columns(half=pl.lit(None)))[0].ids.sum() == 0


def test_no_rows_and_no_numbers(encoder: Encoder) -> None:
    examples, reasons = encoder.encode(raw_frame().clear())
    assert (len(examples), examples.numeric.shape, examples.ids.shape, reasons) == (0, (0, 1), (0, 3), {})
