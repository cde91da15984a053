"""Tokenised texts: padding, subsets, counts, the cache and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.language import reviews, tokenizer

import sparsedp as sdp
from sparsedp.data.sentences import Sentences
from sparsedp.data.text import TextData, _key, tokenize

pytest.importorskip("transformers")
from tokenizers import normalizers

TEXTS = Sentences(["good film", "a very very dull plot", "bad"], None, ["1", "0", "0"])


def test_a_batch_is_what_the_tokeniser_makes_of_it() -> None:
    made = tokenizer()
    data = tokenize(TEXTS, made)
    batch = data.__getitems__([0, 2, 1])
    want = made([TEXTS.texts[n] for n in (0, 2, 1)], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], want["input_ids"])
    assert torch.equal(batch["attention_mask"], want["attention_mask"])
    assert batch["labels"].tolist() == [1, 0, 0]
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_a_batch_is_as_long_as_its_longest_text() -> None:
    data = tokenize(TEXTS, tokenizer())
    assert data.__getitems__([0, 2])["input_ids"].shape == (2, 4)
    assert data.lengths.tolist() == [4, 7, 3]
    assert data.by_length().lengths.tolist() == [3, 4, 7]
    assert data[2]["input_ids"].tolist() == [1, 9, 2]


def test_pairs_have_types() -> None:
    made = tokenizer()
    data = tokenize(Sentences(["good", "bad film"], ["plot", "is dull"]), made)
    batch = data.__getitems__([0, 1])
    want = made(["good", "bad film"], ["plot", "is dull"], padding=True, return_tensors="pt")
    assert torch.equal(batch["token_type_ids"], want["token_type_ids"])
    assert "labels" not in batch
    with pytest.raises(ValueError, match="labels: these texts have none"):
        _ = data.label


def test_counts_are_of_texts_without_pads_and_clipped_per_text() -> None:
    data = tokenize(TEXTS, tokenizer())
    counts = data.token_counts(norm=10.0)
    found = dict(zip(counts.ids.tolist(), counts.values.tolist(), strict=True))
    assert found[1] == found[2] == 3.0  # the first and last token of each text
    assert found[14] == 1.0  # "very" occurs twice in one text
    assert 0 not in found
    clipped = data.subset(np.array([0])).token_counts(norm=1.0)
    assert clipped.values == pytest.approx([0.5] * 4)
    assert np.linalg.norm(clipped.values) == pytest.approx(1.0)


def test_splitting_parts_the_examples() -> None:
    data = tokenize(_many(60), tokenizer())
    rest, held_out = data.split(0.25)
    assert 5 <= len(held_out) <= 25
    assert sorted([*rest.rows.tolist(), *held_out.rows.tolist()]) == list(range(60))
    assert held_out.label.tolist() == data.label[held_out.rows].tolist()
    assert data.split(0.25)[1].rows.tolist() == held_out.rows.tolist()
    with pytest.raises(ValueError, match="leaves none on one side"):
        tokenize(TEXTS, tokenizer()).subset(np.array([0])).split(0.5)
    with pytest.raises(ValueError, match="fraction must lie between"):
        data.split(1.0)


def test_a_split_moves_no_example_when_another_comes_or_goes() -> None:
    """By position, one text more or less would move half of those behind it."""
    texts = [f"word{n} word{n * 7 % 24} {'very ' * (n % 5)}plot" for n in range(24)]
    data = tokenize(Sentences([*texts, *texts]), tokenizer())
    side = dict.fromkeys(texts, False)
    side |= {texts[n % 24]: True for n in data.split(0.3)[1].rows.tolist()}
    assert 2 <= sum(side.values()) <= 16
    assert len(data.split(0.3)[1]) == 2 * sum(side.values())  # copies stay together
    for left_out in range(0, 24, 5):
        kept = texts[:left_out] + texts[left_out + 1 :]
        held_out = tokenize(Sentences(kept), tokenizer()).split(0.3)[1].rows.tolist()
        assert [n in held_out for n in range(23)] == [side[text] for text in kept]
    assert data.split(0.3, salt=1)[1].rows.tolist() != data.split(0.3)[1].rows.tolist()


def test_poisson_batches_are_padded_pieces_and_may_be_empty() -> None:
    data = tokenize(_many(40), tokenizer()).by_length()
    model = _Bag()
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=data.loader(10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        physical_batch_size=4,
    )
    chosen = iter([np.arange(0, 40, 3), np.empty(0, np.int64)])
    private.data_loader.indices = lambda step: next(chosen)
    sizes = []
    for number, batch in enumerate(private.data_loader):
        sizes.append(batch["input_ids"].shape)
        if batch["input_ids"].shape[0]:
            model(batch["input_ids"]).sum().backward()
        private.optimizer.step()
        if number == 4:
            break
    assert [size[0] for size in sizes] == [4, 4, 4, 2, 0]
    lengths = [size[1] for size in sizes[:4]]
    assert lengths == sorted(lengths)
    assert private.optimizer.steps_taken == 2


class _Bag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(40, 2, padding_idx=0)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids).sum((1, 2))


def _many(count: int) -> Sentences:
    texts, labels = zip(*reviews(count), strict=True)
    return Sentences(texts, None, labels)


def test_texts_are_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenize(TEXTS, tokenizer(), cache=tmp_path)
    monkeypatch.setattr("sparsedp.data.text._arrays", _refuse)
    again = tokenize(TEXTS, tokenizer(), cache=tmp_path)
    assert again.tokens.tolist() == first.tokens.tolist()
    assert again.__getitems__([0, 1])["input_ids"].equal(first.__getitems__([0, 1])["input_ids"])
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_other_texts_lengths_and_tokenisers_are_not_confused(tmp_path: Path) -> None:
    def cached(texts: Sentences = TEXTS, kind: str = "bert", **options: Any) -> TextData:
        return tokenize(texts, tokenizer(kind), cache=tmp_path, **options)

    assert cached().lengths.max() == 7
    assert cached(max_length=5).lengths.max() == 5
    assert cached().lengths.max() == 7
    assert cached(kind="roberta").tokens[0] == 0
    assert (
        cached(Sentences(["a b", "c"])).tokens.size != cached(Sentences(["a", "b c"], ["d", "e"])).tokens.size
    )
    assert len(list(tmp_path.iterdir())) == 5


def test_settings_of_a_tokeniser_that_its_vocabulary_does_not_show(tmp_path: Path) -> None:
    """Truncation on the other side and the names of the inputs were missing in the cache's key."""
    made = tokenizer()
    right = tokenize(TEXTS, made, max_length=5, cache=tmp_path)
    made.truncation_side = "left"
    left = tokenize(TEXTS, made, max_length=5, cache=tmp_path)
    assert left[1]["input_ids"].tolist() != right[1]["input_ids"].tolist()
    pairs = Sentences(["good"], ["plot"])
    made.model_input_names = ["input_ids", "attention_mask"]
    assert tokenize(pairs, made, cache=tmp_path).types is None
    assert tokenize(pairs, tokenizer(), cache=tmp_path).types is not None


def test_a_tokeniser_whose_state_is_not_known_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokenizer()
    monkeypatch.setattr(type(made), "backend_tokenizer", property(lambda self: None))
    assert _key(TEXTS, made, None) is None


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = tokenize(TEXTS, tokenizer(), cache=tmp_path / "file" / "text")
    assert found.lengths.tolist() == [4, 7, 3]


def test_a_text_without_tokens() -> None:
    made = tokenizer()
    made.backend_tokenizer.post_processor = None
    made.backend_tokenizer.normalizer = normalizers.Replace("good", "")
    with pytest.raises(ValueError, match="text number 1 has no tokens"):
        tokenize(Sentences(["bad plot", "good"]), made)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn"])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    first = tokenize(TEXTS, tokenizer(), cache=tmp_path)
    [file] = tmp_path.iterdir()
    file.write_bytes(content)
    assert tokenize(TEXTS, tokenizer(), cache=tmp_path).tokens.tolist() == first.tokens.tolist()
    assert file.stat().st_size > 100


def _refuse(*_: Any) -> Any:
    raise AssertionError("tokenised again")


def test_a_text_longer_than_the_model_takes() -> None:
    with pytest.raises(
        ValueError, match="text number 1 has 7 tokens, and the model takes 6; give max_length"
    ):
        tokenize(TEXTS, tokenizer(limit=6))
    with pytest.raises(ValueError, match="text number 1 has 7 tokens, and the model takes 5"):
        tokenize(TEXTS, tokenizer(), most_tokens=5)
    data = tokenize(TEXTS, tokenizer(limit=6), max_length=6)
    assert data.lengths.tolist() == [4, 6, 3]
    assert data[1]["input_ids"][-1] == 2  # truncated before the last token is set


@pytest.mark.parametrize("length", [0, 2, 17])
def test_a_length_that_the_model_does_not_take(length: int) -> None:
    with pytest.raises(ValueError, match="max_length: must lie between 3 and 16"):
        tokenize(TEXTS, tokenizer(), max_length=length)


def test_a_label_that_was_not_named() -> None:
    with pytest.raises(
        ValueError, match="label '2' of text number 0 is not one of '0', '1'; give all labels"
    ):
        tokenize(Sentences(["good"], None, ["2"]), tokenizer())
    with pytest.raises(ValueError, match="two or more different labels"):
        tokenize(TEXTS, tokenizer(), classes=("1", "1"))


def test_a_tokeniser_without_pads() -> None:
    made = tokenizer()
    made.pad_token = None
    with pytest.raises(ValueError, match="tokenizer: has no pad token"):
        tokenize(TEXTS, made)
