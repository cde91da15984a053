import json
import math
import signal
import subprocess
import sys
import time
import zipfile

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from sparsedp.accounting.ledger import Ledger
from sparsedp.cli.prepare import prepare_app
from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data import ClickData, Schema, write_criteo_days, write_criteo_tsv

app = typer.Typer()
app.add_typer(prepare_app, name="prepare")


@app.callback()
def _root():
    """One more level, as in the real command."""


def invoke(*arguments):
    return CliRunner().invoke(app, ["prepare", *map(str, arguments)])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "train.txt"
    write_criteo_tsv(path, 3000)
    return path


@pytest.fixture
def spoiled(raw, tmp_path):
    lines = raw.read_text().splitlines(keepends=True)
    lines[16] = lines[16].rpartition("\t")[0] + "\n"
    path = tmp_path / "spoiled.txt"
    path.write_text("".join(lines))
    return path


def refused(result, said):
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_criteo_by_default_hashes_into_the_tables_of_the_paper(raw, tmp_path):
    result = invoke("criteo", raw, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "3,000 rows in 1 part\n" in result.stdout
    assert "26 features with 338,782 table rows, 13 numeric columns" in result.stdout
    data = ClickData.open(tmp_path / "out")
    assert data.schema.vocabulary_sizes == VOCABULARY_SIZES
    assert len(data) == 3000


def test_day_files_keep_their_day(tmp_path):
    files = write_criteo_days(tmp_path, 900, 3, suffix=".gz")
    result = invoke("criteo", *files, "--out", tmp_path / "out", "--buckets", "50", "--json")
    said = json.loads(result.stdout)
    assert (said["rows"], said["time"], said["table_rows"], said["malformed"]) == (900, "day", 26 * 50, 0)
    assert sorted(set(ClickData.open(tmp_path / "out").time.tolist())) == [0, 1, 2]


def test_files_without_end_are_refused(raw, tmp_path):
    out = ("--out", tmp_path / "out")
    table = ("table", raw, *out, "--label", "c", "--categorical", "a")
    for command in (("criteo", "/dev/zero", *out), ("table", "/dev/zero", *table[2:])):
        refused(invoke(*command), "files: /dev/zero is not a regular file")
    refused(invoke("criteo", raw, *out, "--vocabulary", "/dev/zero"), "vocabulary: /dev/zero is not")
    private = ("--vocabulary-epsilon", "1", "--vocabulary-delta", "1e-6", "--ledger", "/dev/zero")
    refused(invoke("criteo", raw, *out, *private), "ledger: /dev/zero is not a regular file")


def test_malformed_lines_are_reported_and_strict_stops(spoiled, tmp_path):
    result = invoke("criteo", spoiled, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["malformed"] == 1
    assert said["malformed_lines"] == [
        {"file": "spoiled.txt", "line": 17, "reason": "39 columns instead of 40"}
    ]
    assert "spoiled.txt, line 17: 39 columns instead of 40" in result.stderr
    strict = invoke("criteo", spoiled, "--out", tmp_path / "strict", "--strict")
    refused(strict, "malformed line in spoiled.txt, line 17: 39 columns instead of 40")


def test_a_vocabulary_learned_privately_is_paid_for_in_the_ledger(raw, tmp_path):
    ledger = tmp_path / "data.ledger"
    options = ("--vocabulary-epsilon", "4", "--vocabulary-delta", "1e-6", "--ledger", ledger)
    for _ in range(2):
        result = invoke("criteo", raw, "--out", tmp_path / "out", *options)
        assert result.exit_code == 0, result.output
        assert "vocabulary: (4, 1e-06)-DP, add-or-remove-one adjacency, unit: example" in result.stdout
    statement = Ledger.read(ledger).statement(1e-6)
    assert statement.epsilon == pytest.approx(4, rel=1e-3)
    assert statement.private
    schema = Schema.read(tmp_path / "out")
    assert "(4, 1e-06)-DP" in schema.vocabulary_statement
    assert sum(schema.vocabulary_sizes) < 1000


def test_a_public_vocabulary_must_be_declared_and_can_be_used_again(raw, tmp_path):
    result = invoke("criteo", raw, "--out", tmp_path / "a", "--vocabulary-is-public", "--min-count", "20")
    assert result.exit_code == 0, result.output
    again = invoke(
        "criteo", raw, "--out", tmp_path / "b", "--vocabulary", tmp_path / "a" / "vocabulary.parquet"
    )
    assert again.exit_code == 0, again.output
    a, b = (tmp_path / name / "part-00000.parquet" for name in "ab")
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vocabulary-epsilon", "1"), "vocabulary-epsilon needs --vocabulary-delta and --ledger"),
        (("--vocabulary-delta", "1e-6"), "belong to --vocabulary-epsilon, which is missing"),
        (
            (
                "--vocabulary-epsilon",
                "1",
                "--vocabulary-delta",
                "1e-6",
                "--ledger",
                "l",
                "--vocabulary-is-public",
            ),
            "give only one of",
        ),
        (
            ("--vocabulary-epsilon", "-1", "--vocabulary-delta", "1e-6", "--ledger", "l"),
            "vocabulary epsilon must be",
        ),
        (("--buckets", "1,2,3"), "buckets must be one number or 26, got 3"),
        (("--buckets", "many"), "buckets must be integers"),
        (("--buckets", "1"), "rows must lie in 2.."),
        (("--buckets", "9", "--vocabulary-is-public"), "buckets cannot be given together with a vocabulary"),
    ],
)
def test_options_that_do_not_fit_are_refused(raw, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    refused(invoke("criteo", raw, "--out", tmp_path / "out", *options), said)


def test_files_of_another_format_and_other_folders_are_refused(raw, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    refused(
        invoke("criteo", other, "--out", tmp_path / "x"),
        "none of the first 2 lines can be read; other.csv, line 1",
    )
    assert invoke("criteo", raw, "--out", tmp_path / "out").exit_code == 0
    again = invoke("criteo", raw, "--out", tmp_path / "out", "--buckets", "50")
    refused(again, "was made with other categorical: give another folder")


RATINGS = "user,film,stars,genres,at\nann,Heat,5,Crime|Drama,10\nbob,Heat,2,Crime|Drama,20\nann,Up,4,,30\n"


def test_a_table_with_named_columns(tmp_path):
    (tmp_path / "r.csv").write_text(RATINGS)
    result = invoke(
        "table", tmp_path / "r.csv", "--out", tmp_path / "out", "--label", "stars>=4", "--categorical", "user,film",
        "--multi-hot", "genres", "--time", "at", "--hash", "user=100", "--hash", "film=200", "--hash", "genres=30",
        "--cross", "user,film=1000", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["table_rows"] == 100 + 200 + 30 + 1000
    batch = ClickData.open(tmp_path / "out").take([0, 1, 2])
    assert batch.label.tolist() == [1, 0, 1]
    assert batch.ids.shape == (3, 3)
    assert batch.multi_hot[0].offsets.tolist() == [0, 2, 4, 4]
    assert batch.time.tolist() == [10, 20, 30]


def test_a_table_with_users(tmp_path):
    (tmp_path / "r.csv").write_text(RATINGS)
    asked = ("table", tmp_path / "r.csv", "--out", tmp_path / "out", "--label", "stars>=4", "--categorical", "user",
             "--hash", "user=100", "--user", "user", "--rows-per-user", "1")  # fmt: skip
    result = invoke(*asked)
    assert result.exit_code == 0, result.output
    assert "users: at most 1 row of each" in result.stdout
    assert len(ClickData.open(tmp_path / "out")) == 2, "ann has two rows"
    result = invoke(*asked, "--json")
    assert (json.loads(result.stdout)["rows"], json.loads(result.stdout)["rows_per_user"]) == (2, 1)


def test_a_table_with_a_vocabulary_file(tmp_path):
    (tmp_path / "r.csv").write_text(RATINGS)
    pl.DataFrame({"feature": ["user", "user", "film"], "value": ["bob", "ann", "Up"]}).write_csv(
        tmp_path / "v.csv"
    )
    base = (
        "table",
        tmp_path / "r.csv",
        "--label",
        "stars>=4",
        "--categorical",
        "user",
        "--categorical",
        "film",
    )
    result = invoke(*base, "--out", tmp_path / "out", "--vocabulary", tmp_path / "v.csv")
    assert result.exit_code == 0, result.output
    assert ClickData.open(tmp_path / "out").take([0, 1, 2]).ids.tolist() == [[2, 0], [1, 0], [2, 1]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--label", "stars>=4", "--categorical", "user", "--scale", "user=0:1"),
            "scale: user is not a numeric column",
        ),
        (
            ("--label", "stars>=4", "--categorical", "user", "--scale", "at"),
            "scale must be NAME=LOW:HIGH or NAME=log, got 'at'",
        ),
        (
            ("--label", "stars>=4", "--categorical", "user", "--numeric", "at", "--scale", "at=5:5"),
            "scale must be two finite numbers LOW:HIGH",
        ),
        (("--label", "stars>=4", "--categorical", "user", "--member", "*"), "member: is for zip archives"),
        (
            ("--label", "click", "--categorical", "user", "--hash", "user=9"),
            "label: no column 'click' in r.csv",
        ),
        (
            ("--label", "stars>4", "--categorical", "user", "--hash", "film=9"),
            "hash: film is neither a categorical",
        ),
        (
            ("--label", "stars>4", "--categorical", "user", "--hash", "user"),
            "hash must be NAME=BUCKETS, got 'user'",
        ),
        (
            ("--label", "stars>4", "--categorical", "user", "--hash", "user=9", "--hash", "user=8"),
            "hash: user is given twice",
        ),
        (
            ("--label", "stars>4", "--multi-hot", "genres", "--multi-hot-separator", ""),
            "multi_hot_separator: must not be empty",
        ),
        (("--label", "stars>nan", "--categorical", "user"), "label compares stars with 'nan'"),
        (("--label", "stars>4", "--cross", "user,film"), "cross must be NAME=BUCKETS"),
        (("--label", "stars>x", "--categorical", "user"), "label compares stars with 'x'"),
        (("--label", "stars>4"), "categorical: at least one"),
        (
            ("--label", "stars>4", "--categorical", "film", "--user", "user"),
            "user and rows_per_user belong together",
        ),
        (
            ("--label", "stars>4", "--categorical", "film", "--user", "who", "--rows-per-user", "2"),
            "user: no column 'who' in r.csv",
        ),
        (
            (
                "--label",
                "stars>4",
                "--categorical",
                "film",
                "--user",
                "user",
                "--rows-per-user",
                "2",
                "--vocabulary-epsilon",
                "1",
                "--vocabulary-delta",
                "1e-5",
                "--ledger",
                "l",
            ),
            "vocabulary-epsilon: partition selection protects single rows, not users",
        ),
    ],
)
def test_tables_that_cannot_be_prepared_are_refused(tmp_path, options, said):
    (tmp_path / "r.csv").write_text(RATINGS)
    refused(invoke("table", tmp_path / "r.csv", "--out", tmp_path / "out", *options), said)


RATED = ("--label", "stars>=4", "--categorical", "user,film", "--multi-hot", "genres")


def test_hashes_for_all_columns_and_a_default(tmp_path):
    (tmp_path / "r.csv").write_text(RATINGS)
    result = invoke("table", tmp_path / "r.csv", "--out", tmp_path / "default", *RATED)
    assert result.exit_code == 0, result.output
    assert "user, film, genres: hashed into 20,000 rows each; --hash decides" in result.stdout
    assert Schema.read(tmp_path / "default").vocabulary_sizes == (20_000, 20_000)
    asked = ("--hash", "all=50", "--hash", "film=70")
    result = invoke("table", tmp_path / "r.csv", "--out", tmp_path / "all", *RATED, *asked)
    assert result.exit_code == 0, result.output
    assert "genres: hashed into 50 rows each" not in result.stdout
    schema = Schema.read(tmp_path / "all")
    assert schema.vocabulary_sizes == (50, 70)
    assert [feature.rows for feature in schema.multi_hot] == [50]


def test_a_column_named_all_is_a_column(tmp_path):
    (tmp_path / "r.csv").write_text("click,all\n1,a\n0,b\n")
    result = invoke(
        "table", tmp_path / "r.csv", "--out", tmp_path / "out", "--label", "click", "--categorical", "all",
        "--hash", "all=9",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert Schema.read(tmp_path / "out").vocabulary_sizes == (9,)


def test_a_scale_by_public_bounds(tmp_path):
    (tmp_path / "r.csv").write_text("click,user,age,paid\n1,a,20,100\n0,b,120,\n1,c,,7\n")
    options = ("--label", "click", "--categorical", "user", "--numeric", "age,paid", "--scale", "age=0:100")
    result = invoke("table", tmp_path / "r.csv", "--out", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    numbers = ClickData.open(tmp_path / "out").take([0, 1, 2]).numeric
    assert numbers[:, 0].tolist() == pytest.approx([-0.6, 1.0, 0.0])
    assert numbers[:, 1].tolist() == pytest.approx([math.log(101), 0.0, math.log(8)])
    schema = Schema.read(tmp_path / "out")
    assert schema.scales == (("age", 0.0, 100.0),)
    assert "age: 0:100 to -1:1" in schema.numeric_rule


def test_a_zip_of_tables(tmp_path):
    (tmp_path / "r.csv").write_text(RATINGS)
    with zipfile.ZipFile(tmp_path / "r.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", "ratings")
        archive.writestr("part/1.csv", RATINGS)
        archive.writestr("part/2.csv", RATINGS)
    for source, out in (("r.csv", "plain"), ("r.zip", "zip")):
        result = invoke("table", tmp_path / source, "--out", tmp_path / out, *RATED, "--hash", "all=50")
        assert result.exit_code == 0, result.output
    assert Schema.read(tmp_path / "zip").rows == 2 * Schema.read(tmp_path / "plain").rows
    member = ("--member", "*/2.csv")
    result = invoke(
        "table", tmp_path / "r.zip", "--out", tmp_path / "one", *RATED, "--hash", "all=50", *member
    )
    assert result.exit_code == 0, result.output
    one, plain = (ClickData.open(tmp_path / name).take([0, 1, 2]) for name in ("one", "plain"))
    assert one.ids.tolist() == plain.ids.tolist()


def test_a_folder_of_other_things_is_refused_before_anything_is_paid_or_written(raw, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    ledger = tmp_path / "data.ledger"
    options = ("--vocabulary-epsilon", "4", "--vocabulary-delta", "1e-6", "--ledger", ledger)
    refused(
        invoke("criteo", raw, "--out", tmp_path / "home", *options),
        f"out: {tmp_path / 'home'} holds other things (thesis.tex): give a new or an empty folder",
    )
    assert not ledger.exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    refused(invoke("criteo", raw, "--out", raw), f"out: {raw} is not a folder")


def test_help_and_missing_files(tmp_path):
    assert "--vocabulary-epsilon" in invoke("criteo", "--help").stdout
    assert invoke("criteo", tmp_path / "absent.txt", "--out", tmp_path / "out").exit_code == 2


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_same_result(tmp_path):
    write_criteo_tsv(tmp_path / "train.txt", 150_000)

    def command(out):
        code = "from sparsedp.cli.prepare import prepare_app; prepare_app()"
        return [
            sys.executable,
            "-c",
            code,
            "criteo",
            str(tmp_path / "train.txt"),
            "--out",
            str(tmp_path / out),
        ]

    subprocess.run(command("whole"), check=True, capture_output=True, timeout=120)
    process = subprocess.Popen(command("killed"))
    while process.poll() is None and len(list((tmp_path / "killed").glob("part-*.parquet"))) < 2:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "schema.json").exists()
    subprocess.run(command("killed"), check=True, capture_output=True, timeout=120)
    whole, killed = (
        {p.name: p.read_bytes() for p in (tmp_path / out).iterdir()} for out in ("whole", "killed")
    )
    assert killed == whole
