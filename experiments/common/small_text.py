"""A small encoder with random weights and made-up reviews, to see in seconds that a study of texts works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD, BAD = ["good", "fine", "moving"], ["bad", "dull", "flat"]
VOCABULARY = [*SPECIAL, *GOOD, *BAD, *(f"word{n}" for n in range(2000))]


def write_small_model(folder: Path) -> None:
    """An encoder of one layer and its tokeniser of words."""
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    kind: Any = transformers.PreTrainedTokenizerFast
    tokenizer = kind(tokenizer_object=made, model_max_length=32, **names)
    tokenizer.save_pretrained(folder)


def small_reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of a verdict among other words, with Zipf's frequencies, and their labels."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words = [f"word{min(n, 1999)}" for n in generator.zipf(1.3, generator.integers(2, 9))]
        label = int(generator.integers(2))
        words.insert(int(generator.integers(len(words))), (BAD, GOOD)[label][generator.integers(3)])
        made.append((" ".join(words), str(label)))
    return made
