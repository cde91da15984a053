"""A larger vocabulary for the same task: several copies of every token, told apart by the token before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sparsedp.data import TextData
from sparsedp.data.hashing import mix
from sparsedp.models.text_classifier import TextClassifier, word_embedding_of


def widen_texts(data: TextData, copies: int) -> TextData:
    """Token t becomes copy ``hash(token before) % copies`` of t; what begins a text has the first copy."""
    tokens = data.tokens.astype(np.int64)
    before = np.append(0, tokens[:-1]).astype(np.uint64)
    copy = (mix(mix(before + np.uint64(1))) % np.uint64(copies)).astype(np.int64)
    copy[data.offsets[:-1]] = 0
    widened = (tokens * copies + copy).astype(np.int32)
    return replace(data, tokens=widened, pad=data.pad * copies, vocabulary=data.vocabulary * copies)


def widen_model(model: TextClassifier, copies: int) -> None:
    """Every row of the word embedding, so many times: at first the model computes the same as before."""
    words = word_embedding_of(model.encoder)
    trained = words.weight.requires_grad
    with torch.no_grad():
        weight = words.weight.repeat_interleave(copies, dim=0)
    words.weight = nn.Parameter(weight, requires_grad=trained)
    words.num_embeddings = weight.shape[0]
    if words.padding_idx is not None:
        words.padding_idx *= copies
