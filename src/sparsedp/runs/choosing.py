"""Choosing what a config leaves open: the recipe for the run's data, resolved once into the run's own config."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sparsedp.core.tables import TableShape
from sparsedp.data import ClickData
from sparsedp.data.schema import Schema
from sparsedp.models.loading import BUILT_IN
from sparsedp.models.pctr import check_columns
from sparsedp.planning.recipes import TABLE_SCALE, Recipe, recipe
from sparsedp.planning.widths import NARROW, WIDTH, scale_at_full_width, scales, widths
from sparsedp.runs.config import Choices, RunConfig
from sparsedp.runs.data_location import fit_to_data
from sparsedp.runs.sources import NOTHING_TO_TRAIN_ON, check_split, open_data, split, split_periods
from sparsedp.runs.text_config import TextConfig
from sparsedp.runs.users import user_sampler, users_of

HIDDEN = (64, 32)
"""A small network: noise on every weight of a large one would cost more than its size gives."""


@dataclass(frozen=True)
class Chosen:
    """A config without gaps, and the recipe that filled them."""

    config: RunConfig
    recipe: Recipe
    filled: tuple[str, ...]
    """The settings that the recipe chose."""
    examples: int
    """How many the guarantee is for: examples, or users."""

    @property
    def delta(self) -> float:
        """Of the run."""
        return self.config.delta_for(self.examples)

    def lines(self) -> list[str]:
        """One line a choice, with its reason, then warnings."""
        lines = []
        for name in self.filled:
            value, reason = getattr(self.config, name), self.recipe.reasons.get(name)
            lines.append(f"{name} {_text(value)}" + (f": {reason}" if reason else ""))
        return [*lines, *(f"warning: {warning}" for warning in self.recipe.warnings)]


def completed(config: RunConfig, *, processes: bool = False) -> tuple[RunConfig, list[str]]:
    """The config without gaps, and a line for each setting that was chosen."""
    if isinstance(config, TextConfig) or config.is_complete:
        return config, []
    config, notes = fit_to_data(config)
    data = open_data(config.data)
    user_sampler(config, data)
    check_split(config, data)
    made = choose(config, data, processes=processes)
    return made.config, [*notes, *made.lines()]


def choose(config: RunConfig, data: ClickData, *, processes: bool = False) -> Chosen:
    """Fill the gaps of ``config`` for ``data``; ``processes``: it will train on several of them."""
    population = _training_rows(config, data)
    every_step = processes or config.period is not None or config.table_optimizer not in (None, "sgd")
    selects = every_step if config.algorithm is None else config.method.private and not config.method.dense
    options = _model_options(config, data.schema, population.examples if selects else None)
    of_tables = options if config.model in BUILT_IN else {}
    tables = tables_of(data.schema, of_tables)
    made = recipe(
        examples=population.examples,
        units=population.users,
        rows_per_unit=population.rows_per_user,
        sample=config.user_sampling,
        tables=tables,
        epsilon=None if config.epsilon is None else config.epsilon / math.sqrt(population.in_sequence),
        delta=None if config.epsilon is None else config.delta_for(population.protected),
        released="steps" if every_step else "final",
        algorithm=config.algorithm,
        epochs=config.epochs,
        expected_batch_size=config.expected_batch_size,
        max_grad_norm=config.max_grad_norm,
        update_every=config.update_every if "update_every" in config.model_fields_set else None,
        optimizer=config.optimizer or "adam",
        table_optimizer=config.table_optimizer or "sgd",
        table_scale=scale_at_full_width(of_tables.get("table_scale", 1.0), [table.dim for table in tables]),
    )
    offered: dict[str, Any] = {**made.settings(), "model_options": options}
    if every_step or config.model not in BUILT_IN:
        offered.pop("calibration_mu")
        offered.pop("read_share_mu")
    if config.learning_rate is not None:
        offered["optimizer"] = "sgd"  # a rate without an optimiser is meant for the plain one
    if config.table_learning_rate is not None:
        offered.pop("read_share_mu", None)
    if config.threshold is not None:
        offered.pop("false_positives", None)
    if all(getattr(config, name) is not None for name in Choices._fields):
        offered.pop("physical_batch_size")  # nothing of the batch was left to the recipe
    filled = {
        name: value
        for name, value in offered.items()
        if value is not None and (name not in config.model_fields_set or getattr(config, name) is None)
    }
    filled["model_options"] = options  # the config's own are in them
    filled = {name: value for name, value in filled.items() if getattr(config, name) != value}
    complete = RunConfig.parse({**config.model_dump(), **filled})
    if selects and isinstance(options.get("table_scale"), list):
        made = replace(made, reasons={**made.reasons, "model_options": NARROW})
    return Chosen(complete, made, tuple(filled), population.protected)


def plan_for(source: str, **settings: Any) -> Chosen:
    """What a run on this data would train with."""
    config, _ = fit_to_data(RunConfig.parse({"data": source, **settings}))
    return choose(config, open_data(config.data))


def tables_of(schema: Schema, options: dict[str, Any]) -> list[TableShape]:
    """The tables that a click model has for this schema."""
    sizes = [*schema.vocabulary_sizes, *(feature.rows for feature in schema.multi_hot)]
    widths = options.get("dims") or [options.get("dim", WIDTH)] * len(sizes)
    if not isinstance(widths, list | tuple) or len(widths) != len(sizes):
        got = len(widths) if isinstance(widths, list | tuple) else repr(widths)
        raise ValueError(f"model_options: dims must be one width a table, got {got} for {len(sizes)} tables")
    return [
        TableShape(f"table-{number}", rows, width)
        for number, (rows, width) in enumerate(zip(sizes, widths, strict=True), start=1)
    ]


class _Population(NamedTuple):
    """Public numbers of a run's training rows; of a streaming run the shortest period's."""

    examples: int
    users: int | None = None
    """Where users are protected."""
    rows_per_user: int = 1
    all_users: int | None = None
    """Of all periods together."""
    in_sequence: int = 1
    """How many periods share epsilon: together they cost about the square root of this times what one does."""

    @property
    def protected(self) -> int:
        """How many the guarantee is for."""
        return self.all_users or self.users or self.examples


def _training_rows(config: RunConfig, data: ClickData) -> _Population:
    user_sampler(config, data)  # refuses data without users
    periods = [split(config, data)[0]] if config.period is None else split_periods(config, data)[0]
    training = min(periods, key=len)
    if not len(training):
        raise ValueError(NOTHING_TO_TRAIN_ON)
    sampler = user_sampler(config, training)
    if sampler is None:
        return _Population(len(training))
    return _Population(len(sampler), sampler.users, sampler.rows_per_user, users_of(periods), len(periods))


def _model_options(config: RunConfig, schema: Schema, examples: int | None) -> dict[str, Any]:
    """The config's own, and of the library's models what private training likes where nothing is said.

    ``examples``: how many there are where rows are selected, which makes rows that few of them read narrow.
    """
    if config.model not in BUILT_IN:
        return dict(config.model_options)
    if config.model == "pctr":
        check_columns(schema)
    rates = (config.learning_rate, config.table_learning_rate, config.max_grad_norm)
    scale = {"table_scale": TABLE_SCALE} if config.is_private and all(rate is None for rate in rates) else {}
    if config.model_options:
        return {**scale, **config.model_options}
    if config.model == "dlrm":
        return {"top": list(HIDDEN), "bottom": [HIDDEN[-1]], "dim": WIDTH, **scale}
    sizes = schema.vocabulary_sizes
    if examples is not None and scale:
        dims = widths(sizes, examples)
        return {"hidden": list(HIDDEN), "dims": dims, "table_scale": scales(TABLE_SCALE, dims)}
    return {"hidden": list(HIDDEN), "dims": [WIDTH] * len(sizes), **scale}


def _text(value: Any) -> str:
    return (
        f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )
