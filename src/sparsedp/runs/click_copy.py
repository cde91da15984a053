"""The small copy of a run on click data that an audit trains: its model and mechanism, on made-up rows with canaries."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparsedp.audit.canary_run import CanaryData, CanaryTraining
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.criteo import embedding_dim
from sparsedp.core.tables import TableShape
from sparsedp.data.schema import Feature, Schema
from sparsedp.models import DLRM, PCTR, load_model
from sparsedp.randomness import Stream
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.canary_model import CanaryClickModel
from sparsedp.runs.config import RunConfig
from sparsedp.runs.copy_settings import (
    FILLERS,
    PUSH,
    canary_count,
    directions,
    fitted,
    public_rows,
    rows_left,
    sampling,
    scaled,
)
from sparsedp.runs.optimizers import optimizers_of
from sparsedp.selection import FEST, PrivateTopK, Selection
from sparsedp.selection.vocabulary import StreamingVocabulary

_BAG = 3
"""Values that each example has of a multi-hot feature; of a canary two are its own row: a row counts once an example."""


def click_copy(
    config: RunConfig, result: dict[str, Any], schema: Schema, canaries: int, steps: int
) -> CanaryTraining:
    """The small training: each canary alone reads a row of every table that has enough of them.

    Of a stream, ``result`` is that of one period (``audited_period``).
    """
    count = canary_count(canaries, max(_sizes(schema), default=0))
    clip, small = config.choices.max_grad_norm, _cut(schema, rows_left(config, count))
    config = fitted(config, result, _sizes(schema), _sizes(small))
    sizes = np.array(_sizes(small))
    columns = np.flatnonzero(sizes >= 2 * count)
    inner = load_model(config.model, small, **_options(config, schema))
    if not isinstance(inner, PCTR | DLRM):
        columns = columns[:0]  # whose tables are whose is not known
    model = CanaryClickModel(inner, columns.tolist(), scale=PUSH * clip)
    data = made_up(small, columns, count, _rows_per_canary(config, schema), model.layer)
    rate, batch = sampling(config, result)
    in_step = scaled(config, rate * _units(config, data) / batch)
    return CanaryTraining(
        data=data,
        model=partial(copy.deepcopy, model),
        losses=lambda module, examples: module(*examples),
        canary_losses=lambda module, examples: module.canary_losses(*examples),  # type: ignore[operator]
        optimizer=partial(optimizers_of, in_step),
        steps=min(steps, int(result["steps"])),
        sampling_rate=rate,
        max_grad_norm=clip,
        selection=partial(_selection, config, model, result.get("period")),
        noise_multiplier=float(result["noise_multiplier"]),
        unit=config.unit,
        user_sample=config.user_sampling,
        view="final model" if config.method.lazy_noise else "every step",
        canary_rows={model.table_name(at): sizes[at] - 1 - np.arange(count) for at in columns.tolist()},
    )


def _sizes(schema: Schema) -> list[int]:
    """The heights of all tables, those of multi-hot features last, as the models order them."""
    return [feature.rows for feature in (*schema.categorical, *schema.multi_hot)]


def _cut(schema: Schema, rows: int) -> Schema:
    """The schema with at most so many rows a table."""

    def smaller(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        return tuple(replace(feature, rows=min(feature.rows, rows)) for feature in features)

    return replace(schema, categorical=smaller(schema.categorical), multi_hot=smaller(schema.multi_hot))


def _options(config: RunConfig, schema: Schema) -> dict[str, Any]:
    """The model's options, with the widths that the run's tables have."""
    if config.model != "pctr" or "dims" in config.model_options:
        return config.model_options
    return {**config.model_options, "dims": [embedding_dim(rows) for rows in schema.vocabulary_sizes]}


def _units(config: RunConfig, data: CanaryData) -> int:
    """How many a batch of the copy draws from."""
    if config.unit == "user" and config.user_sampling == "users":
        return data.count + data.filler_users
    return len(data.canaries[0]) + len(data.fillers[0])


def _rows_per_canary(config: RunConfig, schema: Schema) -> int:
    if config.unit == "example":
        return 1
    rows = config.rows_per_user or schema.rows_per_user
    assert rows is not None
    return rows


def _selection(
    config: RunConfig, model: CanaryClickModel, period: int | None, loader: DataLoader[Any], stream: Stream
) -> Selection:
    """The run's selection; where rows are chosen before training, chosen anew from the copy's data.

    Users are counted by the engine, also where they are those of a stream's period.
    """
    rows: FEST | PrivateTopK | None = None
    by_engine = config.unit == "user" and config.counts_rows(period or 0)
    if config.method.row_set and period is not None and not by_engine:
        rows = _period_rows(config, model, period, loader, stream)
    elif config.method.row_set:
        assert config.rows is not None
        rows = FEST.private_top_k(loader, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)
    return selection_of(config, rows)


def _period_rows(
    config: RunConfig, model: CanaryClickModel, period: int, loader: DataLoader[Any], stream: Stream
) -> FEST:
    """The row set of a stream's period: by noisy counts of its own examples, or by those of earlier periods alone.

    Counts of other periods owe nothing to the copy's examples; they are left out.
    """
    names: list[str] = model.model.table_names  # type: ignore[assignment]  # streaming needs a model that names them
    shapes = []
    for name in names:
        table = model.model.get_submodule(name)
        assert isinstance(table, nn.Embedding | nn.EmbeddingBag)
        shapes.append(TableShape(f"model.{name}", table.num_embeddings, table.embedding_dim))
    if not config.counts_rows(period):
        return public_rows(config, {shape.name: shape.rows for shape in shapes})
    assert config.rows is not None
    assert isinstance(loader.dataset, TensorDataset)
    vocabulary = StreamingVocabulary(shapes, config.rows, config.fest_mu, config.always_on_rows)
    ids = loader.dataset.tensors[1].numpy()
    counts = {shape.name: SparseCounts.of(ids[:, at], shape.rows) for at, shape in enumerate(shapes)}
    vocabulary.observe(counts, stream)
    return vocabulary.fest(vocabulary.event)


def made_up(schema: Schema, columns: I64, count: int, rows: int, layer: nn.Linear) -> CanaryData:
    """Canaries, and a few fillers with random numbers, labels and ids, of which no canary's row is one.

    ``columns`` are the features in which canaries have rows of their own, multi-hot ones counted after the others. Each
    canary pushes the layer in a random direction of its own; its rows do so alike.
    """
    rng = np.random.default_rng(0)
    sizes, total, one_hot = np.array(_sizes(schema)), count + FILLERS, len(schema.categorical)
    free = sizes.copy()
    free[columns] -= count
    ids = rng.integers(0, free[:one_hot], size=(total, one_hot))
    numbers = rng.standard_normal((total, len(schema.numeric)))
    pushes = directions(rng, count, layer)
    label = rng.integers(2, size=total)
    bags = rng.integers(0, free[one_hot:, None], size=(total, len(schema.multi_hot), _BAG))
    own = np.arange(count)[:, None]
    columns_of_ids, columns_of_bags = columns[columns < one_hot], columns[columns >= one_hot]
    ids[:count, columns_of_ids] = sizes[columns_of_ids] - 1 - own
    bags[:count, columns_of_bags - one_hot, :2] = (sizes[columns_of_bags] - 1 - own)[:, :, None]
    parts = [numbers, ids, bags, label, *pushes]
    tensors = [
        torch.from_numpy(np.repeat(part, rows, axis=0)).to(
            torch.int64 if part is ids or part is bags else torch.float32
        )
        for part in parts
    ]
    return CanaryData(
        tuple(part[count * rows :] for part in tensors),
        tuple(part[: count * rows] for part in tensors),
        rows_per_canary=rows,
    )
