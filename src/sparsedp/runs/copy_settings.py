"""What the small copies of click and text runs, which audits train, have in common: settings cut to size, directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from torch import nn

from sparsedp.core.arrays import F64, I64
from sparsedp.runs.config import RunConfig
from sparsedp.runs.recorded_cost import example_rate
from sparsedp.runs.text_config import TextConfig
from sparsedp.selection import FEST

Config = TypeVar("Config", bound=RunConfig)

LEAST_CANARIES = 20
FILLERS = 64
"""Examples beside the canaries, as any training has; more would only hide them."""
PUSH = 100.0
"""A canary's gradient over the clipping norm."""


def canary_count(canaries: int, most_rows: int) -> int:
    """How many canaries a copy has: at most half as many as its largest table has rows."""
    count = min(canaries, most_rows // 2)
    if count < LEAST_CANARIES:
        raise ValueError(
            f"audit: every table has fewer than {2 * LEAST_CANARIES} rows; canaries need rows of their own"
        )
    return count


def rows_left(config: RunConfig, canaries: int) -> int:
    """How many rows a table is cut to: tables that rows are chosen in remain so."""
    return max(2 * canaries, 2 * config.always_on_rows)


def fitted(config: Config, result: dict[str, Any], sizes: Sequence[int], cut: Sequence[int]) -> Config:
    """The settings for smaller tables: the run's own threshold, other numbers of rows in proportion."""
    chosen = [pair for pair in zip(sizes, cut, strict=True) if pair[0] > config.always_on_rows]
    share = sum(rows for _, rows in chosen) / sum(rows for rows, _ in chosen) if chosen else 1.0
    changed: dict[str, Any] = {}
    if config.rows is not None:
        changed["rows"] = max(1, round(config.rows * share))
    threshold = result.get("threshold")
    if threshold is not None and threshold > 0.0:
        changed |= {"threshold": float(threshold), "false_positives": None}
    return config.model_copy(update=changed)


def sampling(config: RunConfig, result: dict[str, Any]) -> tuple[float, float]:
    """(sampling rate, expected batch size) of the run."""
    if config.unit == "example":
        return example_rate(config, result)
    batch = float(config.choices.expected_batch_size)
    if result.get("sampling_rate") is not None:
        return float(result["sampling_rate"]), batch
    # An earlier version: an epoch is as many steps as the rate says, rounded. Of the steps that were taken, which may be
    # fewer, the rate would come out too high.
    if not result["planned_steps"]:
        raise ValueError(
            "audit: the result does not have planned_steps, or the sampling_rate, which says how users were drawn"
        )
    return min(1.0, config.choices.epochs / int(result["planned_steps"])), batch


def scaled(config: Config, factor: float) -> Config:
    """Learning rates with which a clipped gradient moves a weight as far as in the run, whose batch is larger."""
    choices = config.choices
    changed: dict[str, float] = {}
    if choices.optimizer != "adam":
        changed["learning_rate"] = choices.learning_rate * factor
        if isinstance(config, TextConfig):
            changed["head_learning_rate"] = config.head_learning_rate * factor
    if choices.table_optimizer == "sgd":
        changed["table_learning_rate"] = choices.table_learning_rate * factor
    return config.model_copy(update=changed)


def directions(rng: np.random.Generator, canaries: int, layer: nn.Linear) -> tuple[F64, F64]:
    """(push_in, push_out): random directions of the layer for canaries, then zeros for the fillers."""
    found = []
    for width in (layer.in_features, layer.out_features):
        push = rng.standard_normal((canaries + FILLERS, width))
        push /= np.linalg.norm(push, axis=1, keepdims=True)
        push[canaries:] = 0.0
        found.append(push)
    return found[0], found[1]


def public_rows(config: RunConfig, sizes: dict[str, int]) -> FEST:
    """A row set that owes nothing to the copy's data: so many rows of its tables, at random."""
    assert config.rows is not None
    rng = np.random.default_rng(1)
    chosen = {name: rows for name, rows in sizes.items() if rows > config.always_on_rows}
    table_of = np.repeat(np.arange(len(chosen)), list(chosen.values()))
    ids: I64 = np.concatenate([np.arange(rows) for rows in chosen.values()] or [np.empty(0, np.int64)])
    top = rng.permutation(ids.size)[: config.rows]
    rows = {name: ids[top[table_of[top] == number]] for number, name in enumerate(chosen)}
    return FEST(rows, config.always_on_rows)
