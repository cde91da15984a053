"""What a config leaves open is chosen once, for its data; what it says is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sparsedp.data import Columns, HashRule, Label, Table, prepare
from sparsedp.planning.widths import NARROW, WIDTH, scales, widths
from sparsedp.runs import RunConfig
from sparsedp.runs.choosing import Chosen, choose, completed, plan_for
from sparsedp.runs.config import Choices
from sparsedp.runs.sources import open_data, split

DATA = "generated:3000x3"
OPEN = {"data": DATA, "epsilon": 2.0}


def chosen(**changes: Any) -> Chosen:
    return choose(RunConfig.parse({**OPEN, **changes}), open_data(DATA))


def test_every_gap_is_filled_from_the_recipe() -> None:
    made = chosen()
    assert made.config.is_complete
    assert made.config.algorithm == made.recipe.algorithm == "lazy"
    assert made.config.choices == Choices(**{name: getattr(made.recipe, name) for name in Choices._fields})
    assert made.config.model_options["table_scale"] == made.recipe.table_scale
    assert set(made.filled) == {
        "algorithm",
        "model_options",
        "calibration_mu",
        "read_share_mu",
        *Choices._fields,
    }
    assert len(made.lines()) == len(made.filled) + len(made.recipe.warnings)
    training = split(made.config, open_data(DATA))[0]
    assert (made.examples, made.delta) == (len(training), 1 / (10 * len(training)))


def test_what_is_given_is_kept() -> None:
    given = {"epochs": 0.5, "expected_batch_size": 70, "max_grad_norm": 3.0, "algorithm": "adafest"}
    made = chosen(**given, physical_batch_size=50, noise_ratio=7.0)
    for name, value in {**given, "physical_batch_size": 50, "noise_ratio": 7.0}.items():
        assert getattr(made.config, name) == value
        assert name not in made.filled
    assert made.config.always_on_rows == made.recipe.selection["always_on_rows"] == 0
    assert (
        "table_scale" not in made.config.model_options
    )  # the clipping norm was meant for the model as it is


def test_rows_that_few_examples_read_are_narrow_where_rows_are_selected() -> None:
    sizes = open_data(DATA).schema.vocabulary_sizes
    made, lazy = chosen(algorithm="fest"), chosen()
    options = made.config.model_options
    assert options["dims"] == widths(sizes, made.examples)
    assert set(options["dims"]) == {1, 4, 8}
    assert options["table_scale"] == scales(lazy.recipe.table_scale, options["dims"])
    assert made.recipe.table_scale == lazy.recipe.table_scale
    assert made.recipe.table_learning_rate == lazy.recipe.table_learning_rate
    assert any(line.startswith("model_options") and line.endswith(NARROW) for line in made.lines())
    assert set(lazy.config.model_options["dims"]) == {WIDTH}
    assert set(chosen(algorithm="fest", learning_rate=0.1).config.model_options["dims"]) == {WIDTH}
    given = {"hidden": [4], "dims": [3] * 26}
    assert chosen(algorithm="fest", model_options=given).config.model_options == {
        **given,
        "table_scale": 20.0,
    }


def test_scales_of_another_number_of_tables_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^table_scale must be one number, or one for each of 26 tables, got 2$"
    ):
        chosen(model_options={"table_scale": [1.0, 2.0]})


@pytest.mark.parametrize(
    "algorithm", ["fest", "fest-lazy", "fest-turns", "adafest+", "adafest", "adafest-memory"]
)
def test_an_algorithm_by_name_gets_the_settings_of_the_recipe(algorithm: str) -> None:
    made = chosen(algorithm=algorithm)
    assert made.config.is_complete
    assert made.recipe.selection
    for name, value in made.recipe.selection.items():
        assert getattr(made.config, name) == value
        assert any(line.startswith(f"{name} ") and ": " in line for line in made.lines())


def test_rows_and_budget_of_a_top_k_that_are_given_are_kept() -> None:
    asked = chosen(algorithm="fest", rows=7).config
    assert asked.rows == 7
    assert asked.fest_mu == chosen(algorithm="fest").config.fest_mu
    assert asked.fest_mu > RunConfig.model_fields["fest_mu"].default
    own = chosen(algorithm="fest", fest_mu=RunConfig.model_fields["fest_mu"].default, always_on_rows=1000)
    assert (own.config.fest_mu, own.config.always_on_rows) == (0.05, 1000)
    assert not {"fest_mu", "always_on_rows"} & {*own.filled}


def test_a_threshold_that_is_given_is_kept() -> None:
    """It excludes false positives, which the recipe has for memory."""
    made = chosen(algorithm="adafest-memory", threshold=30.0)
    assert (made.config.threshold, made.config.false_positives) == (30.0, None)
    assert made.config.memory_steps == made.recipe.steps


def test_rows_alone_are_left_open() -> None:
    """Everything else given: the recipe still says how many rows."""
    whole = chosen(algorithm="fest").config.model_dump()
    gap = RunConfig.parse({**whole, "rows": None})
    assert not gap.is_complete
    assert completed(gap)[0].rows == whole["rows"]


@pytest.mark.parametrize("algorithm", ["exponential", "sparse-vector", "random"])
def test_rows_that_no_recipe_knows_are_asked_for(algorithm: str) -> None:
    with pytest.raises(ValueError, match=f"rows: algorithm {algorithm} needs this setting"):
        RunConfig.parse({**OPEN, "algorithm": algorithm})


def test_a_rate_without_an_optimiser_is_for_plain_sgd() -> None:
    assert chosen(learning_rate=0.5).config.optimizer == "sgd"
    assert chosen(optimizer="sgd").config.choices.learning_rate != chosen().config.choices.learning_rate


@pytest.mark.parametrize(
    "changes", [{"period": 1}, {"table_optimizer": "adagrad"}], ids=["streaming", "another optimiser"]
)
def test_where_lazy_noise_does_not_hold_rows_are_selected(changes: dict[str, Any]) -> None:
    made = chosen(**changes)
    assert made.config.algorithm == "adafest"
    assert made.config.calibration_mu is None
    assert made.config.noise_ratio == made.recipe.selection["noise_ratio"]


def test_several_processes_release_every_step() -> None:
    config, _ = completed(RunConfig.parse(OPEN), processes=True)
    assert config.algorithm == "adafest"


def test_a_stream_is_planned_for_its_shortest_period() -> None:
    assert chosen(period=1).examples <= 1000


def test_a_complete_config_is_left_alone() -> None:
    whole = chosen().config
    assert completed(whole) == (whole, [])


def test_the_baseline_has_settings_of_its_own() -> None:
    made = plan_for(DATA, algorithm="non-private")
    assert made.config.is_complete
    assert not made.config.is_private
    assert "table_scale" not in made.config.model_options


def test_choices_are_refused_before_they_are_made() -> None:
    config = RunConfig.parse(OPEN)
    with pytest.raises(ValueError, match=r"^algorithm: not chosen yet"):
        config.method  # noqa: B018
    with pytest.raises(ValueError, match=r"^epochs: not chosen yet"):
        config.choices  # noqa: B018


@pytest.mark.parametrize("given", [{"table_learning_rate": 3.0}, {"table_optimizer": "adagrad"}])
def test_ones_own_table_rate_is_not_lowered_for_small_tables(given: dict[str, Any]) -> None:
    assert chosen().config.read_share_mu is not None
    assert chosen(**given).config.read_share_mu is None


def prepared(folder: Path, rows: int, *, multi_hot: tuple[str, ...] = ()) -> str:
    frame = {"y": [n // 7 % 2 for n in range(rows)], "a": ["p"] * rows, "genres": ["x|y"] * rows}
    pl.DataFrame(frame).write_csv(folder / "rows.csv")
    columns = Columns(label=Label.parse("y"), categorical=("a",), multi_hot=multi_hot)
    rules = {name: HashRule(10) for name in ("a", *multi_hot)}
    prepare(Table.of([folder / "rows.csv"], columns), folder / "data", rules)
    return str(folder / "data")


@pytest.mark.parametrize("fill", [lambda config: plan_for(config.data, epsilon=1.0), completed])
def test_data_without_a_training_row_is_refused_in_words(tmp_path: Path, fill: Any) -> None:
    data = prepared(tmp_path, 1)
    with pytest.raises(ValueError, match="none remain to train on"):
        fill(RunConfig(data=data, epsilon=1.0))


def test_labels_that_cannot_be_measured_are_refused_before_a_choice_is_printed(tmp_path: Path) -> None:
    data = prepared(tmp_path, 3)
    with pytest.raises(ValueError, match="holdout: "):
        completed(RunConfig(data=data, epsilon=1.0))
    assert plan_for(data, epsilon=1.0).examples == 2  # a plan reads no label


def test_a_model_that_does_not_fit_the_columns_is_refused_in_words(tmp_path: Path) -> None:
    data = prepared(tmp_path, 40, multi_hot=("genres",))
    with pytest.raises(ValueError, match="model pctr has no multi-hot features"):
        completed(RunConfig(data=data, epsilon=1.0, model="pctr"))
    with pytest.raises(ValueError, match="model_options: dims must be one width a table, got 2 for 26"):
        chosen(model_options={"dims": [4, 4]})


@pytest.mark.parametrize(
    "options",
    [
        {"dims": 8},
        {"table_scale": "abcdefghijklmnopqrstuvwxyz"},
        {"table_scale": [1.0] * 25 + [None]},
        {"table_scale": [1.0] * 25 + [[3.0]]},
        {"table_scale": 1e-300},
        {"table_scale": [1.0] * 25 + [1e300]},
    ],
)
@pytest.mark.parametrize("model", ["pctr", "dlrm"])
def test_options_that_no_model_could_have_are_refused_by_name(model: str, options: dict[str, Any]) -> None:
    if model == "dlrm" and "dims" in options:
        options = {"dim": [8]}
    (name,) = options
    with pytest.raises(ValueError, match=name):
        chosen(model=model, model_options=options)


def test_options_of_others_models_mean_what_they_mean_there() -> None:
    options = {"dims": 8, "dim": "wide", "table_scale": "large"}
    made = chosen(model="support.served:OwnModel", model_options=options)
    assert made.config.model_options == options
    assert made.recipe.table_scale == 1.0


def test_rows_in_turns_follow_a_period_that_is_given() -> None:
    rows = {
        every: plan_for("generated:4000", algorithm="fest-turns", epsilon=1.0, **given).config.rows
        for every, given in ((100, {}), (10, {"update_every": 10}))
    }
    assert rows[10] == pytest.approx(10 * rows[100], rel=0.01)
