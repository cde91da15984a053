import dataclasses

import pytest

from sparsedp.data.schema import Feature, Part, Schema, Source, SourcePosition

SCHEMA = Schema(
    label="label",
    label_rule="clicked, 0 or 1",
    numeric=("price",),
    numeric_rule="log",
    categorical=(Feature("user", 100, "hash"), Feature("item", 50, "hash")),
    multi_hot=(Feature("genres", 20, "hash"),),
    time="time",
    time_unit="seconds",
    sources=(Source("a.csv", 10, "ab"),),
    parts=(
        Part("part-00000.parquet", 7, "cd", SourcePosition(), SourcePosition(0, 10, 8), 1, ((3, "why"),)),
    ),
    derived=("hour = x",),
)


def test_json_holds_everything():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    assert (SCHEMA.rows, SCHEMA.malformed, SCHEMA.vocabulary_sizes) == (7, 1, (100, 50))


def test_digests_follow_the_content():
    assert dataclasses.replace(SCHEMA, label_rule="other").digest != SCHEMA.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"numeric": ("cost",)}, "numeric is cost where price was expected"),
        ({"categorical": SCHEMA.categorical[:1]}, "1 categorical columns where 2 were expected"),
        ({"categorical": (SCHEMA.categorical[0], Feature("item", 51, "hash"))}, "rows=51"),
        ({"label_rule": "bought"}, "label_rule is bought"),
    ],
)
def test_another_schema_is_refused_with_the_difference(change, said):
    with pytest.raises(ValueError, match=r"^data folder of another schema: ") as error:
        SCHEMA.require_same_columns(dataclasses.replace(SCHEMA, **change))
    assert said in str(error.value)


def test_more_rows_of_the_same_columns_are_the_same_schema():
    SCHEMA.require_same_columns(dataclasses.replace(SCHEMA, parts=(), sources=()))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "other"}'])
def test_other_files_are_not_schemas(text):
    with pytest.raises(ValueError, match=r"^schema: not a"):
        Schema.from_json(text)


def test_a_folder_without_a_schema_says_whether_it_was_begun(tmp_path):
    with pytest.raises(ValueError, match=r"it has no schema\.json"):
        Schema.read(tmp_path)
    (tmp_path / "manifest.jsonl").touch()
    with pytest.raises(ValueError, match=r"not finished: run the same command again"):
        Schema.read(tmp_path)
