import json
import math
import time
import warnings

import pytest
from support.command_line import assert_refused
from typer.testing import CliRunner

from sparsedp.accounting import (
    GaussianDpEvent,
    LooseEpsilonWarning,
    PoissonSampledDpEvent,
    analytic_gaussian_epsilon,
    epsilon,
    epsilon_of,
)
from sparsedp.accounting.ledger import Ledger
from sparsedp.cli.app import app
from sparsedp.core.rounding_up import rounded_up
from sparsedp.core.steps import steps_per_epoch
from sparsedp.data import Columns, HashRule, Label, Schema, Table, prepare
from sparsedp.planning.budget import RunBudget
from sparsedp.training.step_config import total_steps

RUN = ["--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100", "--delta", "1e-6"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["account", *arguments])


def test_epsilon_of_a_run_comes_with_its_statement():
    expected = epsilon(noise_multiplier=1.0, sampling_rate=0.01, steps=100, delta=1e-6)
    result = invoke(*RUN, "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["epsilon"] == pytest.approx(expected)
    assert (said["delta"], said["unit"], said["adjacency"]) == (1e-6, "example", "add-or-remove-one")
    text = invoke(*RUN).stdout
    for word in (f"({rounded_up(expected, 4)}, ", "add-or-remove-one", "unit: example", "100 steps"):
        assert word in text


def test_examples_batch_and_epochs_say_the_same():
    said = invoke(
        "--noise-multiplier",
        "1",
        "--examples",
        "1e5",
        "--expected-batch-size",
        "1000",
        "--epochs",
        "1",
        "--json",
    )
    assert json.loads(said.stdout)["epsilon"] == json.loads(invoke(*RUN, "--json").stdout)["epsilon"]
    assert json.loads(said.stdout)["delta"] == 1e-6


def test_an_epoch_is_rounded_up_to_whole_steps():
    run = (
        "--noise-multiplier",
        "1",
        "--examples",
        "1000",
        "--expected-batch-size",
        "30",
        "--delta",
        "1e-6",
        "--json",
    )
    said = json.loads(invoke(*run, "--epochs", "1").stdout)
    assert "each of 34 steps" in said["released"]  # 33.3
    assert said["epsilon"] == json.loads(invoke(*run, "--steps", "34").stdout)["epsilon"]


@pytest.mark.parametrize(
    ("examples", "batch", "epochs"), [(1000, 300, 3), (1000, 30, 1.5), (90, 9, 0.3), (7, 2, 2.5)]
)
def test_epochs_are_as_many_steps_as_the_loop_and_the_plan_take(examples: int, batch: int, epochs: float):
    """1000 / 300 is four batches a pass: three passes are 12 steps, where 3 / rate would be charged as 10."""
    taken = total_steps(epochs, None, (batch, batch / examples, True, steps_per_epoch(batch / examples)))
    run = (
        "--examples",
        str(examples),
        "--expected-batch-size",
        str(batch),
        "--epochs",
        str(epochs),
        "--json",
    )
    assert f"each of {taken} steps" in json.loads(invoke("--noise-multiplier", "2", *run).stdout)["released"]
    budget = RunBudget.checked(1.0, 1e-6, examples, batch, epochs)
    assert budget.steps == taken


def test_users_with_several_rows_cost_more_and_are_named():
    said = json.loads(invoke(*RUN, "--rows-per-user", "3", "--json").stdout)
    one = json.loads(invoke(*RUN, "--json").stdout)["epsilon"]
    assert 1.5 * one < said["epsilon"] < 6 * one
    assert said["unit"] == "user (at most 3 rows)"


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path, budget=(2.0, 1e-6), run="model a") as written:
        step = written.step_reserver(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)))
        for _ in range(100):
            step()
        written.spend(GaussianDpEvent(20.0))
    return path


def test_a_ledger_is_read_aloud(ledger):
    events = [(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 100), (GaussianDpEvent(20.0), 1)]
    result = invoke("--ledger", str(ledger), "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["statement"]["epsilon"] == pytest.approx(epsilon_of(events, 1e-6))
    assert said["budget"] == {"epsilon": 2.0, "delta": 1e-6}
    assert [entry["count"] for entry in said["events"]] == [100, 1]
    assert said["runs"][0]["name"] == "model a"
    text = invoke("--ledger", str(ledger), "--delta", "1e-5").stdout
    for word in ("1e-05", "add-or-remove-one", "unit: example", "model a", "Budget: epsilon 2", "100 x"):
        assert word in text
    (budget,) = [line for line in text.splitlines() if line.startswith("Budget")]
    assert "at delta 1e-06, add-or-remove-one adjacency, unit: example, for all that" in budget


def test_what_a_broken_off_run_reserved_is_said(ledger):
    Ledger.open(ledger, run="model b").step_reserver(GaussianDpEvent(30.0), reserve=2)()
    text = invoke("--ledger", str(ledger)).stdout
    assert "2 steps were reserved" in text


def test_a_damaged_ledger_is_one_line_with_the_position(ledger):
    data = bytearray(ledger.read_bytes())
    data[-20] ^= 1
    ledger.write_bytes(data)
    result = invoke("--ledger", str(ledger))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "damaged at byte" in result.stderr


USERS = ["--rows-per-user", "1000000"]


def test_users_with_a_million_rows_have_an_answer():
    quiet = json.loads(invoke(*RUN, "--noise-multiplier", "1e5", *USERS, "--json").stdout)
    # 1e4 of 1e6 rows in each batch, all but always: a Gaussian that is moved by 0.1, 100 times.
    assert quiet["epsilon"] == pytest.approx(analytic_gaussian_epsilon(1e-6, 1.0), rel=0.01)
    loud = invoke(*RUN, *USERS)
    assert_refused(loud, "noise_multiplier of 1 protects nothing")


def test_an_infinite_epsilon_in_a_ledger_is_said(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path, run="model a") as written:
        written.spend(GaussianDpEvent(1e-200))
    said = json.loads(invoke("--ledger", str(path), "--delta", "1e-6", "--json").stdout)
    assert said["statement"]["epsilon"] == "inf"
    assert "(inf, 1e-06)-DP" in invoke("--ledger", str(path), "--delta", "1e-6").stdout


NUMBERS = ["0", "-1", "5e-324", "1e-200", "1e-6", "0.5", "3", "1e6", "1e12", "1e30", "1e300", "inf", "nan"]
OPTIONS = [
    "noise-multiplier",
    "sampling-rate",
    "steps",
    "delta",
    "examples",
    "batch",
    "epochs",
    "rows-per-user",
]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("option", OPTIONS)
def test_any_number_is_answered_or_refused_in_one_line(option, number):
    for run in (
        RUN,
        ["--noise-multiplier", "1", "--examples", "1000", "--expected-batch-size", "10", "--epochs", "1"],
    ):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LooseEpsilonWarning)
            result = invoke(*run, f"--{option}", number, "--json")
        assert time.process_time() - began < 10
        if result.exit_code == 0:
            assert 0 <= json.loads(result.stdout)["epsilon"] < math.inf
        else:
            assert result.exit_code == 2
            assert result.stdout == ""
            assert option in result.stderr.replace("_", "-")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "noise_multiplier is missing"),
        ([*RUN, "--noise-multiplier", "-1"], "noise_multiplier"),
        ([*RUN, "--noise-multiplier", "nan"], "noise_multiplier"),
        ([*RUN, "--sampling-rate", "1.5"], "sampling_rate"),
        ([*RUN, "--sampling-rate", "nan"], "sampling_rate"),
        ([*RUN, "--delta", "1"], "delta"),
        ([*RUN, "--delta", "nan"], "delta"),
        ([*RUN, "--steps", "0"], "steps"),
        ([*RUN, "--steps", "1.5"], "steps"),
        ([*RUN, "--epochs", "1"], "steps and epochs"),
        ([*RUN, "--expected-batch-size", "10"], "sampling_rate and expected_batch_size"),
        ([*RUN, "--rows-per-user", "0"], "rows_per_user"),
        ([*RUN, "--ledger", "x"], "ledger"),
        (["--ledger", "absent.ledger"], "absent.ledger"),
        (["--ledger", "/dev/zero"], "/dev/zero is not a regular file"),
        (["--ledger", "."], "is not a regular file"),
        ([*RUN, "--noise-multiplier", "1e-200"], "noise_multiplier of 1e-200 protects nothing"),
        ([*RUN, "--steps", "1e30"], "steps must be at most"),
        ([*RUN, "--examples", "0"], "examples must be at least 1"),
        (
            [
                "--noise-multiplier",
                "1",
                "--examples",
                "1e5",
                "--expected-batch-size",
                "10",
                "--epochs",
                "1e300",
            ],
            "epochs",
        ),
        (
            ["--noise-multiplier", "1", "--examples", "10", "--expected-batch-size", "20", "--steps", "1"],
            "batch",
        ),
        (["--noise-multiplier", "1", "--sampling-rate", "0.1", "--steps", "1"], "delta is missing"),
        (["--noise-multiplier", "1", "--sampling-rate", "0.1"], "steps is missing"),
        (["--noise-multiplier", "1", "--steps", "1"], "sampling_rate is missing"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, named):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_a_ledger_of_examples_is_priced_for_users_where_the_data_proves_the_cap(tmp_path):
    (tmp_path / "visits.csv").write_text("who,item,y\na,1,0\na,2,1\nb,3,1\n")
    columns = Columns(label=Label.parse("y"), categorical=("item",), user="who", rows_per_user=2)
    prepare(Table.of([tmp_path / "visits.csv"], columns), tmp_path / "data", {"item": HashRule(20)})
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        ledger.spend(GaussianDpEvent(4.0))
    asked = ("--ledger", str(tmp_path / "run.ledger"), "--delta", "1e-3", "--rows-per-user")
    found = invoke(*asked, "3", "--data", str(tmp_path / "data"), "--json")
    assert found.exit_code == 0, found.output
    statement = json.loads(found.stdout)["statement"]
    assert statement["unit"] == "user"
    assert statement["epsilon"] == epsilon_of([(GaussianDpEvent(2.0), 1)], 1e-3)
    assert statement["notes"] == ["every user's rows were cut to 2 when the data was prepared"]
    assert_refused(
        invoke(*asked, "3"), "rows_per_user: no user may have more than 3 rows", "no data that says so"
    )
    assert_refused(invoke(*asked, "1", "--data", str(tmp_path / "data")), "was cut to 2")
    (tmp_path / "data.json").write_text(json.dumps({"digest": "that of data without users"}))
    assert_refused(
        invoke(*asked, "3", "--data", str(tmp_path / "data")),
        "holds other data than the run beside the ledger",
    )
    (tmp_path / "data.json").write_text(json.dumps({"digest": Schema.read(tmp_path / "data").digest}))
    assert invoke(*asked, "3", "--data", str(tmp_path / "data")).exit_code == 0
    Ledger.open(tmp_path / "users.ledger", unit="user")
    asked = ("--ledger", str(tmp_path / "users.ledger"), "--delta", "1e-3", "--rows-per-user", "3")
    assert_refused(invoke(*asked), "rows_per_user: the ledger is for the unit 'user' already")
