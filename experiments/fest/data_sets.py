"""The data sets of the FEST studies with the settings that ``fest-tuning`` found (epsilon 1, held-out AUC).

Tuning looked at held-out AUC without noise, as the paper's did: the epsilons of the studies do not cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.fest.runs import DataSet
from sparsedp.core.criteo import BATCH_SIZE

WEEK = 7 * 24 * 3600
COMPARED = ("lazy", "fest", "adafest", "adafest+", "exponential", "sparse-vector", "random")
"""The papers' algorithms; DP-SGD as ``lazy``."""


Knobs = dict[str, list[dict[str, Sequence[Any]]]]


def _tables(number: int, width: int, hidden: Sequence[int]) -> dict[str, Any]:
    return {"hidden": list(hidden), "dims": [width] * number}


def _alone(batch: int, dense: float, tables: float) -> dict[str, Sequence[Any]]:
    """The settings of training without privacy, which likes small batches."""
    return {"expected_batch_size": [batch], "learning_rate": [dense], "table_learning_rate": [tables]}


ONE_EPOCH = {"epochs": 1.0, "optimizer": "sgd", "table_optimizer": "sgd"}
"""As the paper trains."""
WIDE: Knobs = {
    "exponential": [{"rows": [1000]}, {"rows": [100], "selection_epsilon": [0.1]}],
    "sparse-vector": [{"rows": [1000]}],
    "random": [{"rows": [1000]}],
}
"""The rules of WIDE, and chance: a thousand rows with little budget for each, or a hundred with ten times as much."""
FLIGHTS = DataSet(
    "flights",
    "flights-3m, 2.7M training rows, 1.32M hashed embedding rows of width 8, batch 32,768 "
    "(DP-SGD also 65,536), one epoch",
    "flights-3m",
    {
        **ONE_EPOCH,
        "expected_batch_size": 32768,
        "max_grad_norm": 5.0,
        "learning_rate": 0.5,
        "table_learning_rate": 400.0,
        "always_on_rows": 0,
        "model_options": _tables(6, 8, (64, 32)),
    },
    {
        **WIDE,
        "non-private": [_alone(1024, 0.2, 50.0)],
        "lazy": [{"expected_batch_size": [32768, 65536]}],
        "fest": [{"rows": [1000, 3000, 300, 100]}],
        "adafest": [
            {"noise_ratio": [2.0, 3.0, 5.0], "false_positives": [20.0]},
            {"noise_ratio": [2.0], "false_positives": [200.0]},
            {"noise_ratio": [2.0], "threshold": [60.0, 150.0]},
            {"noise_ratio": [5.0], "threshold": [60.0]},
            {"noise_ratio": [3.0], "threshold": [50.0], "expected_batch_size": [65536]},
        ],
        "adafest+": [{"rows": [3000], "noise_ratio": [5.0], "threshold": [30.0, 20.0, 33.0, 36.0, 45.0]}],
    },
    COMPARED,
    periods={WEEK: 20, 4 * WEEK: 5, 20 * WEEK: 1},
)
TENNIS = DataSet(
    "tennis",
    "tennis, 0.85M training rows, 0.93M hashed embedding rows of width 8, batch 16,384, one epoch",
    "tennis",
    {
        **ONE_EPOCH,
        "expected_batch_size": 16384,
        "max_grad_norm": 2.0,
        "learning_rate": 0.3,
        "table_learning_rate": 50.0,
        "always_on_rows": 0,
        "model_options": _tables(10, 8, (64, 32)),
    },
    {
        **WIDE,
        "non-private": [_alone(256, 0.1, 10.0)],
        "fest": [{"rows": [100, 1000, 30]}],
        "adafest": [
            {"noise_ratio": [2.0], "false_positives": [20.0]},
            {"noise_ratio": [2.0], "threshold": [100.0, 400.0]},
            {"noise_ratio": [5.0], "threshold": [400.0]},
        ],
        "adafest+": [{"rows": [100], "noise_ratio": [5.0], "threshold": [100.0, 400.0]}],
    },
    COMPARED,
    periods={1: 144, 4: 36, 12: 12},
)
GENERATED = DataSet(
    "generated",
    "200,000 generated Criteo-shaped clicks, 338,782 embedding rows of width 4, batch 2,048 "
    "(DP-SGD also 4,096), one epoch",
    "generated:200000",
    {
        **ONE_EPOCH,
        "expected_batch_size": BATCH_SIZE,
        "max_grad_norm": 5.0,
        "learning_rate": 2.0,
        "table_learning_rate": 25.0,
        "always_on_rows": 0,
        "model_options": _tables(26, 4, (128, 64)),
    },
    {
        **WIDE,
        "non-private": [_alone(256, 0.5, 20.0)],
        "lazy": [{}, {"expected_batch_size": [4096], "learning_rate": [1.0], "table_learning_rate": [50.0]}],
        "fest": [{"rows": [300, 1000, 100]}],
        "adafest": [
            {"noise_ratio": [2.0], "false_positives": [20.0]},
            {"noise_ratio": [2.0], "threshold": [60.0, 150.0, 400.0]},
            {"noise_ratio": [5.0], "threshold": [150.0]},
        ],
        "adafest+": [{"rows": [300], "noise_ratio": [5.0], "threshold": [60.0, 150.0, 400.0]}],
    },
    COMPARED,
    periods={1: 6, 2: 3, 6: 1},
)
QUICK = DataSet(
    "quick",
    "4,000 generated clicks, to see that it works",
    "generated:4000",
    {
        **ONE_EPOCH,
        "expected_batch_size": 1024,
        "max_grad_norm": 5.0,
        "learning_rate": 0.3,
        "table_learning_rate": 25.0,
        "model_options": _tables(26, 2, (16,)),
    },
    {
        "fest": [{"rows": [200]}],
        "adafest": [{"false_positives": [50.0]}],
        "adafest+": [{"rows": [400], "false_positives": [50.0]}],
        "random": [{"rows": [200]}],
    },
    # The accounting of exponential and sparse-vector selection alone takes longer than this whole study.
    ("dp-sgd", "fest", "adafest", "adafest+", "random"),
    seeds=(0,),
)
ALL = (FLIGHTS, TENNIS, GENERATED)
STREAMS = (replace(GENERATED, source="generated:200000x8"), FLIGHTS, TENNIS)
QUICK_STREAM = replace(
    QUICK, source="generated:4000x4", settings={**QUICK.settings, "expected_batch_size": 512}, periods={1: 3}
)
