"""Public token frequencies: frequent words first, pads never."""

from __future__ import annotations

import numpy as np
import pytest
from support.language import VOCABULARY, tokenizer

from sparsedp.data.token_frequencies import public_token_counts

pytest.importorskip("transformers")


def test_words_by_their_frequency_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq")
    monkeypatch.setattr("sparsedp.data.token_frequencies.MOST_WORDS", 10_000)
    made = tokenizer()
    counts = public_token_counts(made)
    assert counts.shape == (VOCABULARY,)
    the, film, dull = (counts[made.convert_tokens_to_ids(word)] for word in ("the", "film", "dull"))
    assert the > film > dull > 0
    assert counts[made.cls_token_id] == counts[made.sep_token_id] == counts.max()
    assert counts[made.pad_token_id] == 0
    assert counts[made.convert_tokens_to_ids("word7")] == 0


def test_ids_by_their_rank() -> None:
    counts = public_token_counts(tokenizer(), "ranks")
    assert (np.diff(counts[4:]) < 0).all()
    assert counts[0] == 0


def test_another_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source: must be 'words' or 'ranks'"):
        public_token_counts(tokenizer(), "private")  # type: ignore[arg-type]
