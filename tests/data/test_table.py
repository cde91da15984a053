import csv
import dataclasses
import datetime
import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data import ClickData, Columns, HashRule, Label, Table, prepare
from sparsedp.data.archives import ZipMember
from sparsedp.data.hashing import buckets, cross, hash_strings
from sparsedp.data.parts import PreparedFolder
from sparsedp.data.schema import SourcePosition

COLUMNS = Columns(
    label=Label.parse("rating>=4"),
    numeric=("price",),
    categorical=("user", "item"),
    crosses=(("user", "item"),),
    multi_hot=("genres",),
    time="when",
)
ROWS = {"user": 50, "item": 60, "user*item": 70, "genres": 80}
RULES = {name: HashRule(rows) for name, rows in ROWS.items()}
FRAME = pl.DataFrame(
    {
        "user": ["ann", "bob", "ann"],
        "item": ["a, or b", 'say "c"', None],
        "rating": [5.0, 3.5, 4.0],
        "price": [10.0, None, -2.0],
        "genres": ["Drama|Comedy", None, "Drama||"],
        "when": [3, 1, 2],
    }
)


def hashed(*values):
    return hash_strings(pl.Series(values, dtype=pl.String))


def check_prepared(folder):
    data = ClickData.open(folder)
    batch = data.take(np.arange(3))
    assert batch.label.tolist() == [1, 0, 1]
    assert batch.numeric[:, 0].tolist() == pytest.approx([np.log1p(10), 0, -np.log1p(2)])
    user, item = hashed("ann", "bob", "ann"), hashed("a, or b", 'say "c"', None)
    assert batch.ids[:, 0].tolist() == buckets(user, 50).tolist()
    assert batch.ids[:, 1].tolist() == buckets(item, 60).tolist()
    assert batch.ids[:, 2].tolist() == buckets(cross([user, item]), 70).tolist()
    assert batch.multi_hot[0].offsets.tolist() == [0, 2, 2, 3]
    assert batch.multi_hot[0].values.tolist() == buckets(hashed("Drama", "Comedy", "Drama"), 80).tolist()
    assert batch.time.tolist() == [3, 1, 2]
    return data.schema


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_every_format_gives_the_same(name, tmp_path):
    path = tmp_path / name
    if name.endswith(".parquet"):
        FRAME.write_parquet(path)
    else:
        text = FRAME.write_csv(separator="\t" if "tsv" in name else ",").encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    schema = prepare(Table.of([path], COLUMNS), tmp_path / "out", RULES)
    assert schema.malformed == 0
    assert schema == check_prepared(tmp_path / "out")
    assert [feature.name for feature in schema.categorical] == ["user", "item", "user*item"]
    assert (schema.label_rule, schema.time_unit) == ("rating >= 4", "when, as it is")


def test_parquet_lists_are_multi_hot_too(tmp_path):
    FRAME.with_columns(pl.col("genres").str.split("|")).write_parquet(tmp_path / "t.parquet")
    prepare(Table.of([tmp_path / "t.parquet"], COLUMNS), tmp_path / "out", RULES)
    check_prepared(tmp_path / "out")


def test_several_files_and_small_blocks(tmp_path):
    for number in range(3):
        FRAME.write_csv(tmp_path / f"{number}.csv")
    files = tuple(tmp_path / f"{number}.csv" for number in range(3))
    schema = prepare(Table(files, COLUMNS, block_bytes=40), tmp_path / "out", RULES)
    assert schema.rows == 9
    assert len(schema.parts) > 3
    assert ClickData.open(tmp_path / "out").time.tolist() == [3, 1, 2] * 3


fields = st.text(alphabet='ab,"\n ', max_size=5)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["0", "1", "x", ""]), fields), min_size=1, max_size=15),
    st.integers(20, 90),
)
def test_quoted_separators_breaks_and_quotes(tmp_path_factory, rows, size):
    path = tmp_path_factory.mktemp("quoted") / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([("click", "word"), *rows])
    table = Table((path,), Columns(Label.parse("click"), categorical=("word",)), block_bytes=size)
    found = [table.read(block) for block in table.blocks(SourcePosition())]
    good = [word for click, word in rows if click in ("0", "1")]
    assert np.concatenate([each.hashes[0] for each in found]).tolist() == hashed(*good).tolist()
    starts = np.append(2, 2 + np.cumsum([1 + word.count("\n") for _, word in rows]))
    bad = [int(start) for start, (click, _) in zip(starts, rows, strict=False) if click not in ("0", "1")]
    assert [each.line for examples in found for each in examples.malformed] == bad


def test_malformed_lines_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("click,price,when\n1,2,3\n1,2\n1,cheap,3\n,2,3\n1,2,soon\n0,,4\n1,2,3,4\n")
    columns = Columns(Label.parse("click"), numeric=("price",), categorical=("when",), time="when")
    table = Table.of([path], columns)
    (examples,) = [table.read(block) for block in table.blocks(SourcePosition())]
    assert examples.plain["label"].to_list() == [1, 0]
    reasons = {bad.line: bad.reason for bad in examples.malformed}
    assert sorted(reasons) == [3, 4, 5, 6, 8]
    assert reasons[3] == "2 columns instead of 3"
    assert reasons[4] == "price is 'cheap', which is of no use"
    assert reasons[5] == "click is missing"
    assert reasons[8] == "4 columns instead of 3"


def test_texts_for_missing_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("click,price,word\n1,NA,NA\n0,3,b\n")
    table = Table.of(
        [path], Columns(Label.parse("click"), numeric=("price",), categorical=("word",)), nulls=["NA"]
    )
    (examples,) = [table.read(block) for block in table.blocks(SourcePosition())]
    assert examples.malformed == []
    assert examples.plain["price"].to_list() == pytest.approx([0, np.log1p(3)])
    assert examples.hashes[0][0] == 0


@pytest.mark.parametrize(
    ("values", "expected", "unit"),
    [
        ([datetime.date(1970, 1, 2)], [86400], "when, in seconds since 1970"),
        ([datetime.datetime(1970, 1, 1, 0, 1, 5)], [65], "when, in seconds since 1970"),
        (["1970-01-01T01:00:00Z"], [3600], "when, in seconds since 1970"),
        (["1970-01-02"], [86400], "when, in seconds since 1970"),
        (["14102100"], [14102100], "when, as it is"),
        ([14102100], [14102100], "when, as it is"),
    ],
)
def test_times_become_integers(values, expected, unit, tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"click": [1], "word": ["a"], "when": values}).write_parquet(path)
    table = Table.of([path], Columns(Label.parse("click"), categorical=("word",), time="when"))
    schema = prepare(table, tmp_path / "out", {"word": HashRule(5)})
    assert schema.time_unit == unit
    assert ClickData.open(tmp_path / "out").time.tolist() == expected


def test_derived_columns_are_used_and_written_down(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("click,hour\n1,13\n0,2\n")
    columns = Columns(
        Label.parse("click"), categorical=("half",), derived={"half": pl.col("hour").cast(pl.Int64) // 12}
    )
    schema = prepare(Table.of([path], columns), tmp_path / "out", {"half": HashRule(9)})
    assert (
        ClickData.open(tmp_path / "out").take([0, 1]).ids[:, 0].tolist()
        == buckets(hashed("1", "0"), 9).tolist()
    )
    assert schema.derived[0].startswith("half = ")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            Columns(Label.parse("click"), categorical=("word",)),
            "label: no column 'click' in t.csv, which has user",
        ),
        (Columns(Label.parse("rating>1"), categorical=("word",)), "categorical: no column 'word'"),
        (Columns(Label.parse("rating>1"), crosses=(("user", "z"),)), "cross: no column 'z'"),
        (Columns(Label.parse("rating>1"), multi_hot=("z",)), "multi-hot: no column 'z'"),
        (Columns(Label.parse("rating>1"), categorical=("user",), time="z"), "time: no column 'z'"),
    ],
)
def test_columns_that_are_not_there_are_named(columns, said, tmp_path):
    FRAME.write_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"^" + said):
        Table.of([tmp_path / "t.csv"], columns)


def test_files_must_have_the_same_columns(tmp_path):
    FRAME.write_csv(tmp_path / "a.csv")
    FRAME.select(reversed(FRAME.columns)).write_csv(tmp_path / "b.csv")
    with pytest.raises(ValueError, match=r"^files: b\.csv has other columns than a\.csv"):
        Table.of([tmp_path / "a.csv", tmp_path / "b.csv"], COLUMNS)
    (tmp_path / "c.csv").touch()
    with pytest.raises(ValueError, match=r"^files: c\.csv is empty"):
        Table.of([tmp_path / "c.csv"], COLUMNS)


def test_roles_must_not_collide():
    with pytest.raises(ValueError, match=r"^columns: a would be written twice"):
        Columns(Label.parse("click"), numeric=("a",), categorical=("a",))
    with pytest.raises(ValueError, match=r"^categorical: at least one"):
        Columns(Label.parse("click"), numeric=("a",))
    with pytest.raises(ValueError, match=r"^separator must be one byte"):
        Table.of([Path("x.csv")], COLUMNS, separator="||")
    with pytest.raises(ValueError, match=r"^files: at least one"):
        Table.of([], COLUMNS)
    with pytest.raises(ValueError, match=r"^files: Parquet and text cannot be mixed"):
        Table.of([Path("x.csv"), Path("y.parquet")], COLUMNS)


WITH_USERS = Columns(label=Label.parse("y"), categorical=("item",), time="when", user="who", rows_per_user=2)


def write_visits(path, rows=90):
    rng = np.random.default_rng(3)
    who = [f"u{n}" for n in rng.integers(0, 12, rows)]
    frame = pl.DataFrame({"who": who, "item": rng.integers(0, 50, rows), "y": rng.integers(0, 2, rows)})
    frame.with_columns(when=pl.int_range(rows)).write_csv(path)
    return frame


def test_every_user_is_cut_to_its_first_rows(tmp_path):
    frame = write_visits(tmp_path / "visits.csv")
    reader = Table.of([tmp_path / "visits.csv"], WITH_USERS)
    small = dataclasses.replace(reader, block_bytes=100)  # users come in many blocks
    schema = prepare(small, tmp_path / "out", {"item": HashRule(20)})
    assert (schema.user, schema.rows_per_user) == ("user_hash", 2)
    assert len(schema.parts) > 5
    first = [n for n, who in enumerate(frame["who"]) if frame["who"][:n].to_list().count(who) < 2]
    data = ClickData.open(tmp_path / "out")
    assert data.time.tolist() == first
    assert data.user.tolist() == hashed(*frame["who"][first]).view(np.int64).tolist()
    assert np.unique(data.user, return_counts=True)[1].max() == 2
    prepare(reader, tmp_path / "whole", {"item": HashRule(20)})
    assert ClickData.open(tmp_path / "whole").time.tolist() == first


def test_an_interrupted_preparation_does_not_count_anew(tmp_path, monkeypatch):
    write_visits(tmp_path / "visits.csv")
    reader = dataclasses.replace(Table.of([tmp_path / "visits.csv"], WITH_USERS), block_bytes=100)
    whole = prepare(reader, tmp_path / "whole", {"item": HashRule(20)})
    commit, done = PreparedFolder.commit, []

    def fails(self, part):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(part)
        commit(self, part)

    monkeypatch.setattr(PreparedFolder, "commit", fails)
    with pytest.raises(KeyboardInterrupt):
        prepare(reader, tmp_path / "out", {"item": HashRule(20)})
    monkeypatch.undo()
    assert prepare(reader, tmp_path / "out", {"item": HashRule(20)}).parts == whole.parts


def test_a_row_without_a_user_is_left_out(tmp_path):
    (tmp_path / "visits.csv").write_text('who,item,y,when\na,1,0,1\n,2,1,2\nb,3,1,3\n"",4,1,4\n')
    schema = prepare(
        Table.of([tmp_path / "visits.csv"], WITH_USERS), tmp_path / "out", {"item": HashRule(20)}
    )
    assert (schema.rows, schema.malformed) == (2, 2)
    assert schema.parts[0].examples == ((3, "who is missing"), (5, "who is missing"))


def test_a_user_is_one_in_files_of_different_types(tmp_path):
    """A gap makes floats of integers: the user must not have its rows twice."""
    for name, gap in (("a", False), ("b", True)):
        frame = pl.DataFrame({"who": [5, 5, 6], "item": [1, 2, 3], "y": [0, 1, 1], "when": [1, 2, 3]})
        who = pl.Series("who", [5.0, 5.0, None if gap else 6.0])
        frame = frame.with_columns(who) if gap else frame
        frame.write_parquet(tmp_path / f"{name}.parquet")
        frame.write_csv(tmp_path / f"{name}.csv")
    for form in ("csv", "parquet"):
        files = [tmp_path / f"{name}.{form}" for name in "ab"]
        schema = prepare(Table.of(files, WITH_USERS), tmp_path / form, {"item": HashRule(20)})
        assert (schema.rows, schema.malformed) == (3, 1)


def test_users_and_their_cap_belong_together():
    for wrong in ({"user": "who"}, {"rows_per_user": 3}):
        with pytest.raises(ValueError, match="user and rows_per_user belong together"):
            Columns(label=Label.parse("y"), categorical=("item",), **wrong)
    with pytest.raises(ValueError, match="rows_per_user must be at least 1"):
        Columns(label=Label.parse("y"), categorical=("item",), user="who", rows_per_user=0)


def test_users_are_held_out_whole(tmp_path):
    write_visits(tmp_path / "visits.csv")
    prepare(Table.of([tmp_path / "visits.csv"], WITH_USERS), tmp_path / "out", {"item": HashRule(20)})
    data = ClickData.open(tmp_path / "out")
    rest, held_out = data.split_users(0.4)
    assert len(rest) + len(held_out) == len(data)
    assert 0 < len(held_out) < len(data)
    assert not set(rest.user) & set(held_out.user)
    fewer = data.subset(np.flatnonzero(data.user != rest.user[0]))  # who else is there decides nothing
    assert fewer.split_users(0.4)[1].user.tolist() == held_out.user.tolist()


def test_a_stray_quote_is_a_character_of_its_value(tmp_path):
    lines = [f"{n % 2},item {n},x" for n in range(60)]
    for at, line in {10: '1,5" pipe,x', 20: '0,"open,x', 30: '1,"a"b,x', 40: '0,"two ""halves""",x'}.items():
        lines[at] = line
    (tmp_path / "t.csv").write_text("\n".join(["y,item,z", *lines, ""]))
    for size in (40, 300, 10_000):
        table = Table(
            (tmp_path / "t.csv",), Columns(Label.parse("y"), categorical=("item",)), block_bytes=size
        )
        found = [table.read(block) for block in table.blocks(SourcePosition())]
        assert [each for examples in found for each in examples.malformed] == []
        items = [line[2:-2] for line in lines]
        items[40] = 'two "halves"'
        assert np.concatenate([each.hashes[0] for each in found]).tolist() == hashed(*items).tolist()


@pytest.mark.parametrize("name", ["T.TSV", "t.Tsv.gz"])
def test_names_in_capitals(name, tmp_path):
    (tmp_path / name).write_text("y\tword\n1\ta\n")
    assert Table.of([tmp_path / name], Columns(Label.parse("y"), categorical=("word",))).separator == "\t"
    pl.DataFrame({"y": [1], "word": ["a"]}).write_parquet(tmp_path / "T.PARQUET")
    assert Table.of([tmp_path / "T.PARQUET"], Columns(Label.parse("y"), categorical=("word",))).is_parquet


def test_files_that_cannot_be_a_table_are_refused(tmp_path):
    columns = Columns(Label.parse("y"), categorical=("word",))
    (tmp_path / "twice.csv").write_text("y,word,y\n1,a,0\n")
    with pytest.raises(ValueError, match=r"^files: twice\.csv has two columns 'y'"):
        Table.of([tmp_path / "twice.csv"], columns)
    with pytest.raises(ValueError, match=r"^files: twice\.csv is given twice"):
        Table.of([tmp_path / "twice.csv"] * 2, columns)
    (tmp_path / "spaces.csv").write_text("y, word\n1,a\n")
    with pytest.raises(ValueError, match=r"no column 'word' in spaces\.csv, which has y, ' word'$"):
        Table.of([tmp_path / "spaces.csv"], columns)
    member = ZipMember(tmp_path / "x.zip", "a.parquet")
    with pytest.raises(ValueError, match=r"^files: x\.zip/a\.parquet is Parquet in an archive"):
        Table.of([member], columns)


def test_the_year_of_a_date_is_first(tmp_path):
    """01/02/2020 is two days: rows of the first twelve days of a month would have a wrong time in silence."""
    (tmp_path / "t.csv").write_text(
        "y,word,when\n1,a,01/02/2020\n0,b,2020-02-01\n1,c,2020/02/03\n0,d,13-01-2020\n"
    )
    table = Table.of([tmp_path / "t.csv"], Columns(Label.parse("y"), categorical=("word",), time="when"))
    (found,) = [table.read(block) for block in table.blocks(SourcePosition())]
    assert found.plain["time"].to_list() == [1580515200, 1580688000]
    assert [(bad.line, bad.reason) for bad in found.malformed] == [
        (2, "when is '01/02/2020', which is no date with the year first, such as 2020-12-31"),
        (5, "when is '13-01-2020', which is no date with the year first, such as 2020-12-31"),
    ]
