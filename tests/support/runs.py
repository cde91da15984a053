"""Small runs on generated clicks: tables one column wide, one hidden layer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sparsedp.runs import ALGORITHMS, RunConfig

TINY = {"hidden": [16], "dims": [1] * 26}


def settings(algorithm: str = "adafest", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "data": "generated:2000",
        "algorithm": algorithm,
        "epochs": 1.0,
        "expected_batch_size": 500,
        "max_grad_norm": 5.0,
        "learning_rate": 1.0,
        "optimizer": "sgd",
        "table_learning_rate": 25.0,
        "table_optimizer": "sgd",
        "model_options": TINY,
        "seed": 1,
    }
    entry = ALGORITHMS.get(algorithm)
    if algorithm != "non-private":
        fields["epsilon"] = 2.0
    if entry is not None and "rows" in entry.required:
        fields["rows"] = 100
    return {**fields, **changes}


def config(algorithm: str = "adafest", **changes: Any) -> RunConfig:
    return RunConfig.parse(settings(algorithm, **changes))


def result(**changes: Any) -> dict[str, Any]:
    """What the file of a finished run holds."""
    fields: dict[str, Any] = {
        "auc": 0.7,
        "log_loss": 0.5,
        "steps": 10,
        "training_rows": 100,
        "rows": None,
        "gradient_size": None,
        "table_coordinates": 1000,
        "reduction": None,
        "rows_per_table": {},
        "examples_per_second": 5.0,
        "seconds": 2.0,
        "statement": None,
    }
    return {**fields, **changes}


def python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A Python process of its own, on one thread."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
