"""Delta for an epsilon, curves, and the steps that are left, of a run and of a ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import assert_refused, invoke

from sparsedp.accounting import (
    GaussianDpEvent,
    Ledger,
    PoissonSampledDpEvent,
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    epsilon_of,
)
from sparsedp.core.rounding_up import rounded_up

STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
RUN = ["--noise-multiplier", "1", "--sampling-rate", "0.01"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "run.ledger"
    with Ledger.open(path, run="model a") as written:
        written.spend(STEP, 100)
        written.spend(GaussianDpEvent(20.0))
    return path


def test_delta_for_an_epsilon() -> None:
    """One Gaussian without sampling has a closed form."""
    asked = ["--noise-multiplier", "2", "--sampling-rate", "1", "--steps", "1", "--epsilon", "1.5"]
    said = json.loads(invoke("account", *asked, "--json").stdout)
    assert said["epsilon"] == 1.5
    assert said["delta"] == pytest.approx(analytic_gaussian_delta(1.5, 0.5), rel=1e-3)
    text = invoke("account", *asked).stdout
    for words in ("(1.5, ", "add-or-remove-one", "unit: example", "released: the model"):
        assert words in text


def test_delta_for_an_epsilon_of_a_ledger(ledger: Path) -> None:
    spent = epsilon_of([(STEP, 100), (GaussianDpEvent(20.0), 1)], 1e-6)
    said = json.loads(invoke("account", "--ledger", ledger, "--epsilon", str(spent), "--json").stdout)
    assert said["delta"] == pytest.approx(1e-6, rel=0.02)
    assert "model a" in said["released"]


def test_a_curve_over_delta(ledger: Path) -> None:
    said = json.loads(
        invoke("account", *RUN, "--steps", "100", "--delta", "3e-6", "--curve", "--json").stdout
    )
    assert [each["delta"] for each in said] == [1e-3, 1e-4, 1e-5, 3e-6, *(10.0**-n for n in range(6, 11))]
    assert [each["epsilon"] for each in said] == sorted(each["epsilon"] for each in said)
    assert said[3]["epsilon"] == epsilon_of([(STEP, 100)], 3e-6)
    text = invoke("account", "--ledger", ledger, "--curve").stdout
    for words in ("1e-10", "add-or-remove-one adjacency, unit: example, released: the results of all 101"):
        assert words in text


def test_how_many_steps_remain(ledger: Path) -> None:
    delta = ["--delta", "1e-6"]
    said = json.loads(
        invoke("account", *RUN, *delta, "--steps", "100", "--steps-within", "2", "--json").stdout
    )
    whole = json.loads(invoke("account", *RUN, *delta, "--steps-within", "2", "--json").stdout)
    assert whole["more_steps"] == said["more_steps"] + 100
    total = whole["more_steps"]
    assert epsilon_of([(STEP, total)], 1e-6) <= 2 < epsilon_of([(STEP, total + 1)], 1e-6)
    left = json.loads(invoke("account", "--ledger", ledger, *delta, "--steps-within", "2", "--json").stdout)
    assert 0 < left["more_steps"] < said["more_steps"]  # the other release has taken a part
    assert left["statement"]["epsilon"] <= 2
    text = invoke("account", "--ledger", ledger, *delta, "--steps-within", "2").stdout
    for words in (f"{left['more_steps']:,} more steps", "PoissonSampled", "add-or-remove-one", "model a"):
        assert words in text


def test_a_spent_ledger_has_no_steps_left(ledger: Path) -> None:
    said = invoke("account", "--ledger", ledger, "--delta", "1e-6", "--steps-within", "0.1", "--json")
    assert json.loads(said.stdout)["more_steps"] == 0
    assert json.loads(said.stdout)["statement"]["epsilon"] > 0.1


def test_the_delta_of_a_ledger_is_that_of_the_statement_beside_it(ledger: Path) -> None:
    assert_refused(invoke("account", "--ledger", ledger), "delta is missing", "give --delta")
    ledger.with_name("statement.json").write_text(json.dumps({"epsilon": 1.0, "delta": 2e-6}))
    said = json.loads(invoke("account", "--ledger", ledger, "--json").stdout)
    assert said["statement"]["delta"] == 2e-6
    assert said["statement"]["epsilon"] == epsilon_of([(STEP, 100), (GaussianDpEvent(20.0), 1)], 2e-6)
    ledger.with_name("statement.json").write_text("{}")
    assert_refused(invoke("account", "--ledger", ledger), "is not a privacy statement; give --delta")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "1", "--curve"], "exclude each other"),
        (["--epsilon", "1", "--delta", "1e-6"], "epsilon and delta exclude each other"),
        (["--epsilon", "-1"], "epsilon must"),
        (["--steps-within", "0", "--delta", "1e-6"], "epsilon must"),
        (["--steps-within", "1"], "delta is missing"),
    ],
    ids=str,
)
def test_bad_questions_are_refused(arguments: list[str], words: str) -> None:
    assert_refused(invoke("account", *RUN, "--steps", "10", *arguments), words)


def test_a_ledger_without_steps_has_none_to_count_on_with(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l") as written:
        written.spend(GaussianDpEvent(20.0))
    asked = ["--ledger", tmp_path / "l", "--delta", "1e-6", "--steps-within", "2"]
    assert_refused(invoke("account", *asked), "steps_within: the ledger holds no step")


def test_groups_and_replaced_examples(ledger: Path) -> None:
    whole = ["--noise-multiplier", "10", "--sampling-rate", "1", "--steps", "1", "--delta", "1e-6"]
    said = json.loads(invoke("account", *whole, "--group-size", "3", "--json").stdout)
    assert said["epsilon"] == pytest.approx(analytic_gaussian_epsilon(1e-6, 0.3), rel=1e-9)
    assert (said["unit"], said["adjacency"]) == ("group of at most 3 examples", "add-or-remove-one")
    said = json.loads(invoke("account", *whole, "--adjacency", "replace-one", "--json").stdout)
    assert said["epsilon"] == pytest.approx(analytic_gaussian_epsilon(1e-6, 0.2), rel=1e-6)
    assert (said["unit"], said["adjacency"]) == ("example", "replace-one")
    assert said["trade_off"]["mu"] == pytest.approx(0.2, rel=1e-2)
    at = ["--ledger", ledger, "--epsilon", "2"]
    one, group, replaced = (
        json.loads(invoke("account", *at, *more, "--json").stdout)["delta"]
        for more in ([], ["--group-size", "2"], ["--adjacency", "replace-one"])
    )
    assert one < group
    assert one < replaced
    assert invoke("account", *whole, "--adjacency", "add-or-remove-one").exit_code == 0


def test_a_ledger_for_replaced_examples(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with Ledger.open(path, adjacency="replace-one") as written:
        written.spend(GaussianDpEvent(5.0))
    asked = ["account", "--ledger", path, "--delta", "1e-6"]
    for more in ([], ["--adjacency", "replace-one"]):
        text = invoke(*asked, *more).stdout
        assert (
            f"({rounded_up(analytic_gaussian_epsilon(1e-6, 0.2), 4)}, 1e-06)-DP, replace-one adjacency"
            in text
        )
    assert_refused(
        invoke(*asked, "--adjacency", "add-or-remove-one"), "adjacency: what was spent is known for"
    )
    assert_refused(invoke(*asked, "--group-size", "2"), "group_size: groups are of examples")
    assert_refused(
        invoke(*asked, "--rows-per-user", "2"), "rows_per_user: the ledger is for replace-one adjacency"
    )


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--group-size", "0"], "group_size must be at least 1"),
        (["--group-size", "2", "--adjacency", "replace-one"], "group_size: groups are of examples"),
        (["--group-size", "2", "--rows-per-user", "2"], "group_size: groups are of examples"),
        (["--group-size", "2", "--steps-within", "3"], "steps_within: how many steps fit is known for one"),
        (
            ["--adjacency", "replace-one", "--steps-within", "3"],
            "steps_within: how many steps fit is known for",
        ),
        (["--adjacency", "zero-out"], "adjacency: what was spent is known for add-or-remove-one"),
    ],
)
def test_what_cannot_be_told_of_groups_is_refused(more: list[str], named: str) -> None:
    assert_refused(invoke("account", *RUN, "--steps", "10", "--delta", "1e-6", *more), named)


def test_the_best_attack_is_said_with_all_that_it_needs(ledger: Path) -> None:
    for asked in (["--ledger", ledger], [*RUN, "--steps", "100"]):
        attack = next(
            line
            for line in invoke("account", *asked, "--delta", "1e-6").stdout.splitlines()
            if line.startswith("Best attack")
        )
        for words in (
            "add-or-remove-one adjacency",
            "released: the",
            "on one example",
            "advantage at most 0.0",
        ):
            assert words in attack
