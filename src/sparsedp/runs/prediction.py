"""A trained model in use: loaded from a run's folder or an exported one, it predicts rows as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsedp.accounting import PrivacyStatement
from sparsedp.data.batch import Batch
from sparsedp.data.encoder import Encoder, Reasons
from sparsedp.data.encoding import Encoding
from sparsedp.data.schema import Schema
from sparsedp.models import DLRM, PCTR
from sparsedp.runs.result import NOT_PRIVATE

BATCH = 1 << 13
"""Rows in one pass of the model: their activations stay small."""
PIECE = 1 << 10
"""Rows in one pass on a single thread: their activations stay in the processor's cache."""


class TrainedModel:
    """A model with the rules of its preparation: raw values in, probabilities of label 1 out.

    `statement` is the privacy statement of its training; None where it was trained without privacy.
    """

    def __init__(
        self, module: nn.Module, encoding: Encoding, schema: Schema, statement: PrivacyStatement | None
    ) -> None:
        encoding.require_schema(schema)
        self.module = module.eval()
        self.encoding = encoding
        self.schema = schema
        self.statement = statement
        self._encoder = Encoder(encoding)

    @property
    def privacy(self) -> str:
        """The statement in words; says so where the training was not private."""
        return NOT_PRIVATE if self.statement is None else str(self.statement)

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that a row needs."""
        return self.encoding.columns

    def predict_proba(self, frame: Any) -> NDArray[np.float64]:
        """P(label = 1) of every row of a frame, in its order.

        `frame` is a polars frame, a mapping from column names to lists or arrays, or anything that hands out Arrow
        data (a pyarrow table, a pandas frame). Further columns are ignored; values that the training never
        saw, and missing ones, are allowed. A row that no preparation would take (a text that should be a number) is
        refused.
        """
        scores, reasons = self.score(frame_of(frame, self.columns))
        if reasons:
            first = min(reasons)
            raise ValueError(f"frame: row {first}: {reasons[first]}")
        return scores

    def score(self, frame: pl.DataFrame) -> tuple[NDArray[np.float64], Reasons]:
        """The same for a polars frame with all columns; NaN where a row cannot be read, with the reason."""
        examples, reasons = self._encoder.encode(frame)
        scores = self.score_examples(examples)
        scores[list(reasons)] = np.nan
        return scores, reasons

    def encode(self, frame: pl.DataFrame) -> tuple[Batch, Reasons]:
        """What the module reads for the rows of a frame."""
        return self._encoder.encode(frame)

    @torch.inference_mode()
    def score_examples(self, examples: Batch) -> NDArray[np.float64]:
        """P(label = 1) of encoded rows."""
        if not len(examples):
            return np.empty(0)
        scores: NDArray[np.float64] = torch.sigmoid(self._logits(examples).double()).numpy()
        if np.isnan(scores).any():
            raise ValueError(
                "model: its predictions are not numbers (NaN): the training diverged, or the weights are damaged"
            )
        return scores

    @property
    def shares_threads(self) -> bool:
        """Whether blocks may be scored on several threads at once: the library's models hold nothing of a call."""
        return type(self.module) in (PCTR, DLRM)

    def _logits(self, examples: Batch) -> Tensor:
        try:
            if type(self.module) is PCTR and self.module.can_score:
                return self.module.score(examples.numeric, examples.ids, min(BATCH, PIECE))
            starts = range(0, len(examples), BATCH)
            return torch.cat([self._forward(examples.between(start, start + BATCH)) for start in starts])
        except (RuntimeError, IndexError, TypeError) as error:
            raise ValueError(f"model: cannot predict these rows ({error})") from error

    def _forward(self, examples: Batch) -> Tensor:
        logits: Tensor = self.module(*examples.tensors()[0])
        if logits.shape != (len(examples),):
            raise ValueError(
                f"model: gave logits of shape {tuple(logits.shape)} for {len(examples)} rows, not one a row"
            )
        return logits

    def __repr__(self) -> str:
        return f"TrainedModel({', '.join(self.columns)}; {self.privacy})"


def frame_of(frame: Any, columns: tuple[str, ...]) -> pl.DataFrame:
    """The needed columns of a frame of any kind."""
    if isinstance(frame, pl.DataFrame):
        found = frame
    elif hasattr(frame, "__arrow_c_stream__"):
        found = pl.DataFrame(frame)
    elif isinstance(frame, Mapping):
        found = _frame_of_mapping(frame, columns)
    else:
        raise ValueError(
            f"frame must be a polars or pandas frame, an Arrow table or a mapping of columns, got {type(frame).__name__}"
        )
    missing = [name for name in columns if name not in found.columns]
    if missing:
        has = ", ".join(map(str, found.columns))
        raise ValueError(f"frame: no column {', '.join(map(repr, missing))}; it has {has}")
    return found.select(columns)


def _frame_of_mapping(values: Mapping[str, Any], columns: tuple[str, ...]) -> pl.DataFrame:
    series = {}
    for name in columns:
        if name not in values:
            continue
        if isinstance(values[name], str | bytes) or not hasattr(values[name], "__len__"):
            raise ValueError(f"{name}: must be a list or an array, one value a row, got {values[name]!r}")
        try:
            series[name] = pl.Series(name, values[name])
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{name}: is no column of values of one type ({error})") from error
    lengths = {name: len(each) for name, each in series.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"frame: columns of different lengths: {lengths}")
    return pl.DataFrame(series)
