"""What a run cost by its own records is what it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.accounting import EpsilonCap, Ledger, calibrate
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.data import Columns, HashRule, Label, Table, prepare
from sparsedp.runs import RunFolder, TextConfig, resume, start, stream, train
from sparsedp.runs.auditing import refutation
from sparsedp.runs.cost import RunCost, unseen_selection
from sparsedp.runs.recorded_cost import period_epsilons, period_result, recorded_epsilon
from sparsedp.runs.training import Progress

SMALL = {"data": "generated:400", "expected_batch_size": 100}


def claimed(path: Path) -> tuple[float, float]:
    result = RunFolder(path).read_json("result")
    assert result is not None
    return result["statement"]["epsilon"], result["statement"]["delta"]


def recorded(path: Path, **changes: Any) -> float | None:
    folder = RunFolder(path)
    return recorded_epsilon(
        folder, folder.config(), {**(folder.read_json("result") or {}), **changes}, claimed(path)[1]
    )


def without_ledger(path: Path) -> Path:
    """As where the ledger is a shared one, elsewhere."""
    RunFolder(path).ledger.unlink()
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "lazy", "calibration_mu": 0.2, "read_share_mu": 0.2},
        {"algorithm": "fest", "fest_mu": 0.05},
        pytest.param({"algorithm": "adafest+", "fest_mu": 0.05}, marks=pytest.mark.slow),
        pytest.param({"algorithm": "sparse-vector", "expected_batch_size": 300}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: str(changes["algorithm"]),
)
def test_ledger_and_settings_each_cost_what_is_claimed(changes: dict[str, Any], tmp_path: Path) -> None:
    train(config(**{**SMALL, **changes}), tmp_path / "run")
    epsilon, _ = claimed(tmp_path / "run")
    for path in (tmp_path / "run", without_ledger(tmp_path / "run")):
        assert recorded(path) == pytest.approx(epsilon, abs=tolerance(epsilon))


def test_less_noise_more_steps_and_a_calibration_cost_more(tmp_path: Path) -> None:
    train(config("lazy", **SMALL, calibration_mu=0.2), tmp_path / "run")
    epsilon, _ = claimed(tmp_path / "run")
    path = without_ledger(tmp_path / "run")
    noise = (RunFolder(path).read_json("result") or {})["noise_multiplier"]
    for changes in ({"noise_multiplier": 0.9 * noise}, {"steps": 5}, {"lost_steps": 1}):
        assert (recorded(path, **changes) or 0.0) > epsilon + 0.01
    assert (recorded(path, calibrated=False) or 9.0) < epsilon - 0.001


def test_lost_steps_are_in_the_cost_of_a_run_that_crashed(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    asked = config("lazy", **{**SMALL, "expected_batch_size": 20, "checkpoint_every": 1000})
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", stop)
    assert resume(tmp_path / "run").lost_steps == 1
    epsilon, _ = claimed(tmp_path / "run")
    for path in (tmp_path / "run", without_ledger(tmp_path / "run")):
        assert recorded(path) == pytest.approx(epsilon, abs=tolerance(epsilon))


@pytest.mark.parametrize("sampling", ["users", "rows"])
def test_users_are_recorded_in_the_ledger_alone(sampling: str, tmp_path: Path) -> None:
    rows = [f"{row % 40},{row % 97},{row % 3 % 2}" for row in range(160)]
    (tmp_path / "visits.csv").write_text("\n".join(["who,item,y", *rows]))
    columns = Columns(label=Label.parse("y"), categorical=("item",), numeric=(), user="who", rows_per_user=4)
    prepare(Table.of([tmp_path / "visits.csv"], columns), tmp_path / "data", {"item": HashRule(50)})
    options = {"hidden": [4], "dims": [2]}
    of_users = {"unit": "user", "user_sampling": sampling, "expected_batch_size": 10, "epsilon": 20.0}
    train(config("lazy", data=str(tmp_path / "data"), model_options=options, **of_users), tmp_path / "run")
    epsilon, _ = claimed(tmp_path / "run")
    assert recorded(tmp_path / "run") == pytest.approx(epsilon, abs=tolerance(epsilon))
    assert recorded(without_ledger(tmp_path / "run")) is None


@pytest.mark.parametrize("frequencies", ["first", "all", "running"])
def test_each_period_of_a_stream_costs_what_is_claimed(frequencies: str, tmp_path: Path) -> None:
    """By its ledger, and by its figures: with ``first`` only the first period pays for the rows."""
    fields = {"data": "generated:800x4", "period": 1, "expected_batch_size": 100, "fest_mu": 0.5}
    stream(config("fest", **fields, frequencies=frequencies, delta=1e-4), tmp_path / "run")
    epsilon, delta = claimed(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    settings, result = folder.config(), folder.read_json("result") or {}
    for source in ("ledger", "figures"):
        found = period_epsilons(folder, settings, result, delta)
        assert found == pytest.approx([epsilon] * 3, abs=3 * tolerance(epsilon)), source
        assert recorded(tmp_path / "run") == max(found)
        for number in range(3):
            folder.period(number).ledger.unlink(missing_ok=True)
    first, second = (period_result(result, number) for number in range(2))
    assert (first["period"], first["steps"], first["training_rows"]) == (0, 2, 200)
    is_quieter = second["noise_multiplier"] < 0.99 * first["noise_multiplier"]
    assert is_quieter == (frequencies == "first")


SHARING: dict[str, dict[str, Any]] = {
    "users": {"unit": "user", "period": None},
    "a stream of users": {"unit": "user"},
    "examples": {"unit": "example", "period": None},
    "a stream of examples": {"unit": "example"},
}


@pytest.mark.parametrize("kind", SHARING)
def test_a_shared_ledger_is_asked_for_the_events_of_the_run(kind: str, tmp_path: Path) -> None:
    """Not for those of another run, which was on it before."""
    data, path = prepare_visits(tmp_path), tmp_path / "all.ledger"
    fields: dict[str, Any] = {"ledger": str(path), "delta": 1e-4, **SHARING[kind]}
    asked = visits_config(data, "dp-sgd", **fields)
    for name in "ab":
        start(asked, tmp_path / name)
    first = claimed(tmp_path / "a")[0]
    if kind != "a stream of examples":  # whose periods add up on it
        assert recorded(tmp_path / "a") == pytest.approx(first, abs=3 * tolerance(first))
    found = recorded(tmp_path / "b")
    assert found == pytest.approx(recorded(tmp_path / "a"))
    assert 3.9 < (found or 0.0) <= 4.0 < claimed(tmp_path / "b")[0]
    (tmp_path / "b" / "run.name").write_text("c")
    with pytest.raises(ValueError, match=r"^ledger: .* holds nothing of 'c.*, which took [0-9]+ steps; put"):
        recorded(tmp_path / "b")


def test_rows_by_public_frequencies_are_not_in_the_cost(tmp_path: Path) -> None:
    def cost(source: str) -> float | None:
        fields = {"data": "x", "algorithm": "fest", "epsilon": 2.0, "rows": 50, "row_source": source}
        asked = TextConfig.parse({**fields, "expected_batch_size": 100, "fest_mu": 1.0})
        result = {"training_rows": 1000, "steps": 10, "noise_multiplier": 2.0}
        return recorded_epsilon(RunFolder(tmp_path), asked, result, 1e-5)

    private, public = cost("private"), cost("ranks")
    assert private is not None
    assert public is not None
    assert private > 2.0 * public


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_run_killed_between_its_result_and_the_end_of_its_ledger_is_not_refuted(
    epsilon: float, tmp_path: Path
) -> None:
    """Steps that were reserved and not taken stay on the ledger. They fit below the target, and the run was calibrated to
    within three tolerances of it, so the ledger never costs more than the claim and two tolerances."""
    delta, steps, asked = 1e-5, 3000, config("lazy", epsilon=epsilon, expected_batch_size=10)
    noise = calibrate(target_epsilon=epsilon, target_delta=delta, sampling_rate=0.01, steps=steps)
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    ((step, _),) = RunCost(unseen_selection(asked), noise, 0.01, steps).events
    charge = ledger.step_reserver(step, reserve=7, cap=EpsilonCap(epsilon, delta, steps))
    for _ in range(steps):
        charge()
    statement = ledger.statement(delta).to_dict()  # what the result holds; then the process is killed
    result = {"training_rows": 1000, "steps": steps, "noise_multiplier": noise, "statement": statement}
    left = sum(count for _, count in Ledger.read(folder.ledger).events()) - steps
    assert 0 <= left < 7
    assert (left > 0) == (epsilon == 0.5), "a step of the other run costs more than is left"
    recorded = recorded_epsilon(folder, asked, result, delta)
    assert recorded is not None
    assert (recorded > statement["epsilon"]) == (left > 0)
    audit = {"claimed": statement, "copy": statement, "lower_bound": 0.0, "recorded_epsilon": recorded}
    assert refutation(audit) is None
