"""Runs on click data and texts: a config in, a folder with weights, metrics and privacy statement out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "ALGORITHMS": "algorithms",
    "Evaluation": "evaluation",
    "Result": "result",
    "RunConfig": "config",
    "RunFolder": "folder",
    "TextConfig": "text_config",
    "TrainedModel": "prediction",
    "evaluate": "evaluation",
    "load": "model_folder",
    "resume": "resuming",
    "start": "resuming",
    "stream": "streaming",
    "train": "training",
    "tune": "tuning",
}

__all__ = [
    "ALGORITHMS",
    "Evaluation",
    "Result",
    "RunConfig",
    "RunFolder",
    "TextConfig",
    "TrainedModel",
    "evaluate",
    "load",
    "resume",
    "start",
    "stream",
    "train",
    "tune",
]

if TYPE_CHECKING:
    from sparsedp.runs.algorithms import ALGORITHMS
    from sparsedp.runs.config import RunConfig
    from sparsedp.runs.evaluation import Evaluation, evaluate
    from sparsedp.runs.folder import RunFolder
    from sparsedp.runs.model_folder import load
    from sparsedp.runs.prediction import TrainedModel
    from sparsedp.runs.result import Result
    from sparsedp.runs.resuming import resume, start
    from sparsedp.runs.streaming import stream
    from sparsedp.runs.text_config import TextConfig
    from sparsedp.runs.training import train
    from sparsedp.runs.tuning import tune

__getattr__ = lazy_names(__name__, _HOME)
