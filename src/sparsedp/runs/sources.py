"""Where a run's rows come from."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sparsedp.data import ClickData, ClickProcess, GeneratedClicks, TextData
from sparsedp.models import DLRM, PCTR, load_model
from sparsedp.runs.config import RunConfig
from sparsedp.runs.data_location import GENERATED
from sparsedp.runs.text import fresh_classifier, open_texts, split_texts
from sparsedp.runs.text_config import TextConfig

NOTHING_TO_TRAIN_ON = "holdout: all rows are held out, and none remain to train on; hold out less"
GENERATED_SEED = 0
"""The generated population is the same for every run; the run's seed decides its noise, not its data."""

MOST_ROWS = 10**8
"""Of generated data, which is made and held in memory."""


def data_of(config: RunConfig) -> ClickData | TextData:
    """The run's data."""
    return open_texts(config) if isinstance(config, TextConfig) else open_data(config.data)


def open_data(name: str) -> ClickData:
    """A prepared folder, or ``generated:ROWS`` / ``generated:ROWSxDAYS``."""
    generated = GENERATED.fullmatch(name)
    if generated is None:
        return ClickData.open(name)
    rows, days = int(generated[1]), int(generated[2] or 1)
    if rows < 2 or days < 1:
        raise ValueError(f"data: {name} has too few rows or days")
    if rows > MOST_ROWS:
        raise ValueError(f"data: {name} has too many rows, at most {MOST_ROWS:,} are generated in memory")
    return GeneratedClicks(rows, days, process=ClickProcess(seed=GENERATED_SEED))


def split(
    config: RunConfig, data: ClickData | TextData
) -> tuple[ClickData, ClickData] | tuple[TextData, TextData]:
    """(training rows, held-out rows)."""
    if isinstance(data, TextData):
        assert isinstance(config, TextConfig)
        return split_texts(config, data)
    if config.unit == "user" and config.holdout_by == "hash":
        return data.split_users(config.holdout)
    if config.holdout_by == "time":
        return data.split_by_time(config.holdout)
    return data.split(config.holdout)


def split_periods(config: RunConfig, data: ClickData) -> tuple[list[ClickData], list[ClickData]]:
    """(periods to train on, later periods), in the order of time."""
    if config.period is None:
        raise ValueError("period: a streaming run needs the length of a period")
    periods = [data.subset(period.rows) for period in data.periods(config.period)]
    training = config.train_periods or max(1, min(round(0.75 * len(periods)), len(periods) - 1))
    if not 0 < training < len(periods):
        raise ValueError(f"train_periods must leave a period to evaluate on: {training} of {len(periods)}")
    return periods[:training], periods[training:]


def held_out(config: RunConfig, data: ClickData | TextData) -> ClickData | TextData:
    """The rows that the run is evaluated on: for a streaming run all that are later than its training."""
    if config.period is None or isinstance(data, TextData):
        return split(config, data)[1]
    start = split_periods(config, data)[1][0].time.min()
    return data.subset(np.flatnonzero(data.time >= start))


def check_split(config: RunConfig, data: ClickData | TextData) -> None:
    """Refuse rows that leave nothing to train on or to measure, before anything is spent on them."""
    training, rest = split(config, data) if config.period is None else (data, held_out(config, data))
    if not len(training):
        raise ValueError(NOTHING_TO_TRAIN_ON)
    by_user = config.unit == "user" and config.period is None
    whole = ": whole users are held out, and there are few" if by_user else ""
    if not len(rest):
        raise ValueError(f"holdout: no rows are held out to evaluate on{whole}; hold out more")
    if rest.label.min() == rest.label.max():
        raise ValueError(
            f"holdout: the {len(rest):,} held-out rows all have the same label, so that AUC is not defined{whole}; hold "
            "out more"
        )


def fresh_model(config: RunConfig, data: ClickData | TextData) -> nn.Module:
    """The untrained model; seeded where the run is."""
    if isinstance(data, TextData):
        assert isinstance(config, TextConfig)
        return fresh_classifier(config)
    if config.seed is not None:
        torch.manual_seed(config.seed)
    return load_model(config.model, data.schema, **config.model_options)


def features_of(model: nn.Module, data: ClickData | TextData) -> dict[str, str]:
    """The column that each table of the model embeds, by the table's name; empty for texts and others' models."""
    if isinstance(data, TextData) or not isinstance(model, PCTR | DLRM):
        return {}
    columns = (*data.schema.categorical, *data.schema.multi_hot)
    return {f"embeddings.{number}": feature.name for number, feature in enumerate(columns)}
