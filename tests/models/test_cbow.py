"""CBOW: its private gradient is the naive loop's, padding never counts, and look-ups say what was learned."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from support.naive import masked_clipped_mean, per_example_gradients
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sparsedp as sdp
from sparsedp.data import ContextWindows, Corpus
from sparsedp.models import CBOW, WordVectors, negative_sampling_loss
from sparsedp.selection import Selection

WORDS, DIM = 40, 6


def model_of(words: int = WORDS) -> CBOW:
    torch.manual_seed(1)
    model = CBOW(words, DIM)
    nn.init.normal_(model.context.weight)
    nn.init.normal_(model.output.weight)
    return model


def windows_of(words: int = WORDS) -> ContextWindows:
    """Short sentences over few words: padding, repeats in a context, words that are context and negative."""
    rng = np.random.default_rng(2)
    sentences = [rng.integers(0, words, size=rng.integers(1, 8)) for _ in range(12)]
    sentences.append(np.array([3, 3, 3, 5]))
    return ContextWindows(Corpus.of(sentences), words, window=3, negatives=4, seed=1)


SELECTIONS: dict[str, Selection] = {
    "dpsgd": sdp.DPSGD(),
    "fest": sdp.FEST({"context": range(0, 40, 2), "output": range(20)}, always_on_rows=0),
    "adafest": sdp.AdaFEST(threshold=1e-6, always_on_rows=0),
    "random coordinates": sdp.RandomSelection(coordinates=10**6, always_on_rows=0),
    "exponential coordinates": sdp.ExponentialSelection(None, 1.0, 1.0, coordinates=10**6, always_on_rows=0),
    "sparse vector coordinates": sdp.SparseVectorSelection(
        None, 1.0, 1.0, threshold=-1e9, coordinates=10**6, always_on_rows=0
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("pieces", [None, 5])
def test_the_private_gradient_is_that_of_the_naive_loop(name: str, pieces: int | None) -> None:
    """Without noise, over whole epochs of Poisson batches; every rule here keeps all rows, but FEST."""
    windows, clip = windows_of(), 0.7
    model = model_of()
    twin = copy.deepcopy(model)
    private = sdp.PrivacyEngine(seed=3).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(windows, batch_size=16),  # type: ignore[arg-type]
        noise_multiplier=0.0,
        max_grad_norm=clip,
        selection=SELECTIONS[name],
        physical_batch_size=pieces,
    )
    masks = {}
    if name == "fest":
        masks = {"context.weight": torch.zeros(WORDS + 1), "output.weight": torch.zeros(WORDS)}
        masks["context.weight"][0:40:2] = 1
        masks["output.weight"][:20] = 1
    parts: list[tuple[Tensor, Tensor]] = []
    for context, candidates in private.data_loader:
        parts.append((context, candidates))
        private.optimizer.zero_grad()
        negative_sampling_loss(model(context, candidates)).mean().backward()
        private.optimizer.step()
        if private.optimizer.is_mid_batch:
            continue
        contexts, words = (torch.cat(part) for part in zip(*parts, strict=True))
        parts.clear()

        def loss(module: nn.Module, i: int, contexts: Tensor = contexts, words: Tensor = words) -> Tensor:
            return negative_sampling_loss(module(contexts[i : i + 1], words[i : i + 1])).sum()

        gradients = per_example_gradients(twin, loss, len(contexts))
        batch = private.data_loader.sampling_rate * len(windows)
        expected = masked_clipped_mean(gradients, masks, clip, batch)
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            found = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            torch.testing.assert_close(found, expected[key].to(found.dtype), rtol=1e-4, atol=1e-6)
        twin.load_state_dict(model.state_dict())


def test_negatives_shared_in_a_batch_would_be_noticed() -> None:
    """The positive control: a loss whose negatives are the other examples' words is refused or differs."""
    windows, model = windows_of(), model_of()
    twin = copy.deepcopy(model)
    context, candidates = windows.__getitems__(np.arange(8))

    def in_batch(module: nn.Module, rows: slice) -> Tensor:
        scores = module.context(context[rows]) @ module.output(candidates[rows, 0]).T  # type: ignore[operator]
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none")

    alone = per_example_gradients(twin, lambda module, i: in_batch(module, slice(i, i + 1)).sum(), 8)
    together = torch.autograd.grad(in_batch(twin, slice(0, 8))[0], twin.output.weight)[0].to_dense()
    assert not torch.allclose(alone[0]["output.weight"], together)
    own = per_example_gradients(
        twin, lambda m, i: negative_sampling_loss(m(context[i : i + 1], candidates[i : i + 1])).sum(), 8
    )
    joint = torch.autograd.grad(negative_sampling_loss(twin(context, candidates))[0], twin.output.weight)[0]
    torch.testing.assert_close(own[0]["output.weight"], joint.to_dense())


def test_noise_on_the_padding_moves_no_score() -> None:
    windows, model = windows_of(), model_of()
    context, candidates = windows.__getitems__(np.arange(len(windows)))
    assert (context == windows.padding).any()
    before = model(context, candidates)
    with torch.no_grad():
        model.context.weight[windows.padding] = 1e6
    assert torch.equal(model(context, candidates), before)


def test_the_loss_is_the_papers() -> None:
    scores = torch.tensor([[2.0, -1.0, 0.5]])
    expected = -torch.log(torch.sigmoid(torch.tensor([2.0, 1.0, -0.5]))).sum()
    assert negative_sampling_loss(scores).item() == pytest.approx(expected.item())


def test_an_untrained_model_with_the_offset_predicts_the_base_rate() -> None:
    windows = windows_of()
    model = CBOW(WORDS, DIM, score_offset=-math.log(windows.negatives))
    scores = model(*windows.__getitems__(np.arange(10)))
    assert torch.sigmoid(scores).detach().numpy() == pytest.approx(1 / (1 + windows.negatives))
    model.score_offset = 0.0
    assert torch.equal(model(*windows.__getitems__(np.arange(10))), torch.zeros(10, 5))


def test_a_large_vocabulary_gets_a_sparse_gradient() -> None:
    """50,000 words of 100 numbers: a step touches the batch's rows and a few others, and makes no table."""
    rng = np.random.default_rng(1)
    corpus = Corpus.of([rng.integers(0, 50_000, size=10) for _ in range(40)])
    windows = ContextWindows(corpus, 50_000, seed=0)
    model = CBOW(50_000)
    private = sdp.PrivacyEngine(seed=1).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(windows, batch_size=64),  # type: ignore[arg-type]
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(false_positives=20, contribution_norm=4.0),
    )
    for context, candidates in private.data_loader:
        private.optimizer.zero_grad()
        negative_sampling_loss(model(context, candidates)).mean().backward()
        private.optimizer.step()
        assert private.optimizer.last_step.gradient_size < 200 * 100
    assert private.optimizer.last_step.table_coordinates == 100_001 * 100


def test_log_perplexity_is_that_of_the_softmax() -> None:
    """By hand for one phrase; the tables of pairs give the same as the loop."""
    model = model_of()
    context, output = model.context.weight.detach(), model.output.weight.detach()
    first = torch.log_softmax(context[3] @ output.T, 0)[7]
    second = torch.log_softmax((context[3] + context[7]) / 2 @ output.T, 0)[9]
    assert model.log_perplexity([[3, 7, 9]]) == pytest.approx([-float(first + second)], rel=1e-5)
    phrases = np.random.default_rng(4).integers(0, WORDS, size=(5000, 3))
    slow = np.concatenate([model.log_perplexity(part) for part in np.array_split(phrases, 5)])
    np.testing.assert_allclose(model.log_perplexity(phrases), slow, rtol=1e-4)
    with pytest.raises(ValueError, match="phrases must have shape"):
        model.log_perplexity([3, 7, 9])


def test_log_perplexity_of_a_model_with_very_large_scores() -> None:
    """Products of the tables of pairs underflow; a canary must not rank first for that."""
    model = model_of()
    with torch.no_grad():
        model.context.weight *= 4000
    phrases = np.random.default_rng(4).integers(0, WORDS, size=(5000, 3))
    slow = np.concatenate([model.log_perplexity(part) for part in np.array_split(phrases, 5)])
    assert slow.max() > 2000
    np.testing.assert_allclose(model.log_perplexity(phrases), slow, rtol=1e-4, atol=1e-2)


def test_look_ups() -> None:
    words = ("king", "man", "woman", "queen", "pea")
    vectors = torch.tensor(
        [[1.0, 1.0, 0.1], [1.0, 0.0, 0.1], [0.0, 0.1, 1.0], [0.0, 1.1, 1.0], [-1.0, -0.5, 0.0]]
    )
    found = WordVectors(words, vectors)
    assert found.nearest("king", 1)[0][0] == "man"
    assert len(found.nearest("king", 99)) == 4
    assert found.nearest("king", 2)[0][1] == pytest.approx(
        float(nn.functional.cosine_similarity(vectors[0], vectors[1], dim=0))
    )
    assert found.analogy("man", "king", "woman", 1)[0][0] == "queen"
    with pytest.raises(ValueError, match="'duke' is not among the 5 words"):
        found.nearest("duke")
    model = model_of(5)
    assert torch.equal(model.word_vectors(words).vectors, model.context.weight[:5])
    with pytest.raises(ValueError, match="words must be one a row"):
        model.word_vectors(words[:2])


def test_words_that_keep_the_same_company_come_out_near() -> None:
    """Two groups of words that never meet: a word's nearest ones are of its own group."""
    rng = np.random.default_rng(5)
    sentences = [rng.integers(0, 10, size=6) + 10 * (n % 2) for n in range(200)]
    windows = ContextWindows(Corpus.of(sentences), 20, seed=1)
    torch.manual_seed(0)
    model = CBOW(20, 8)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)
    for _ in range(3):
        for part in np.array_split(rng.permutation(len(windows)), 12):
            optimizer.zero_grad()
            negative_sampling_loss(model(*windows.__getitems__(part))).mean().backward()
            optimizer.step()
    vectors = model.word_vectors([str(n) for n in range(20)])
    for word in range(20):
        nearest = [int(found) // 10 for found, _ in vectors.nearest(str(word), 9)]
        assert nearest == [word // 10] * 9
