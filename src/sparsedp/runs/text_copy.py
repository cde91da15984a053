"""The small copy of a run on texts that an audit trains: its model and mechanism, on made-up texts with canaries."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from sparsedp.audit.canary_run import CanaryData, CanaryTraining
from sparsedp.core.arrays import I64
from sparsedp.models.text_classifier import most_tokens, untrained_encoder, word_embedding_of
from sparsedp.randomness import Stream
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.canary_model import CanaryTextModel
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
from sparsedp.runs.text import fresh_classifier
from sparsedp.runs.text_config import TextConfig
from sparsedp.selection import FEST, PrivateTopK, Selection

_LENGTH = 8
"""Tokens of the longest text."""


def text_copy(config: TextConfig, result: dict[str, Any], canaries: int, steps: int) -> CanaryTraining:
    """The small training: the run's encoder with few rows of its words; each canary begins with a token of its own."""
    encoder = untrained_encoder(config.model)
    vocabulary = word_embedding_of(encoder).num_embeddings
    count = canary_count(canaries, vocabulary)
    rows = min(vocabulary, rows_left(config, count))
    clip, config = config.max_grad_norm, fitted(config, result, [vocabulary], [rows])
    inner = fresh_classifier(config, rows=rows)
    words = word_embedding_of(inner.encoder)
    model = CanaryTextModel(inner, PUSH * clip, has_types=config.pair_column is not None)
    own = _own_tokens(words, count)
    length = min(_LENGTH, most_tokens(encoder) or _LENGTH)
    data = made_up_texts(words, own, length, len(config.class_names), model.layer)
    rate, batch = sampling(config, result)
    in_step = scaled(config, rate * (count + FILLERS) / batch)
    return CanaryTraining(
        data=data,
        model=partial(copy.deepcopy, model),
        losses=lambda module, examples: module(*examples),
        canary_losses=lambda module, examples: module.canary_losses(*examples),  # type: ignore[operator]
        optimizer=partial(_optimizers, in_step),
        steps=min(steps, int(result["steps"])),
        sampling_rate=rate,
        max_grad_norm=clip,
        selection=partial(_selection, config, {model.table_name: rows}),
        noise_multiplier=float(result["noise_multiplier"]),
        view="final model" if config.method.lazy_noise else "every step",
        canary_rows={model.table_name: own} if words.weight.requires_grad else {},
    )


def _optimizers(config: TextConfig, module: nn.Module) -> list[Optimizer]:
    """The run's, which knows the head of its model by name."""
    assert isinstance(module, CanaryTextModel)
    return optimizers_of(config, module.model)


def _selection(
    config: TextConfig, sizes: dict[str, int], loader: DataLoader[Any], stream: Stream
) -> Selection:
    """The run's selection; where rows are chosen before training, chosen anew from the copy's texts, or at random."""
    rows: FEST | PrivateTopK | None = None
    if config.counts_rows():
        assert config.rows is not None
        rows = FEST.private_top_k(loader, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)
    elif config.method.row_set:
        rows = public_rows(config, sizes)
    return selection_of(config, rows)


def _own_tokens(words: nn.Embedding, count: int) -> I64:
    """The last tokens, one for each canary; pads are nobody's."""
    tokens = np.arange(words.num_embeddings)
    others: I64 = tokens[tokens != words.padding_idx]
    return others[-count:]


def made_up_texts(words: nn.Embedding, own: I64, length: int, classes: int, layer: nn.Linear) -> CanaryData:
    """Canaries, and a few fillers with random tokens and labels, of which no canary's token is one.

    Where there are pads, every second text is padded from half of its length on. The second half of a text counts as
    the second of a pair. Each canary pushes the layer in a random direction of its own.
    """
    rng = np.random.default_rng(0)
    count, total = len(own), len(own) + FILLERS
    others = np.setdiff1d(np.arange(words.num_embeddings), [*own, words.padding_idx or 0])
    ids = rng.choice(others, size=(total, length))
    ids[:count, 0] = own
    is_second = np.broadcast_to(np.arange(length) >= length // 2, ids.shape)
    padded = is_second & (np.arange(total) % 2 == 1)[:, None] & (words.padding_idx is not None)
    ids[padded] = words.padding_idx or 0
    pushes = [push.astype(np.float32) for push in directions(rng, count, layer)]
    parts = [
        ids,
        (~padded).astype(np.int64),
        is_second.astype(np.int64),
        rng.integers(classes, size=total),
        *pushes,
    ]
    tensors = [torch.from_numpy(part) for part in parts]
    return CanaryData(tuple(part[count:] for part in tensors), tuple(part[:count] for part in tensors))
