"""Public frequencies of tokens, for FEST: free, since no private text is read."""

from __future__ import annotations

import heapq
from typing import Any, Literal

import numpy as np

from sparsedp.core.arrays import F64
from sparsedp.core.extras import require

MOST_WORDS = 100_000
"""How many of the most frequent English words are tokenised."""


def public_token_counts(tokenizer: Any, source: Literal["words", "ranks"] = "words") -> F64:
    """A frequency for every id of a Hugging Face tokeniser, from public data alone.

    "words": the frequencies of English words (the package wordfreq), each word's given to all its tokens, once as
    it stands and once after a space. "ranks": ids in the order of the vocabulary, which most tokenisers number by
    falling frequency (WordPiece) or in the order of merges (BPE). Special tokens other than pads, which every text
    has, come first.
    """
    if source not in ("words", "ranks"):
        raise ValueError(f"source: must be 'words' or 'ranks', not {source!r}")
    size = len(tokenizer)
    counts: F64 = np.zeros(size)
    if source == "words":
        require("wordfreq")
        import wordfreq

        known = wordfreq.get_frequency_dict("en")
        words = heapq.nlargest(MOST_WORDS, known, key=known.__getitem__)
        frequencies = np.array([known[word] for word in words])
        for form in (words, [f" {word}" for word in words]):
            ids = tokenizer(form, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            flat = np.concatenate([np.asarray(each, dtype=np.int64) for each in ids])
            np.add.at(counts, flat, np.repeat(frequencies, [len(each) for each in ids]))
    else:
        counts[:] = 1.0 / np.arange(1, size + 1)
    special = [each for each in tokenizer.all_special_ids if each != tokenizer.pad_token_id]
    counts[special] = counts.max() * 2
    if tokenizer.pad_token_id is not None:
        counts[tokenizer.pad_token_id] = 0.0
    return counts
