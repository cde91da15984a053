"""Texts and classifiers of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sparsedp.accounting.cache import cache_directory
from sparsedp.data.sentences import Sentences, read_tsv
from sparsedp.data.text import TextData, tokenize
from sparsedp.data.token_frequencies import public_token_counts
from sparsedp.models.text_classifier import (
    TextClassifier,
    check_vocabulary,
    load_text_classifier,
    load_tokenizer,
    most_tokens,
    untrained_encoder,
)
from sparsedp.runs.text_config import TextConfig
from sparsedp.selection import FEST, PrivateTopK


def open_texts(config: TextConfig) -> TextData:
    """The texts to train on, or to split; tokenised once, the arrays kept in the cache of the user."""
    return _read(config, text_file(config.data, "train"))


def split_texts(config: TextConfig, data: TextData) -> tuple[TextData, TextData]:
    """(training texts, held-out texts): those of the folder's dev.tsv, else a part by hash."""
    held_out = Path(config.data) / "dev.tsv"
    if held_out.exists() or held_out.with_suffix(".tsv.zst").exists():
        training, other = data, _read(config, text_file(config.data, "dev"))
    else:
        training, other = data.split(config.holdout)
    return training.by_length(), other.by_length()


def text_file(data: str, part: str) -> Path:
    """The TSV file itself, or the part of a folder, which may be compressed."""
    path = Path(data)
    if path.is_file():
        return path
    for name in (f"{part}.tsv", f"{part}.tsv.zst"):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"data: {data} is neither a TSV file nor a folder with a {part}.tsv")


def _read(config: TextConfig, path: Path) -> TextData:
    return tokens_of(config, read_tsv(path, **config.columns), cache=cache_directory() / "text")


def tokens_of(config: TextConfig, sentences: Sentences, *, cache: Path | None = None) -> TextData:
    """The sentences as the run's model reads them; kept in `cache` where one is given."""
    tokenizer, encoder = load_tokenizer(config.model), untrained_encoder(config.model)
    check_vocabulary(tokenizer, encoder)
    return tokenize(
        sentences,
        tokenizer,
        classes=config.class_names,
        most_tokens=most_tokens(encoder),
        max_length=config.max_length,
        cache=cache,
    )


def fresh_classifier(config: TextConfig, *, rows: int | None = None) -> TextClassifier:
    """The pretrained encoder with new adapters and head; seeded where the run is. ``rows`` of its words, or all."""
    if config.seed is not None:
        torch.manual_seed(config.seed)
    return load_text_classifier(
        config.model,
        classes=len(config.class_names),
        tokenizer=load_tokenizer(config.model),
        embedding=config.embedding,
        lora_rank=config.lora_rank,
        lora_targets=config.targets,
        embedding_rank=config.embedding_rank,
        pooling=config.pooling,
        rows=rows,
    )


def token_rows(config: TextConfig, model: nn.Module, data: TextData) -> FEST | PrivateTopK:
    """The rows of algorithms that choose them before training, by public or by private frequencies."""
    assert isinstance(model, TextClassifier)
    assert config.rows is not None
    table = model.word_embedding
    if config.row_source == "private":
        # With one table chosen in, an example's contributions have norm 1.
        counts = {table: data.token_counts(norm=1.0)}
        return FEST.private_top_k(counts, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)
    public = public_token_counts(load_tokenizer(config.model), config.row_source)
    return FEST.from_public_counts({table: public}, config.rows, always_on_rows=config.always_on_rows)
