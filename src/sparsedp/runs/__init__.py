"""Runs on click data: a config in, a folder with weights, metrics and privacy statement out."""

from sparsedp.runs.config import ALGORITHMS, RunConfig
from sparsedp.runs.evaluation import Evaluation, evaluate
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.resuming import resume
from sparsedp.runs.streaming import StreamResult, stream
from sparsedp.runs.training import Result, train

__all__ = [
    "ALGORITHMS",
    "Evaluation",
    "Result",
    "RunConfig",
    "RunFolder",
    "StreamResult",
    "evaluate",
    "resume",
    "stream",
    "train",
]
