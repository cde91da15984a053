"""Canaries: how they are drawn and inserted, and what their ranks, exposure and chi-square say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from sparsedp.audit import (
    CanaryRanks,
    RareIds,
    insert_phrases,
    language_model_log_perplexity,
    random_phrases,
    rank_phrases,
)
from sparsedp.core.arrays import F64, I64
from sparsedp.data import ContextWindows, Corpus
from sparsedp.models import CBOW, negative_sampling_loss

VOCABULARY = 60


def test_phrases_are_uniform_over_different_words() -> None:
    """All 5 * 4 * 3 phrases of five words, at 1e-8; a law with repeats of a word is refused."""
    drawn = random_phrases(60_000, 5, seed=3)
    keys, counts = np.unique(drawn @ [25, 5, 1], return_counts=True)
    assert keys.size == 60
    assert stats.chisquare(counts).pvalue > 1e-8
    with_repeats = np.random.default_rng(3).integers(0, 5, size=(60_000, 3))
    assert np.unique(with_repeats @ [25, 5, 1]).size == 125


def test_every_copy_is_inserted_and_nothing_else_changes() -> None:
    sentences = [np.arange(n, n + 2) for n in range(50)]
    phrases = 100 + random_phrases(4, 30, seed=1)
    found = insert_phrases(sentences, phrases, 3, seed=2)
    old = [sentence for sentence in found if sentence[0] < 100]
    new = [tuple(sentence) for sentence in found if sentence[0] >= 100]
    assert all(np.array_equal(a, b) for a, b in zip(old, sentences, strict=True))
    assert sorted(new) == sorted(tuple(phrase) for phrase in phrases for _ in range(3))
    places = [n for n, sentence in enumerate(found) if sentence[0] >= 100]
    assert places != list(range(50, 62))


def test_ranks_exposure_and_histogram_by_hand() -> None:
    others = np.array([[2.0, 3.0, 4.0]] * 4)
    found = CanaryRanks.of([1.0, 2.5, 9.0, np.nan], others, seed=0)
    assert found.ranks.tolist() == [1, 2, 4, 4]
    assert found.exposure.tolist() == [2.0, 1.0, 0.0, 0.0]
    assert found.histogram(2).tolist() == [2, 2]
    assert found.histogram(4).tolist() == [1, 1, 0, 2]


def test_ties_fall_at_random() -> None:
    """A model that knows nothing gives uniform ranks, not the best or the worst; chi-square at 1e-8."""
    found = CanaryRanks.of(np.zeros(20_000), np.zeros((20_000, 9)), seed=5)
    assert stats.chisquare(np.bincount(found.ranks)[1:]).pvalue > 1e-8


def test_the_statistic_is_pearsons_and_the_distance_is_the_papers() -> None:
    """WIDE's Table 2 has distance 0.007 with p = 0.63 for 1,000 canaries: ten bins."""
    ranks = CanaryRanks(np.arange(1, 1001), 999)
    assert ranks.chi_square().statistic == 0.0
    assert ranks.chi_square().p_value == 1.0
    uneven = CanaryRanks(np.concatenate([np.arange(1, 501), np.ones(500, np.int64)]), 999)
    counts = np.array([600, 100, 100, 100, 100, 0, 0, 0, 0, 0])
    pearson = stats.chisquare(counts)
    found = uneven.chi_square()
    assert (found.statistic, found.p_value) == pytest.approx((pearson.statistic, pearson.pvalue))
    assert found.distance == pytest.approx(pearson.statistic / 1000)
    assert stats.chi2.sf(0.007 * 1000, 9) == pytest.approx(0.63, abs=0.01)


def test_bins_of_unequal_size_have_their_own_expectation() -> None:
    """11 ranks in 10 bins: one bin has two of them. Uniform ranks at 1e-8."""
    drawn = np.random.default_rng(8).integers(1, 12, size=50_000)
    assert CanaryRanks(drawn, 10).chi_square().p_value > 1e-8
    flat = np.full(10, 5000.0)
    assert stats.chisquare(CanaryRanks(drawn, 10).histogram(), flat).pvalue < 1e-8  # without it


def windows_of(canaries: I64, copies: int) -> ContextWindows:
    """A corpus of random sentences with the canaries among them."""
    rng = np.random.default_rng(11)
    sentences = [rng.integers(0, VOCABULARY, size=6) for _ in range(200)]
    corpus = Corpus.of(insert_phrases(sentences, canaries, copies, seed=12))
    return ContextWindows(corpus, VOCABULARY, seed=13)


def overfit(windows: ContextWindows, epochs: int) -> CBOW:
    """Train without privacy."""
    torch.manual_seed(0)
    model = CBOW(VOCABULARY, dim=24)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        windows.round = epoch
        for part in np.array_split(rng.permutation(len(windows)), 8):
            optimizer.zero_grad()
            negative_sampling_loss(model(*windows.__getitems__(part))).mean().backward()
            optimizer.step()
    return model


@pytest.fixture(scope="module")
def memorising() -> tuple[CBOW, I64]:
    canaries = random_phrases(100, VOCABULARY, seed=21)
    return overfit(windows_of(canaries, 10), 15), canaries


def test_a_model_that_memorised_has_high_exposure_and_no_uniform_ranks(memorising: tuple[CBOW, I64]) -> None:
    """The positive control: p-value below 1e-8."""
    model, canaries = memorising
    found = rank_phrases(model.log_perplexity, canaries, VOCABULARY, references=1000, seed=22)
    assert found.chi_square().p_value < 1e-8
    assert found.exposure.mean() > 4.0  # 1.44 where ranks are uniform
    assert found.histogram().argmax() == 0


def test_phrases_that_were_never_inserted_have_uniform_ranks(memorising: tuple[CBOW, I64]) -> None:
    """The same model, other phrases from the same law: chi-square at 1e-8."""
    model, _ = memorising
    outside = random_phrases(2000, VOCABULARY, seed=23)
    found = rank_phrases(model.log_perplexity, outside, VOCABULARY, references=300, seed=24)
    assert found.chi_square().p_value > 1e-8
    assert found.exposure.mean() == pytest.approx(1 / np.log(2), abs=6 * 1.45 / np.sqrt(2000))


class Successor(nn.Module):
    """A causal language model that has learned: word n is followed by n + 1."""

    def forward(self, ids: Tensor) -> Tensor:
        return 5.0 * functional.one_hot((ids + 1) % VOCABULARY, VOCABULARY).float()


class WithLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Successor()

    def forward(self, ids: Tensor) -> object:
        assert not self.training
        return type("Output", (), {"logits": self.inner(ids)})()


@pytest.mark.parametrize("model", [Successor(), WithLogits()])
def test_log_perplexity_of_a_language_model(model: nn.Module) -> None:
    log_perplexity = language_model_log_perplexity(model.train(), physical_batch_size=2)
    found = log_perplexity(np.array([[3, 4, 5], [3, 4, 9], [3, 8, 1]]))
    likely, unlikely = -np.log(np.exp([5.0, 0.0]) / (np.exp(5.0) + VOCABULARY - 1))
    assert found == pytest.approx([2 * likely, likely + unlikely, 2 * unlikely])
    assert model.training


def test_phrases_that_a_language_model_knows_rank_first() -> None:
    starts = np.arange(50)
    phrases = np.stack([starts, starts + 1, starts + 2], axis=1)
    found = rank_phrases(
        language_model_log_perplexity(Successor()), phrases, VOCABULARY, references=200, seed=1
    )
    assert np.median(found.ranks) == 1
    assert found.chi_square().p_value < 1e-8


def test_rare_ids_of_click_models() -> None:
    """A table that has learned the canaries' labels puts them first; one that has not ranks them uniformly."""
    unused = np.arange(1000, 8000)
    rare = RareIds.choose(unused, canaries=60, references=99, seed=4)
    assert np.unique(np.concatenate([rare.canaries, rare.references.ravel()])).size == 60 * 100
    templates = np.random.default_rng(1).integers(0, 1000, size=(60, 3))
    rows = rare.rows(templates, column=1)
    assert np.array_equal(rows[:, [0, 2]], templates[:, [0, 2]])
    assert np.array_equal(rows[:, 1], rare.canaries)
    weight = np.random.default_rng(2).normal(size=8000)

    def loss(rows: I64) -> F64:
        return np.asarray(np.log1p(np.exp(-weight[rows].sum(axis=1))))

    assert rare.rank(loss, templates, 1, seed=5).chi_square().p_value > 1e-8
    weight[rare.canaries] += 5.0
    memorised = rare.rank(loss, templates, 1, seed=5)
    assert memorised.chi_square().p_value < 1e-8
    assert memorised.exposure.mean() > 5.0


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"unused: 10 canaries .* need 1,000 ids, got 500"):
        RareIds.choose(np.arange(500), 10, 99, seed=0)
    with pytest.raises(ValueError, match="templates must be one row a canary"):
        RareIds.choose(np.arange(500), 2, 9, seed=0).rows(np.zeros((3, 2)), 0)
    with pytest.raises(ValueError, match="bins: a chi-square test needs 5 canaries a bin"):
        CanaryRanks(np.ones(20, np.int64), 99).chi_square()
    with pytest.raises(ValueError, match="bins must be at most 4"):
        CanaryRanks(np.ones(90, np.int64), 3).histogram()
    with pytest.raises(ValueError, match="reference_scores must have shape"):
        CanaryRanks.of([1.0, 2.0], [[1.0]], seed=0)
    with pytest.raises(ValueError, match="copies"):
        insert_phrases([], random_phrases(1, 9, seed=0), 0, seed=0)
    with pytest.raises(ValueError, match="vocabulary_size"):
        random_phrases(1, 3, seed=0)
