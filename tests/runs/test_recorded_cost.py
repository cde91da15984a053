"""What a run cost by its own records is what it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import config

from sparsedp.accounting.pld.composition import tolerance
from sparsedp.data import Columns, HashRule, Label, Table, prepare
from sparsedp.runs import RunFolder, resume, train
from sparsedp.runs.recorded_cost import recorded_epsilon
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
