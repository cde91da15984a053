"""A run goes on with the settings that it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.interruptions import stop_at
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.runs import RunConfig, RunFolder, resume, start
from sparsedp.runs.settings_record import check_settings, record_settings


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_visits(tmp_path_factory.mktemp("visits"))


def killed(asked: RunConfig, path: Path, step: int) -> RunFolder:
    with pytest.raises(KeyboardInterrupt):
        start(asked, path, stop_at(step))
    return RunFolder(path)


def edit(folder: RunFolder, **changes: Any) -> None:
    """Change the settings as a hand would."""
    path = folder.path / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


STARTS = {"before a checkpoint": 1, "between periods": 7}
"""After how many steps a stream of users is killed: its first period has four."""

CHANGES: list[dict[str, Any]] = [
    {"period": 2},
    {"period": None},
    {"train_periods": 1},
    {"unit": "example"},
    {"user_sampling": "rows"},
    {"rows_per_user": 2},
    {"epsilon": 8.0},
    {"epsilon": 2.0},
    {"delta": 1e-6},
    {"epochs": 2.0},
    {"expected_batch_size": 20},
    {"max_grad_norm": 2.0},
    {"frequencies": "all"},
    {"always_on_rows": 5},
    {"rows": 30},
    {"fest_mu": 0.2},
    {"seed": None},
    {"algorithm": "adafest"},
    {"algorithm": "dp-sgd"},
    {"model_options": {"hidden": [5], "dims": [2]}},
    {"learning_rate": 0.2},
    {"ledger": "other.ledger"},
]


@pytest.mark.parametrize("when", STARTS)
def test_a_stream_with_other_settings_is_refused_by_the_first_that_differs(
    when: str, visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it was killed, and with nothing charged; with its own settings it goes on."""
    monkeypatch.chdir(tmp_path)
    Path("other.ledger").touch()
    folder = killed(visits_config(visits, "fest", checkpoint_every=1000), tmp_path / "run", STARTS[when])
    began, charged = (folder.path / "config.yaml").read_text(), folder.ledger.read_bytes()
    for change in CHANGES:
        (name,) = change
        edit(folder, **change)
        with pytest.raises(ValueError, match=rf"^{name}: config.yaml has .*, and the run began with "):
            resume(folder.path)
        (folder.path / "config.yaml").write_text(began)
    assert folder.ledger.read_bytes() == charged
    assert resume(folder.path).periods == 3


def test_what_changes_no_step_may_change(visits: Path, tmp_path: Path) -> None:
    folder = killed(visits_config(visits, checkpoint_every=1000), tmp_path / "run", 7)
    edit(folder, checkpoint_every=1, physical_batch_size=50, evaluate_every=2)
    assert resume(folder.path).periods == 3


def test_the_message_names_both_values_and_the_way_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    asked = config(data="generated:300x3", period=1)
    folder.create(asked)
    record_settings(folder, asked)
    with pytest.raises(
        ValueError,
        match=r"^period: config.yaml has 2, and the run began with 1; put that back, or start a new run$",
    ):
        check_settings(folder, asked.model_copy(update={"period": 2, "optimizer": "adam"}))


def test_of_a_run_on_all_rows_at_once_the_checkpoint_compares_the_rest(tmp_path: Path) -> None:
    """No stream is made of it."""
    asked = config("lazy", data="generated:400x4", expected_batch_size=20, checkpoint_every=1, seed=None)
    folder = killed(asked, tmp_path / "run", 3)
    began = (folder.path / "config.yaml").read_text()
    edit(folder, period=1, algorithm="dp-sgd")
    with pytest.raises(ValueError, match=r"^period: config.yaml has 1, and the run began with None"):
        resume(folder.path)
    (folder.path / "config.yaml").write_text(began)
    edit(folder, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="max_grad_norm"):
        resume(folder.path)


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has no record of its settings."""
    folder = killed(
        config("dp-sgd", data="generated:400x4", period=1, expected_batch_size=50), tmp_path / "run", 3
    )
    (folder.path / "private" / "settings.json").unlink()
    assert resume(folder.path).periods == 3
