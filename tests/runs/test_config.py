"""A run's settings: what is wrong is said in one line that names the field."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.runs import settings

from sparsedp.runs import ALGORITHMS, RunConfig

POSITIVE = (
    "epsilon",
    "epochs",
    "max_grad_norm",
    "learning_rate",
    "table_learning_rate",
    "read_share_mu",
    "noise_ratio",
    "threshold",
    "false_positives",
    "contribution_norm",
    "fest_mu",
    "selection_epsilon",
    "score_cap",
)
COUNTS = (
    "expected_batch_size",
    "physical_batch_size",
    "rows",
    "evaluate_every",
    "checkpoint_every",
    "period",
    "train_periods",
)
BAD: list[tuple[str, Any]] = [
    *[(name, value) for name in POSITIVE for value in (0, -1.0, math.nan, math.inf, "many")],
    *[(name, value) for name in COUNTS for value in (0, -1, 1.5, math.nan, "many")],
    *[(name, value) for name in ("delta", "holdout") for value in (0, 1, -0.5, math.nan, "many")],
    ("always_on_rows", -1),
    ("algorithm", "sgd"),
    ("data", None),
    ("model", 3),
    ("model_options", [1]),
    *[
        ("model_options", {"dims": value})
        for value in (
            math.inf,
            [1, math.nan],
            {"a": [-math.inf]},
            datetime.date(2020, 1, 2),
            {1},
            b"x",
            {1: 2},
        )
    ],
    ("table_optimizer", "adam"),
    ("optimizer", "adagrad"),
    ("holdout_by", "luck"),
    ("frequencies", "last"),
    ("score_threshold", math.nan),
    ("score_threshold", "low"),
    ("seed", "luck"),
    *[("seed", value) for value in (2**63, 10**40, -(2**63) - 1)],
    ("ledger", 3),
    ("epsilom", 1.0),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_bad_field_is_named_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: ") as refused:
        RunConfig.parse(settings(**{name: value}))
    assert "\n" not in str(refused.value)
    assert type(refused.value) is ValueError


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("epsilon: a non-private run has none", settings("non-private", epsilon=1.0)),
        ("epsilon: algorithm adafest needs one", settings(epsilon=None)),
        ("threshold and false_positives", settings(threshold=1.0, false_positives=3.0)),
        ("rows: algorithm random needs", settings("random", rows=None)),
        ("table_optimizer: lazy", settings("lazy", table_optimizer="adagrad")),
        ("algorithm lazy", settings("lazy", period=1)),
        ("algorithm fest-turns trains on all rows at once", settings("fest-turns", period=1)),
        ("table_optimizer: lazy", settings("fest-lazy", table_optimizer="adagrad")),
        ("epsilon: it must be given, or algorithm non-private", settings(algorithm=None, epsilon=None)),
        ("user_sampling: belongs to unit user", settings(user_sampling="rows")),
        ("user_sampling: belongs to unit user", settings(algorithm=None, user_sampling="rows")),
        ("rows_per_user: belongs to unit user", settings(algorithm=None, rows_per_user=3)),
        ("data: it must be given", {"algorithm": "dp-sgd", "epsilon": 1.0}),
        ("algorithm: 'adafst' is not one of .*'adafest'", settings(algorithm="adafst")),
        ("epsilom: there is no such setting", settings(epsilom=1.0)),
    ],
)
def test_fields_that_do_not_go_together(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        RunConfig.parse(fields)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_torch_takes_every_seed_and_the_next_ones(seed: int) -> None:
    assert RunConfig.parse(settings(seed=seed)).seed == seed
    for number in (0, 1000):
        torch.Generator().manual_seed(seed + number)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_config_survives_its_file(algorithm: str, tmp_path: Path) -> None:
    config = RunConfig.parse(settings(algorithm))
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert RunConfig.read(path) == config
    assert RunConfig.read(path, seed=9).seed == 9
    assert set(yaml.safe_load(config.to_yaml())) == set(RunConfig.model_fields)


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunConfig.parse(settings()).epsilon = 5.0  # type: ignore[misc]


@pytest.mark.parametrize(("text", "message"), [("[1, 2]", "must hold a mapping"), ("a: [", "is not YAML")])
def test_a_file_that_is_no_config(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        RunConfig.read(path)


def test_delta_is_a_tenth_of_one_over_n_unless_given() -> None:
    assert RunConfig.parse(settings()).delta_for(1000) == pytest.approx(1e-4)
    assert RunConfig.parse(settings(delta=1e-7)).delta_for(1000) == 1e-7


def test_settings_of_a_stranger_execute_nothing(tmp_path: Path) -> None:
    mark, path = tmp_path / "executed", tmp_path / "settings.yaml"
    path.write_text(f"data: !!python/object/apply:os.mkdir ['{mark}']\nalgorithm: lazy\n")
    with pytest.raises(ValueError, match="is not YAML"):
        RunConfig.read(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("algorithm", "changes", "counted"),
    [
        ("fest", {}, [True, True]),
        ("fest", {"period": 1}, [True, True]),
        ("adafest+", {"period": 1, "frequencies": "all"}, [True, True]),
        ("adafest+", {"period": 1, "frequencies": "first"}, [True, False]),
        ("adafest", {"period": 1}, [False, False]),
    ],
)
def test_whose_examples_are_counted_to_choose_rows(
    algorithm: str, changes: dict[str, Any], counted: list[bool]
) -> None:
    asked = RunConfig.parse(settings(algorithm, **changes))
    assert [asked.counts_rows(period) for period in range(2)] == counted
