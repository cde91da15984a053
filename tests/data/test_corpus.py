"""Words, vocabularies and corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.data import Corpus, WordVocabulary, read_sentences, split_words
from sparsedp.randomness import NoiseSource

TEXT = [["the", "cat", "sat"], ["the", "dog"], ["a", "cat", "cat"], ["end"]]


def test_words_are_in_lower_case_without_digits_and_marks() -> None:
    text = "The over-all 3rd plan, ``isn't'' Mr. Smith's (naïve) x_1 -- 42!"
    assert split_words(text) == ["the", "over-all", "rd", "plan", "isn't", "mr", "smith's", "naïve", "x"]


def test_a_file_has_a_sentence_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("One line.\n\n12 34\nAnother one\n", encoding="utf-8")
    assert read_sentences(path) == [["one", "line"], ["another", "one"]]
    path.write_text("1 2 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no words"):
        read_sentences(path)


def test_the_most_frequent_words_come_first_and_ties_by_the_alphabet() -> None:
    vocabulary = WordVocabulary.most_frequent(TEXT, 3, exclude={"the"})
    assert vocabulary.words == ("cat", "a", "dog")
    with pytest.raises(ValueError, match=r"size: there are only 6 different words, 7 were"):
        WordVocabulary.most_frequent(TEXT, 7)


def test_sentences_are_encoded_and_other_words_left_out() -> None:
    vocabulary = WordVocabulary(("cat", "dog", "the"))
    corpus = vocabulary.encode(TEXT)
    assert [sentence.tolist() for sentence in corpus] == [[2, 0], [2, 1], [0, 0], []]
    assert (vocabulary.id_of("dog"), vocabulary.phrase([0, 2])) == (1, "cat the")
    counts = corpus.counts(3)
    assert (counts.ids.tolist(), counts.values.tolist(), counts.size) == ([0, 1, 2], [3, 1, 2], 3)
    assert corpus.unigram_weights(4, power=1.0).tolist() == [4, 2, 3, 1]
    both = corpus + Corpus.of([np.array([1, 1])])
    assert (len(both), both[4].tolist(), both[0].tolist()) == (5, [1, 1], [2, 0])
    assert len(Corpus.of([])) == 0


def test_words_without_an_id_are_refused() -> None:
    with pytest.raises(ValueError, match="'cow' is not in the vocabulary of 1 words"):
        WordVocabulary(("cat",)).id_of("cow")
    with pytest.raises(ValueError, match="'cat' is listed twice"):
        WordVocabulary(("cat", "dog", "cat"))
    with pytest.raises(ValueError, match="at least one word"):
        WordVocabulary(())


def test_a_private_vocabulary_has_the_frequent_candidates_and_its_price() -> None:
    """Counts of 500 against none at a noise of sqrt(4) / 0.1 = 20: 25 standard deviations (1e-100)."""
    sentences = [["common", "frequent", "secret"]] * 500 + [["rare"]]
    candidates = ["absent", "common", "rare", "frequent", *(f"w{n}" for n in range(50))]
    vocabulary, event = WordVocabulary.private_top(
        sentences, candidates, 2, mu=0.1, words_per_sentence=4, source=NoiseSource(1)
    )
    assert vocabulary.words == ("common", "frequent")
    assert event == GaussianDpEvent(pytest.approx(10.0))
    with pytest.raises(ValueError, match="candidates has only 54"):
        WordVocabulary.private_top(sentences, candidates, 55, mu=0.1, source=NoiseSource(1))


def test_one_sentence_moves_the_counts_by_at_most_the_stated_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sentences with repeats are scaled down; what the sampler gets is the clipped histogram."""
    seen: list[tuple[np.ndarray, np.ndarray, float]] = []

    def chosen(
        ids: np.ndarray, counts: np.ndarray, size: int, *, k: int, std: float, stream: object
    ) -> np.ndarray:
        seen.append((ids, counts, std))
        return np.arange(k)

    monkeypatch.setattr("sparsedp.data.corpus.top_k_gaussian", chosen)
    candidates = [f"w{n}" for n in range(30)]
    for sentence in (candidates * 3, ["w1"] * 50, ["w2", "other"]):
        WordVocabulary.private_top(
            [sentence], candidates, 3, mu=0.5, words_per_sentence=9, source=NoiseSource(1)
        )
    norms = [float(np.linalg.norm(counts)) for _, counts, _ in seen]
    assert norms == pytest.approx([3.0, 1.0, 1.0])
    assert [std for *_, std in seen] == [6.0] * 3
