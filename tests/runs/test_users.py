"""Runs by user: the sampler of the config, users held out, statements, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sparsedp.accounting import Ledger
from sparsedp.data import ClickData, Columns, HashRule, Label, Table, prepare
from sparsedp.runs import RunConfig, RunFolder, calibration, train
from sparsedp.runs.choosing import choose
from sparsedp.runs.evaluation import evaluate_run
from sparsedp.runs.sources import fresh_model, split
from sparsedp.runs.trainer import PrivateTrainer
from sparsedp.runs.users import user_sampler


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 users of up to 6 rows."""
    folder = tmp_path_factory.mktemp("visits")
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"who": rng.integers(0, 60, 500), "item": rng.integers(0, 900, 500), "x": rng.random(500)}
    )
    frame.with_columns(y=(pl.col("x") > 0.5).cast(int)).write_csv(folder / "visits.csv")
    columns = Columns(
        label=Label.parse("y"), categorical=("item",), numeric=("x",), user="who", rows_per_user=6
    )
    prepare(Table.of([folder / "visits.csv"], columns), folder / "data", {"item": HashRule(400)})
    return folder / "data"


def config(data: Path | str, algorithm: str = "adafest", **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "data": str(data),
        "algorithm": algorithm,
        "unit": "user",
        "expected_batch_size": 20,
        "epochs": 2,
        "model_options": {"hidden": [4], "dims": [2]},
        "seed": 1,
        "always_on_rows": 0,
    }
    if algorithm != "non-private":
        fields["epsilon"] = 20.0
    return RunConfig.parse({**fields, **changes})


def test_a_run_protects_and_holds_out_users(visits: Path, tmp_path: Path) -> None:
    asked = config(visits, "fest", rows=50)
    result = train(asked, tmp_path / "run")
    assert result.statement is not None
    training, held_out = split(asked, ClickData.open(visits))
    assert not set(training.user) & set(held_out.user)
    assert result.held_out_rows == len(held_out)
    assert result.statement["unit"] == "user"
    assert result.statement["delta"] == 1 / (10 * np.unique(training.user).size)
    assert "each step draws users, 20 on average, and at most 6 rows of each" in result.statement["notes"]
    assert Ledger.read(RunFolder(tmp_path / "run").ledger).unit == "user"
    assert evaluate_run(tmp_path / "run").auc == result.auc


def test_without_privacy_the_same_batches(visits: Path, tmp_path: Path) -> None:
    result = train(config(visits, "non-private", rows_per_user=3, physical_batch_size=8), tmp_path / "run")
    assert result.statement is None
    assert result.steps == 6


def test_the_sampler_is_that_of_the_settings(visits: Path) -> None:
    data = ClickData.open(visits)
    sampler = user_sampler(config(visits, user_sampling="rows", rows_per_user=4), data)
    assert sampler is not None
    assert (sampler.sample, sampler.rows_per_user) == ("rows", 4)
    sampler = user_sampler(config(visits), data)
    assert sampler is not None
    assert (sampler.sample, sampler.rows_per_user, sampler.users) == ("users", 6, 60)
    assert user_sampler(config(visits, unit="example"), data) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_per_user": 7}, "rows_per_user: 7 of a user were requested, and the data was cut to 6"),
        (
            {"expected_batch_size": 61},
            "expected_batch_size: 61 users a step were requested, and there are 60",
        ),
        ({"unit": "example", "rows_per_user": 3}, "rows_per_user: belongs to unit user"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_is_made(
    visits: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(config(visits, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unit: generated:50 does not say whose its rows are"):
        train(config("generated:50"), tmp_path / "run")


def test_a_shared_ledger_has_one_unit(visits: Path, tmp_path: Path) -> None:
    Ledger.open(tmp_path / "data.ledger")
    with pytest.raises(ValueError, match="unit"):
        train(config(visits, ledger=str(tmp_path / "data.ledger")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_output_is_calibrated_by_users(
    visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is charged to a ledger of users is paid by weights that add up to 1 at most for each of them."""
    given: list[Any] = []
    noisy = calibration.gaussian
    monkeypatch.setattr(
        calibration, "gaussian", lambda values, **rest: (given.append(values), noisy(values, **rest))[1]
    )
    asked = config(visits, "lazy", calibration_mu=0.5)
    train(asked, tmp_path / "run")
    training, _ = split(asked, ClickData.open(visits))
    assert given[0].sum() == pytest.approx(len(training) / 6)


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_what_is_left_open_is_chosen_for_users(visits: Path, sample: str) -> None:
    """The delta of the choices is that of the run, and a piece has room for a user."""
    data = ClickData.open(visits)
    asked = RunConfig.parse(
        {"data": str(visits), "epsilon": 2.0, "unit": "user", "user_sampling": sample, "holdout": 0.2}
    )
    made = choose(asked, data)
    training, _ = split(asked, data)
    users = np.unique(training.user).size
    assert (made.examples, made.delta) == (users, 1 / (10 * users))
    assert made.config.choices.expected_batch_size <= (users if sample == "users" else len(training))


@pytest.mark.parametrize("who", ["one", "each"])
def test_users_too_few_to_evaluate_are_refused_before_anything_is_spent(tmp_path: Path, who: str) -> None:
    """A run that cannot be evaluated would lose its whole budget at its end."""
    names = "a" * 30 if who == "one" else "abcdefgh"
    rows = "".join(f"{name},{n % 4},{n % 2 if who == 'one' else 1}\n" for n, name in enumerate(names))
    (tmp_path / "visits.csv").write_text("who,item,y\n" + rows)
    columns = Columns(label=Label.parse("y"), categorical=("item",), user="who", rows_per_user=30)
    prepare(Table.of([tmp_path / "visits.csv"], columns), tmp_path / "data", {"item": HashRule(9)})
    with pytest.raises(ValueError, match=r"^holdout: .*hold out (more|less)$"):
        train(config(tmp_path / "data", expected_batch_size=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_recipe_has_the_noise_that_the_run_trains_with(visits: Path) -> None:
    left_open = {"data": str(visits), "epsilon": 4.0, "unit": "user", "user_sampling": "rows"}
    found = choose(RunConfig.parse(left_open), ClickData.open(visits))
    run = PrivateTrainer(
        found.config, fresh_model(found.config, ClickData.open(visits)), split_of(found.config, visits), None
    )
    assert run.engine.noise_multiplier == pytest.approx(found.recipe.noise_multiplier, rel=0.02)
    run.close()


def split_of(config: RunConfig, data: Path) -> ClickData:
    training = split(config, ClickData.open(data))[0]
    assert isinstance(training, ClickData)
    return training
