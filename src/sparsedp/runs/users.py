"""The users of a run's data: who they are, how a batch draws them, and how many there are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsedp.data import ClickData, TextData
from sparsedp.runs.config import RunConfig
from sparsedp.training import UserSampler


def user_sampler(config: RunConfig, data: ClickData | TextData) -> UserSampler | None:
    """The sampler of a run whose unit is the user; None for one whose unit is the example.

    The data's schema proves that its users were cut; a smaller cap may be set for a run.
    """
    if config.unit == "example":
        return None
    if isinstance(data, TextData) or data.schema.rows_per_user is None:
        raise ValueError(
            f"unit: {config.data} does not say whose its rows are; prepare it with --user COLUMN --rows-per-user M"
        )
    rows = config.rows_per_user or data.schema.rows_per_user
    if rows > data.schema.rows_per_user:
        raise ValueError(
            f"rows_per_user: {rows} of a user were requested, and the data was cut to {data.schema.rows_per_user} "
            "when it was prepared"
        )
    return UserSampler(data.user, rows_per_user=rows, sample=config.user_sampling)


def check_batch(config: RunConfig, sampler: UserSampler | None) -> None:
    """Refuse batches of more users, or rows of users, than there are."""
    batch = config.choices.expected_batch_size
    if sampler is not None and batch > sampler.population:
        raise ValueError(
            f"expected_batch_size: {batch} {sampler.sample} a step were requested, and there are "
            f"{sampler.population}; with unit user it counts {sampler.sample}"
        )


def loader_of(config: RunConfig, data: ClickData | TextData, sampler: UserSampler | None) -> Any:
    """The data's loader, by the run's unit."""
    batch = min(config.choices.expected_batch_size, len(data))
    return data.loader(batch) if sampler is None else data.loader(batch, sampler=sampler)


def population(data: ClickData | TextData, sampler: UserSampler | None) -> int:
    """How many examples, users or rows of capped users a batch is drawn from."""
    return len(data) if sampler is None else sampler.population


def units(data: ClickData | TextData, sampler: UserSampler | None) -> int:
    """How many examples or users are protected."""
    return len(data) if sampler is None else sampler.users


def users_of(periods: Sequence[ClickData | TextData]) -> int:
    """How many users there are in all periods of a stream together."""
    users = [period.user for period in periods if isinstance(period, ClickData)]
    return np.unique(np.concatenate(users)).size


def batch_size(config: RunConfig, population: int) -> int:
    """The expected batch size of a run; never more than there are to draw from, and never cut silently."""
    batch = config.choices.expected_batch_size
    if batch > population:
        warnings.warn(
            f"expected_batch_size: {batch:,} is more than the {population:,} to draw from; every step uses all of them",
            stacklevel=3,
        )
    return min(batch, population)
