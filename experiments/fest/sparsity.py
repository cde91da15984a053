"""Figure 1b of FEST: how sparse the embedding gradient of a batch is before any noise, per feature.

A diagnostic of the data, computed without noise: it is no part of any guarantee, and not for private data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import ALL, QUICK
from experiments.fest.figures import sparsity_per_feature
from experiments.fest.runs import data_sets_of
from sparsedp.core.criteo import BATCH_SIZE
from sparsedp.data import ClickData
from sparsedp.models import embedding_dim
from sparsedp.runs.sources import open_data

STEPS = 50
TOP = 5
DATA_SETS = ALL


def run(study: Study) -> dict[str, Any]:
    """Count the rows that batches touch."""
    steps = 5 if study.quick else STEPS
    tables = {
        f"{each.name}: {each.description}": _sparsity(open_data(each.open(study)), steps)
        for each in data_sets_of(study, DATA_SETS, QUICK)
    }
    panels = {
        name.split(":")[0]: sparsity_per_feature(frame.head(TOP).vstack(frame.tail(1)))
        for name, frame in tables.items()
    }
    lead = (
        f"Share of zero gradient coordinates in batches of {BATCH_SIZE} random examples, mean over {steps} batches, "
        "with the paper's widths int(2 V^0.25). NOT PRIVATE: a diagnostic without noise."
    )
    return study.write("Gradient sparsity per feature", lead, tables, panels)


def _sparsity(data: ClickData, steps: int) -> pl.DataFrame:
    """Features by falling vocabulary, and all of them together in the last line."""
    generator = np.random.default_rng(0)
    names = [feature.name for feature in data.schema.categorical]
    sizes = np.array(data.schema.vocabulary_sizes)
    touched = np.zeros(len(sizes))
    for _ in range(steps):
        ids = data.take(generator.integers(len(data), size=BATCH_SIZE)).ids
        touched += [np.unique(column).size for column in ids.T]
    widths = np.array([embedding_dim(int(rows)) for rows in sizes])
    mean = touched / steps
    frame = pl.DataFrame(
        {"feature": names, "vocabulary": sizes, "rows touched": mean, "sparsity": 1 - mean / sizes}
    ).sort("vocabulary", descending=True)
    everything = pl.DataFrame(
        {
            "feature": ["all"],
            "vocabulary": [int(sizes.sum())],
            "rows touched": [float(mean.sum())],
            "sparsity": [float(1 - (mean * widths).sum() / (sizes * widths).sum())],
        }
    )
    return frame.vstack(everything).with_columns(pl.col("sparsity").round(6), pl.col("rows touched").round(1))
