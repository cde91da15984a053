import json
import subprocess
import sys
import time

import pytest
from support.visits import prepare_visits
from typer.testing import CliRunner

from sparsedp.cli.app import app
from sparsedp.runs import RunConfig
from sparsedp.runs.choosing import completed

RUN = ["plan", "--epsilon", "1", "--examples", "1e6", "--expected-batch-size", "8192"]
TABLES = ["--table", "items=50000x16", "--table", "200000x8x3", "--table", "300x4"]


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_json_is_the_plan():
    result = invoke(*RUN, *TABLES, "--gradient-size", "30000", "--json")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["gradient_size"] == pytest.approx(30_000, rel=1e-6)
    assert made["steps"] == 123
    assert made["statement"]["unit"] == "example"
    assert [table["name"] for table in made["tables"]] == ["items", "table-2", "table-3"]


def test_the_table_for_people_has_every_figure_and_the_whole_statement():
    result = invoke(*RUN, *TABLES)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for word in (
        "add-or-remove-one",
        "unit: example",
        "sigma1",
        "sigma2",
        "tau",
        "C1",
        "FEST",
        "DP-SGD",
        "0.95",
    ):
        assert word in text
    assert "items" in text


def test_two_ways_to_protect_users():
    asked = [
        "plan",
        "--epsilon",
        "8",
        "--examples",
        "1000",
        "--expected-batch-size",
        "100",
        *TABLES,
        "--users",
        "200",
    ]
    result = invoke(*asked, "--rows-per-user", "5", "--json")
    assert result.exit_code == 0
    made = json.loads(result.stdout)["users"]
    assert (made["statement"]["unit"], made["expected_users"], made["expected_rows"]) == ("user", 20, 100)
    said = " ".join(invoke(*asked, "--rows-per-user", "5").stdout.split())
    for word in ("To protect 200 users of 5 rows", "unit: user", f"{made['user_noise_multiplier']:.4f}"):
        assert word in said
    assert f"Better: {made['better']}" in said
    result = invoke(*asked)
    assert result.exit_code == 2
    assert "users and rows_per_user belong together" in result.stderr


def test_the_criteo_tables_are_at_hand():
    result = invoke(*RUN, "--tables", "criteo", "--json")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert len(made["tables"]) == 26
    assert made["dpsgd"]["gradient_size"] == 9_599_632
    assert made["false_positives"] == pytest.approx(50)


def test_tables_may_come_from_a_file(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text('[{"rows": 50000, "dim": 16}]')
    result = invoke(*RUN, "--tables", str(path), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tables"][0]["rows"] == 50_000


NUMBERS = ["0", "-1", "1e30", "1e300", "inf", "nan"]
OPTIONS = [
    *("epsilon", "delta", "examples", "batch", "epochs", "gradient-size", "false-positives", "threshold"),
    *("noise-ratio", "contribution-norm", "always-on-rows", "fest-rows", "fest-mu", "dense-parameters"),
]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "number",
    [
        *NUMBERS,
        *(
            pytest.param(number, marks=pytest.mark.slow)
            for number in ("5e-324", "1e-200", "1e-6", "0.5", "3", "1e6", "1e12")
        ),
    ],
)
def test_any_number_is_answered_or_refused_in_one_line(option, number):
    began = time.process_time()
    result = invoke(*RUN, *TABLES, f"--{option}", number, "--json")
    assert time.process_time() - began < 20
    if result.exit_code == 0:
        made = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(text))
        assert made["map_noise_multiplier"] > 0
        assert made["gradient_noise_multiplier"] >= made["noise_multiplier"] > 0
        assert made["gradient_size"] > 0
    else:
        assert result.exit_code == 2
        assert result.stdout == ""
        assert option in result.stderr.replace("_", "-")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epsilon", "-1"], "epsilon"),
        (["--epsilon", "1e9"], "epsilon of 1e+09 is so large"),
        (["--tables", "/dev/zero"], "table and tables"),
        (["--epsilon", "nan"], "epsilon"),
        (["--delta", "1"], "delta"),
        (["--delta", "nan"], "delta"),
        (["--expected-batch-size", "2e6"], "batch"),
        (["--examples", "nan"], "examples"),
        (["--table", "0x8"], "rows"),
        (["--table", "8"], "table"),
        (["--threshold", "3", "--false-positives", "5"], "false_positives and threshold"),
        (["--false-positives", "nan"], "false_positives"),
        (["--tables", "criteo"], "table and tables"),
        (["--noise-ratio", "0"], "noise_ratio"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, named):
    result = invoke(*RUN, *TABLES, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_an_empty_table_list_is_bad_input(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text("[]")
    result = invoke(*RUN, "--tables", "/dev/zero")
    assert result.exit_code == 2
    assert "/dev/zero is not a regular file" in result.stderr
    for source in ([], ["--tables", str(path)]):
        result = invoke(*RUN, *source)
        assert result.exit_code == 2
        assert "tables must not be empty" in result.stderr
    result = invoke(*RUN, "--tables", str(tmp_path / "absent.json"))
    assert result.exit_code == 2
    assert "absent.json" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["plan", "--epsilon", "abc"], ["plan", "--nonsense"], ["nonsense"]],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2_as_well(arguments):
    code = "from sparsedp.cli.app import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("sparsedp: ")
    assert result.stderr.count("\n") == 1


def test_version_and_help():
    assert invoke("--version").stdout.startswith("sparsedp 0.")
    assert "gradient-size" in invoke("plan", "--help").stdout


def test_data_has_a_recipe():
    """Without its tables or batch: what `train` would choose for it."""
    result = invoke("plan", "--data", "generated:5000", "--epsilon", "3")
    assert result.exit_code == 0, result.output
    for words in (
        "add-or-remove-one",
        "the final model only",
        "delta 2.24e-05",
        "algorithm lazy: ",
        "epochs ",
    ):
        assert words in result.stdout
    made = json.loads(invoke("plan", "--data", "generated:5000", "--epsilon", "3", "--json").stdout)
    assert made["settings"]["expected_batch_size"] == made["expected_batch_size"]
    assert f"expected_batch_size {made['expected_batch_size']:,}" in result.stdout


def test_an_algorithm_by_name_has_a_recipe():
    asked = ("plan", "--data", "generated:5000", "--epsilon", "3", "--algorithm", "fest")
    said, made = invoke(*asked).stdout, json.loads(invoke(*asked, "--json").stdout)
    rows, mu = made["selection"]["rows"], made["selection"]["fest_mu"]
    assert (made["settings"]["rows"], made["settings"]["fest_mu"]) == (rows, mu)
    for words in (f"rows {rows:,}: ", f"fest_mu {mu:g}: ", "the model after every step", "--algorithm fest"):
        assert words in said
    assert "the final model only" in invoke(*asked[:-1], "fest-lazy").stdout


def test_users_have_a_recipe(tmp_path):
    """That of `train` with the same options, which are printed."""
    data = str(prepare_visits(tmp_path))
    options = ["--unit", "user", "--user-sampling", "rows", "--rows-per-user", "3"]
    asked = ("plan", "--data", data, "--epsilon", "3", "--delta", "1e-04", *options)
    said, made = invoke(*asked).stdout, json.loads(invoke(*asked, "--json").stdout)
    fields = {"unit": "user", "user_sampling": "rows", "rows_per_user": 3, "delta": 1e-4}
    config, _ = completed(RunConfig.parse({"data": data, "epsilon": 3.0, **fields}))
    assert made["settings"] == config.model_dump(mode="json")
    assert "add-or-remove-one user" in said
    assert f"--delta 0.0001 {' '.join(options)} --out" in said
    by_example = json.loads(invoke(*asked[:7], "--json").stdout)
    assert by_example["noise_multiplier"] < made["noise_multiplier"]
    assert by_example["settings"]["unit"] == "example"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "fest"], "algorithm: is for a recipe, give --data too"),
        (["--data", "generated:5000", "--algorithm", "best"], "algorithm: 'best' is not one of"),
        (["--data", "generated:5000", "--epochs", "2"], "epochs: with --data the recipe chooses"),
        (["--data", "generated:5000", "--table", "5x5"], "table: with --data"),
        (
            ["--data", "generated:5000", "--users", "50"],
            "users: with --data they are counted; give --unit user",
        ),
        (["--data", "generated:5000", "--unit", "user"], "unit: generated:5000 does not say whose"),
        (["--data", "generated:5000", "--unit", "house"], "unit: 'house' is not one of"),
        (["--data", "generated:5000", "--user-sampling", "rows"], "user_sampling: belongs to unit user"),
        (["--data", "generated:5000", "--rows-per-user", "3"], "rows_per_user: belongs to unit user"),
        (["--unit", "user"], "unit: is for a recipe, give --data too"),
        (["--user-sampling", "rows"], "user_sampling: is for a recipe, give --data too"),
        (["--expected-batch-size", "10"], "examples: it must be given, or --data"),
        (["--examples", "1000"], "expected_batch_size: it must be given"),
    ],
)
def test_a_plan_is_for_data_or_for_numbers(arguments, words):
    result = invoke("plan", "--epsilon", "3", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
