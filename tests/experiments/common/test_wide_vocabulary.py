"""A widened model computes on widened texts what it computed before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from experiments.common.small_text import VOCABULARY, small_reviews, write_small_model
from experiments.common.wide_vocabulary import widen_model, widen_texts
from sparsedp.data import Sentences, tokenize
from sparsedp.models.text_classifier import load_text_classifier, load_tokenizer


def test_the_same_logits_from_eight_times_as_many_rows(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    texts, labels = zip(*small_reviews(60, seed=1), strict=True)
    tokenizer = load_tokenizer(tmp_path)
    data = tokenize(Sentences(texts, None, labels), tokenizer)
    model = load_text_classifier(tmp_path, tokenizer=tokenizer).eval()
    torch.nn.init.normal_(model.head.weight)
    before = data.__getitems__(range(60))
    wide = widen_texts(data, 8)
    batch = wide.__getitems__(range(60))
    with torch.no_grad():
        want = model(before["input_ids"], before["attention_mask"])
        widen_model(model, 8)
        found = model(batch["input_ids"], batch["attention_mask"])
    assert torch.allclose(found, want, atol=1e-6)
    assert model.encoder.embeddings.word_embeddings.weight.shape[0] == wide.vocabulary == 8 * len(VOCABULARY)
    assert np.unique(wide.tokens).size > 1.2 * np.unique(data.tokens).size
    assert wide.token_counts(1.0).size == wide.vocabulary
