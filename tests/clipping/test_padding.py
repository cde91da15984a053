"""Texts whose outputs depend on how far their batch is padded: one long text would change all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.language import VOCABULARY, encoder, gpt2, padded, randomised, sentences
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sparsedp as sdp
from sparsedp.clipping.capture import Capture
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.padding import PROBES, PaddingProbe
from sparsedp.core.tables import TableShape
from sparsedp.rows import partition_tables
from sparsedp.training.counting import count_rows

transformers = pytest.importorskip("transformers")

Batch = dict[str, Tensor]


def to_the_left(texts: list[Tensor], pad: int) -> Batch:
    batch = padded(texts, pad)
    turns = [len(text) - batch["input_ids"].shape[1] for text in texts]
    return {
        name: torch.stack([row.roll(-turn) for row, turn in zip(values, turns, strict=True)])
        for name, values in batch.items()
    }


def without_mask(texts: list[Tensor], pad: int) -> Batch:
    return {"input_ids": padded(texts, pad)["input_ids"]}


def to_one_width(texts: list[Tensor], pad: int) -> Batch:
    longest = torch.full((10,), 5)
    return {name: values[1:] for name, values in padded([longest, *texts], pad).items()}


def _small(kind: str) -> nn.Module:
    if kind == "gpt2":
        return gpt2()
    if kind in ("bert", "roberta"):
        return encoder(kind)
    sizes = {"vocab_size": VOCABULARY, "num_labels": 2, "pad_token_id": 0, "hidden_size": 8}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 12, "max_position_embeddings": 16}
    if kind == "fnet":  # mixes all positions by a Fourier transform, without a mask
        config = transformers.FNetConfig(**sizes, hidden_dropout_prob=0.0)
        return randomised(transformers.FNetForSequenceClassification(config))
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    return randomised(transformers.LlamaForSequenceClassification(config))


def train(model: nn.Module, pad_batch: Callable[[list[Tensor], int], Batch], pad: int = 0) -> None:
    """Two batches of other widths through the captured model."""
    texts = sentences()
    capture = Capture(model, loss_reduction="sum")
    try:
        for some in (texts[:2], texts[2:]):
            model(**pad_batch(some, pad)).logits.square().sum().backward()
            assert len(capture.take()) == 1
    finally:
        capture.detach()


def moved_by_a_longer_text(model: nn.Module, pad_batch: Callable[[list[Tensor], int], Batch]) -> float:
    """How far a text's outputs move when a longer text joins its batch: what the refusal is for."""
    short, long = sentences()[1], sentences()[2]
    with torch.no_grad():
        alone = model(**pad_batch([short], 0)).logits[0]
        together = model(**pad_batch([short, long], 0)).logits[0]
    return float((alone - together).abs().max())


@pytest.mark.parametrize(
    ("kind", "pad_batch", "layer"),
    [
        ("bert", to_the_left, "bert.embeddings.LayerNorm"),
        ("bert", without_mask, "bert.encoder.layer.0.attention.output.dense"),
        ("gpt2", to_the_left, "transformer.h.0.ln_1"),
        ("fnet", padded, "fnet.encoder.layer.0.fourier.output.LayerNorm"),
    ],
)
def test_pads_that_reach_an_output_are_refused(kind: str, pad_batch: Any, layer: str) -> None:
    if kind != "gpt2":  # which has logits for each word
        assert moved_by_a_longer_text(_small(kind), pad_batch) > 0.01
    with pytest.raises(UnsupportedLayerError, match=f"'{layer}'.*longest text of a batch.*attention_mask"):
        train(_small(kind), pad_batch)


@pytest.mark.parametrize(
    ("kind", "pad_batch", "pad"),
    [
        ("bert", padded, 0),
        ("roberta", padded, 1),
        ("gpt2", padded, 0),
        ("gpt2", without_mask, 0),  # no word looks at those behind it
        ("llama", to_the_left, 0),  # positions are relative
        ("bert", to_one_width, 0),
        ("fnet", to_one_width, 0),  # the same for every batch: it tells nothing of the other texts
    ],
)
def test_pads_that_reach_nothing_are_accepted(kind: str, pad_batch: Any, pad: int) -> None:
    train(_small(kind), pad_batch, pad)


class Counted(nn.Module):
    """Words and positions whose pads have no gradient."""

    def __init__(self, padding_idx: int | None = None, positions: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 3, padding_idx=padding_idx)
        self.places = nn.Embedding(16, 3).requires_grad_(positions)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = self.places(torch.arange(input_ids.shape[1]).unsqueeze(0))
        return ((self.words(input_ids) + places) * attention_mask[..., None]).sum((1, 2))


def read_by_two(model: nn.Module, texts: list[Tensor], always_on: int = 0) -> Tensor:
    """The rows that two texts or more read, by the contribution map of the second batch."""
    engine = sdp.PrivacyEngine(seed=0)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0),
        data_loader=[padded(texts[:2], 0), padded(texts, 0)],
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(threshold=1.5, contribution_norm=100.0, always_on_rows=always_on),
        expected_batch_size=len(texts),
        poisson=False,
    )
    try:
        for batch in private.data_loader:
            private.module(**batch).sum().backward()
            private.optimizer.step()
        return model.words.weight.grad.coalesce().indices()[0]
    finally:
        engine.detach()


def test_pads_that_count_as_reads_are_refused() -> None:
    texts = [torch.tensor([4, 5]), torch.tensor([5]), torch.tensor([6, 6, 6])]
    assert read_by_two(Counted(padding_idx=0), texts).tolist() == [5]
    with pytest.raises(UnsupportedLayerError, match=r"'words'.*padding_idx is None.*longest text"):
        read_by_two(Counted(), texts)


def test_positions_of_pads_that_count_as_reads_are_refused() -> None:
    texts = [torch.tensor([4, 5]), torch.tensor([5]), torch.tensor([6, 6, 6])]
    with pytest.raises(UnsupportedLayerError, match=r"'places'.*always_on_rows"):
        read_by_two(Counted(0, positions=True), texts)
    assert read_by_two(Counted(0, positions=True), texts, always_on=16).tolist() == [5]


def test_pads_that_count_as_reads_are_refused_when_rows_are_counted_before_training() -> None:
    texts = [torch.tensor([4, 5]), torch.tensor([5]), torch.tensor([6, 6, 6]), torch.tensor([7])]
    loader = DataLoader(texts, batch_size=2, collate_fn=lambda some: padded(some, 0))
    for model in (Counted(padding_idx=0), Counted()):
        capture = Capture(model, loss_reduction="sum")
        space = partition_tables([TableShape("words", VOCABULARY, 3)], 0)
        if model.words.padding_idx is None:
            with pytest.raises(UnsupportedLayerError, match=r"'words'.*longest text"):
                count_rows(model, capture, loader, 10.0, space)
        else:
            assert count_rows(model, capture, loader, 10.0, space)["words"].ids.tolist() == [4, 5, 6, 7]
        capture.detach()


def test_an_untrained_head_hides_nothing() -> None:
    model = _small("fnet")
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    with pytest.raises(UnsupportedLayerError, match="longest text"):
        train(model, padded)


class Mean(nn.Module):
    """The mean over words, with the pads or without."""

    def __init__(self, with_pads: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 3)
        self.with_pads = with_pads
        self.calls = 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        self.calls += 1
        mask = torch.ones_like(attention_mask) if self.with_pads else attention_mask
        return (self.words(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("by_name", [False, True])
def test_models_of_ones_own(by_name: bool) -> None:
    def probed(model: Mean) -> None:
        probe = PaddingProbe(model)
        for texts in (sentences()[:2], sentences()[2:]):
            batch = padded(texts, 0)
            args, kwargs = ((), batch) if by_name else (tuple(batch.values()), {})
            probe(model.forward, args, kwargs, len(texts))

    probed(Mean(with_pads=False))
    with pytest.raises(UnsupportedLayerError, match="longest text"):
        probed(Mean(with_pads=True))


def test_only_the_first_padded_batches_are_run_again_and_nothing_of_them_stays() -> None:
    model = Mean(with_pads=False).train()
    probe, state = PaddingProbe(model), torch.get_rng_state()
    for step in range(10):
        texts = sentences()[:2] if step % 2 else sentences()[2:]
        probe(model.forward, (), padded(texts, 0), len(texts))
        assert model.training
    assert model.calls == 2 * PROBES
    assert torch.equal(torch.get_rng_state(), state)
    same = PaddingProbe(model)
    for length in (3, 5):
        same(model.forward, (), padded([torch.full((length,), 4)] * 2, 0), 2)  # nothing is padded
    assert model.calls == 2 * PROBES
