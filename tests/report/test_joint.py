"""All runs on the same data together: one loss distribution, each ledger once, the costliest periods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import config, result

from sparsedp.accounting import GaussianDpEvent, Ledger, PoissonSampledDpEvent, epsilon_of
from sparsedp.report import FinishedRun
from sparsedp.report.joint import joint_costs, with_unknown_data
from sparsedp.runs import RunFolder

STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
DELTA = 1e-5


def run(path: Path, events: int = 0, *, periods: tuple[int, ...] = (), **changes: Any) -> FinishedRun:
    """A finished run with so many steps on its own ledger, or on those of its periods."""
    algorithm = changes.pop("algorithm", "adafest")
    unit = changes.pop("unit", "example")
    delta = changes.pop("stated_delta", DELTA)
    folder = RunFolder(path)
    folder.create(config(algorithm, **changes))
    ledgers = [(folder.ledger, events)] if events else []
    for number, steps in enumerate(periods):
        (path / f"period-{number:03d}").mkdir()
        ledgers.append((path / f"period-{number:03d}" / "run.ledger", steps))
    for file, steps in ledgers:
        with Ledger.open(file) as ledger:
            ledger.spend(STEP, steps)
    stated = {
        "epsilon": 1.0,
        "delta": delta,
        "adjacency": "add-or-remove-one",
        "unit": unit,
        "released": "it",
    }
    private = algorithm != "non-private"
    statement = {**stated, "private": True, "notes": []} if private else None
    folder.write_json("result", result(statement=statement))
    return FinishedRun.read(path)


def test_two_runs_on_the_same_data_are_one_composition(tmp_path: Path) -> None:
    """Less than the sum of their epsilons, more than either."""
    (joint,) = joint_costs([run(tmp_path / "a", 100), run(tmp_path / "b", 300)])
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of([(STEP, 400)], DELTA)
    assert (joint.statement.adjacency, joint.statement.unit) == ("add-or-remove-one", "example")
    assert joint.statement.delta == DELTA
    assert joint.unprotected == []


def test_a_single_run_and_runs_on_other_data_have_no_joint_cost(tmp_path: Path) -> None:
    assert joint_costs([run(tmp_path / "a", 100)]) == []
    assert joint_costs([run(tmp_path / "b", 100), run(tmp_path / "c", 100, data="generated:999")]) == []


def test_the_digest_of_the_data_tells_what_is_the_same(tmp_path: Path) -> None:
    one, two = run(tmp_path / "a", 100, data="here/x"), run(tmp_path / "b", 100, data="there/x")
    one.data["digest"] = two.data["digest"] = "abc"
    assert len(joint_costs([one, two])) == 1
    two.data["digest"] = "xyz"
    assert joint_costs([one, two]) == []


def test_a_released_folder_without_the_digest_is_of_the_data_at_its_path(tmp_path: Path) -> None:
    """Also through a link, and over a third run: the digest of one, the path of the other."""
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    one = run(tmp_path / "a", 100, data=str(tmp_path / "x"))
    released = run(tmp_path / "b", 100, data=str(tmp_path / "link"))
    moved = run(tmp_path / "c", 100, data="there/x")
    one.data["digest"] = moved.data["digest"] = "abc"
    (joint,) = joint_costs([released, moved, one])
    assert joint.runs == (released, moved, one)
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of([(STEP, 300)], DELTA)
    assert with_unknown_data([released, moved, one]) == []
    (joint,) = joint_costs([one, released])
    assert joint.runs == (one, released)


def test_a_run_whose_data_cannot_be_told_is_named(tmp_path: Path) -> None:
    known, other = run(tmp_path / "a", 100, data="here/x"), run(tmp_path / "b", 100, data="here/y")
    released, generated = run(tmp_path / "c", 100, data="there/x"), run(tmp_path / "d", 100)
    known.data["digest"], other.data["digest"] = "abc", "xyz"
    assert joint_costs([known, released]) == []
    assert with_unknown_data([known, released]) == [released]
    assert with_unknown_data([known, other, generated]) == []
    assert with_unknown_data([generated, released]) == []
    assert with_unknown_data([released]) == []


def test_a_shared_ledger_counts_once(tmp_path: Path) -> None:
    shared = str(tmp_path / "data.ledger")
    with Ledger.open(shared) as ledger:
        ledger.spend(STEP, 200)
    runs = [run(tmp_path / name, ledger=shared) for name in "ab"]
    (joint,) = joint_costs(runs)
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of([(STEP, 200)], DELTA)


def test_of_a_streaming_run_the_costliest_period_counts(tmp_path: Path) -> None:
    (joint,) = joint_costs([run(tmp_path / "a", periods=(50, 300, 100), period=1), run(tmp_path / "b", 100)])
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of([(STEP, 400)], DELTA)


def test_the_smallest_delta_is_taken(tmp_path: Path) -> None:
    (joint,) = joint_costs([run(tmp_path / "a", 100), run(tmp_path / "b", 100, stated_delta=1e-7)])
    assert joint.statement is not None
    assert joint.statement.delta == 1e-7
    assert joint.statement.epsilon == epsilon_of([(STEP, 200)], 1e-7)


def test_without_a_ledger_the_statements_are_added(tmp_path: Path) -> None:
    (joint,) = joint_costs([run(tmp_path / "a", 100), run(tmp_path / "b")])
    assert joint.statement is not None
    assert (joint.statement.epsilon, joint.statement.delta) == (2.0, pytest.approx(2 * DELTA))
    assert "were added" in joint.statement.notes[0]


def test_units_that_differ_and_runs_without_privacy(tmp_path: Path) -> None:
    users = run(tmp_path / "u", 100, unit="user (at most 3 rows)")
    (joint,) = joint_costs([run(tmp_path / "a", 100), users])
    assert joint.statement is None
    plain = run(tmp_path / "p", algorithm="non-private")
    (joint,) = joint_costs([run(tmp_path / "b", 100), plain])
    assert joint.statement is not None
    assert joint.statement.epsilon == epsilon_of([(STEP, 100)], DELTA)
    assert joint.unprotected == [plain]
