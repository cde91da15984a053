"""The small encoder loads like a real one, and its reviews are learnable."""

from __future__ import annotations

from pathlib import Path

from experiments.common.small_text import BAD, GOOD, small_reviews, write_small_model
from sparsedp.data import Sentences, tokenize
from sparsedp.models.text_classifier import load_text_classifier, load_tokenizer


def test_model_and_reviews_fit_together(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    texts, labels = zip(*small_reviews(50, seed=1), strict=True)
    tokenizer = load_tokenizer(tmp_path)
    data = tokenize(Sentences(texts, None, labels), tokenizer)
    model = load_text_classifier(tmp_path, tokenizer=tokenizer)
    assert model.loss(data.__getitems__(range(50))).isfinite()
    for text, label in zip(texts, labels, strict=True):
        assert any(word in text.split() for word in (BAD, GOOD)[int(label)])
