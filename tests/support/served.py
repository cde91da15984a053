"""A small run to predict with: a table with every kind of feature, its preparation gone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from sparsedp.data import (
    ClickData,
    Columns,
    HashRule,
    Label,
    Schema,
    Table,
    Vocabulary,
    prepare,
)
from sparsedp.data.batch import Batch
from sparsedp.runs import RunConfig, train

ROWS = 400
MODEL = {"dim": 4, "bottom": [8], "top": [8]}


@dataclass(frozen=True)
class Served:
    """A finished run, the raw file it was trained on, and the examples as they were prepared."""

    run: Path
    raw: Path
    examples: Batch
    config: RunConfig


class OwnModel(nn.Module):
    """Somebody's own model, with a buffer and bags."""

    def __init__(self, schema: Schema, width: int = 3) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(each.rows, width, mode="sum") for each in schema.multi_hot
        )
        self.item = nn.Embedding(schema.categorical[1].rows, width)
        self.register_buffer("shift", torch.tensor(0.25))
        self.last = nn.Linear(width + len(schema.numeric), 1)

    def forward(self, numeric: Tensor, ids: Tensor, *bags: tuple[Tensor, Tensor]) -> Tensor:
        found = self.item(ids[:, 1])
        for table, bag in zip(self.tables, bags, strict=True):
            found = found + table(*bag)
        logits: Tensor = self.last(torch.cat([found, numeric], 1)).squeeze(1) + self.shift
        return logits


def raw_frame(rows: int = ROWS, seed: int = 0) -> pl.DataFrame:
    """Users, items, tags, prices with gaps and signs, a time."""
    draw = np.random.default_rng(seed)
    tags = ["|".join(f"t{tag}" for tag in draw.integers(0, 9, draw.integers(0, 4))) for _ in range(rows)]
    users = [None if user < 5 else f"user number {user} é" for user in draw.integers(0, 90, rows)]
    price = [None if each < 0.05 else round(float(each * 9 - 4), 3) for each in draw.random(rows)]
    return pl.DataFrame(
        {
            "click": draw.integers(0, 2, rows),
            "user": users,
            "item": draw.integers(0, 30, rows),
            "tags": tags,
            "price": price,
            "when": np.arange(rows) * 60,
        }
    )


def prepare_frame(frame: pl.DataFrame, raw: Path, out: Path) -> None:
    """Prepare a frame, by hash, by vocabulary, crossed and multi-hot."""
    frame.write_csv(raw, null_value="NA")
    columns = Columns(
        Label.parse("click"),
        numeric=("price",),
        categorical=("user", "item"),
        crosses=(("user", "item"),),
        multi_hot=("tags",),
        time="when",
    )
    listed = raw.with_name("list.csv")
    pl.DataFrame({"feature": ["item"] * 20, "value": [str(item) for item in range(20)]}).write_csv(listed)
    rules = {
        "user": HashRule(50),
        "user*item": HashRule(2000),
        "tags": HashRule(9),
        **Vocabulary.read(listed).rules,
    }
    prepare(Table.of([raw], columns, nulls=("NA",)), out, rules)


def serve(folder: Path, algorithm: str = "non-private", **changes: Any) -> Served:
    """Prepare, train, and remove the prepared rows."""
    raw, prepared = folder / "clicks.csv", folder / "prepared"
    prepare_frame(raw_frame(), raw, prepared)
    data = ClickData.open(prepared)
    examples = data.take(np.arange(len(data)))
    fields: dict[str, Any] = {
        "data": str(prepared),
        "algorithm": algorithm,
        "expected_batch_size": 100,
        "model": "dlrm",
        "model_options": MODEL,
        "learning_rate": 0.1,
        "table_learning_rate": 1.0,
        "seed": 1,
        **({} if algorithm == "non-private" else {"epsilon": 2.0}),
    }
    config = RunConfig.parse({**fields, **changes})
    train(config, folder / "run")
    shutil.rmtree(prepared)
    return Served(folder / "run", raw, examples, config)
