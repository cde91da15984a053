"""The results of a sweep, made by hand."""

from __future__ import annotations

from typing import Any

import polars as pl


def line(algorithm: str, auc: float, reduction: float | None, **settings: Any) -> dict[str, Any]:
    common = {
        "algorithm": algorithm,
        "epsilon": None if algorithm == "non-private" else 1.0,
        "seed": 0,
        "noise_ratio": 5.0,
        "threshold": None,
        "period": None,
        "frequencies": "running",
        "auc": auc,
        "log_loss": 0.5,
        "reduction": reduction,
        "gradient_size": None if reduction is None else 1e6 / reduction,
        "run": "x",
    }
    return {**common, **settings}


def frame(*lines: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(lines), infer_schema_length=None)


RUNS = frame(
    line("non-private", 0.80, None),
    line("dp-sgd", 0.700, 1.0),
    line("dp-sgd", 0.710, 1.0, seed=1),
    line("dp-sgd", 0.650, 1.0, noise_ratio=1.0),
    line("adafest", 0.704, 100.0, threshold=10.0),
    line("adafest", 0.696, 1000.0, threshold=50.0),
    line("adafest", 0.690, 5000.0, threshold=100.0, noise_ratio=1.0),
    line("fest", 0.701, 50.0),
    line("random", 0.500, 9000.0),
)
