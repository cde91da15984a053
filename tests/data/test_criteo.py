import math
import re
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data.criteo import CATEGORIES, COLUMNS, INTEGERS, LABEL, Criteo
from sparsedp.data.hashing import hash_strings
from sparsedp.data.schema import SourcePosition

REAL_SHAPE = (
    "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t7e0ccccf\t"
    "de7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\t"
    "f54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\te8b83407\t9727dd16"
)


def read(text, name="train.txt", **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        reader = Criteo((path,), Criteo.of([path]).days, **options)
        return [reader.read(block) for block in reader.blocks(SourcePosition())]


def test_a_line_of_the_real_shape():
    (examples,) = read(REAL_SHAPE + "\n")
    assert examples.malformed == []
    assert examples.plain.columns == [LABEL, *INTEGERS, "row"]
    expected = [0, *(math.log1p(n) for n in (1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2)), 0, math.log1p(2), 0]
    assert examples.plain.row(0) == pytest.approx(expected, rel=1e-6)
    assert examples.hashes[0].tolist() == hash_strings(pl.Series(["68fd1e64"])).tolist()
    assert examples.hashes[21].tolist() == [0]


integers = st.one_of(st.just(""), st.integers(-3, 10**6).map(str), st.sampled_from(["0", "-1", "2147483648"]))
categories = st.one_of(st.just(""), st.integers(0, 2**32 - 1).map("{:08x}".format))
good_lines = st.builds(
    lambda label, counts, values: "\t".join([label, *counts, *values]),
    st.sampled_from("01"),
    st.lists(integers, min_size=13, max_size=13),
    st.lists(categories, min_size=26, max_size=26),
)
odd_fields = st.sampled_from(
    ["x", "1.5", "--1", "1e3", "99999999999999999999", "\x00", "é", "deadbeef0", "abc", "2"]
)


@st.composite
def spoiled_lines(draw):
    """A good line with one field replaced, one left out, or one put in."""
    line = draw(good_lines).split("\t")
    place = draw(st.integers(0, 39))
    match draw(st.sampled_from(["replace", "drop", "add"])):
        case "replace":
            line[place] = draw(odd_fields)
        case "drop":
            del line[place]
        case "add":
            line.insert(place, draw(st.sampled_from(["", "1"])))
    return "\t".join(line)


def is_good(line):
    """The format, said by regular expressions."""
    fields = line.split("\t")
    if len(fields) != 40 or fields[0] not in ("0", "1"):
        return False
    if not all(
        field == "" or (re.fullmatch(r"-?\d+", field) and abs(int(field)) < 2**63) for field in fields[1:14]
    ):
        return False
    return all(re.fullmatch(r"([0-9a-fA-F]{8})?", field) for field in fields[14:])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(good_lines | spoiled_lines(), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_good_lines_are_read_and_the_others_named(lines, final_break, line_break):
    text = line_break.join(lines) + (line_break if final_break else "")
    found = read(text, block_bytes=3000)
    good = [number for number, line in enumerate(lines) if is_good(line)]
    plain = pl.concat([examples.plain for examples in found])
    assert plain["row"].to_list() == good
    assert plain[LABEL].to_list() == [float(lines[number][0]) for number in good]
    malformed = [bad.line for examples in found for bad in examples.malformed]
    assert malformed == [number + 1 for number in range(len(lines)) if number not in good]
    for place in range(13):
        values = [lines[number].split("\t")[1 + place] for number in good]
        expected = [math.copysign(math.log1p(abs(int(v))), int(v)) if v else 0.0 for v in values]
        assert plain[INTEGERS[place]].to_list() == pytest.approx(expected, rel=1e-6)
    for place in range(26):
        values = pl.Series(
            [lines[number].split("\t")[14 + place].lower() for number in good], dtype=pl.String
        )
        hashes = np.concatenate([examples.hashes[place] for examples in found])
        assert hashes.tolist() == hash_strings(values).tolist()


@settings(deadline=None)
@given(st.binary(min_size=8, max_size=8).filter(lambda b: not set(b"\t\n\r") & set(b)))
def test_hex_digits_are_told_from_all_other_bytes(value):
    line = REAL_SHAPE.encode().replace(b"68fd1e64", value)
    (examples,) = read(line + b"\n" + REAL_SHAPE.encode() + b"\n")
    right = re.fullmatch(rb"[0-9a-fA-F]{8}", value) is not None
    assert [bad.line for bad in examples.malformed] == ([] if right else [1])


@pytest.mark.parametrize("digit", list("0123456789abcdefABCDEF") + list("/:@G`g \x10\x19"))
def test_each_digit_and_its_neighbours(digit):
    (examples,) = read(REAL_SHAPE.replace("68fd1e64", "0000" + digit + "000") + "\n")
    assert (examples.malformed == []) == (digit in "0123456789abcdefABCDEF")


def test_reasons_say_what_is_wrong():
    lines = [
        REAL_SHAPE.rpartition("\t")[0],
        REAL_SHAPE.replace("1382", "many"),
        REAL_SHAPE.replace("68fd1e64", "68fd1e6"),
        "7" + REAL_SHAPE[1:],
        "",
        REAL_SHAPE,
    ]
    (examples,) = read("\n".join(lines) + "\n")
    reasons = {bad.line: bad.reason for bad in examples.malformed}
    assert reasons == {
        1: "39 columns instead of 40",
        2: "I5 is 'many', not an integer",
        3: "C1 is '68fd1e6', not 8 hex digits",
        4: "label is '7', not 0 or 1",
        5: "1 columns instead of 40",
    }


def test_days_come_from_the_names_and_in_their_order():
    files = [Path(name) for name in ("day_0.gz", "day_10.gz", "day_2.gz")]
    reader = Criteo.of(files)
    assert reader.days == (0, 2, 10)
    assert [path.name for path in reader.files] == ["day_0.gz", "day_2.gz", "day_10.gz"]
    (examples,) = read(REAL_SHAPE, name="day_7")
    assert examples.plain["day"].to_list() == [7]
    assert Criteo.of([Path("train.txt")]).days is None


def test_mixed_or_repeated_days_are_refused():
    with pytest.raises(ValueError, match=r"^files: train.txt is not named day_N"):
        Criteo.of([Path("day_1"), Path("train.txt")])
    with pytest.raises(ValueError, match=r"^files: two of them are of the same day"):
        Criteo.of([Path("day_1"), Path("day_1.gz")])
    with pytest.raises(ValueError, match=r"^files: at least one"):
        Criteo.of([])


def test_the_paper_has_26_tables_of_these_heights():
    assert (len(VOCABULARY_SIZES), sum(VOCABULARY_SIZES), len(COLUMNS), len(CATEGORIES)) == (
        26,
        338782,
        40,
        26,
    )
