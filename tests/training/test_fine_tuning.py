"""The whole stack of fine-tuning (transformers, peft, padding, masks) against a loop over unpadded examples."""

from __future__ import annotations

import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import text_peak_memory
from support.allocations import LargestAllocation
from support.language import (
    LENGTHS,
    VOCABULARY,
    adapted,
    encoder,
    gpt2,
    labels,
    logits,
    other,
    padded,
    sentences,
    table_of,
    with_adapters,
)
from support.naive import masked_clipped_mean, per_example_gradients
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import sparsedp as sdp
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.selection import Selection

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

B, CLIP, CHOSEN = len(LENGTHS), 0.7, range(4, 9)
SELECTIONS = ("dpsgd", "fest", "adafest")


def selection_of(name: str, table: str) -> Selection:
    if name == "fest":
        return sdp.FEST({table: CHOSEN}, always_on_rows=16)
    if name == "adafest":  # a row that two examples read survives
        return sdp.AdaFEST(threshold=1.5, contribution_norm=100.0, always_on_rows=16)
    return sdp.DPSGD()


def rows_of(name: str, texts: list[Tensor]) -> Tensor:
    """Which rows of the word embedding survive."""
    rows = torch.zeros(VOCABULARY)
    if name == "fest":
        rows[list(CHOSEN)] = 1
    elif name == "adafest":
        for text in texts:
            rows[text.unique()] += 1
        rows = (rows >= 1.5).float()
    else:
        rows += 1
    return rows


def gradient_of(
    model: nn.Module, selection: Selection, batch: Any, loss: Any, physical: int | None = None
) -> dict[str, Tensor]:
    """The private gradient without noise, through the engine."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    engine = sdp.PrivacyEngine(seed=0)
    private = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=batch,
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        selection=selection,
        expected_batch_size=B,
        poisson=physical is not None,
        physical_batch_size=physical,
    )
    if physical is not None:
        private.data_loader.indices = lambda step: np.arange(B)
    for piece in private.data_loader:
        loss(private.module, piece).backward()
        private.optimizer.step()
        if not private.optimizer.is_mid_batch:
            break
    found = {
        name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    engine.detach()
    return found


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return cross_entropy(logits(model, inputs), batch["labels"])


def check(model: nn.Module, name: str, pad: int, physical: int | None = None) -> dict[str, Tensor]:
    texts = sentences(first=3)
    table = table_of(model)
    parameter = f"{table}.weight"

    def alone(model: nn.Module, i: int) -> Tensor:
        return cross_entropy(logits(model, {"input_ids": texts[i].unsqueeze(0)}), labels()[i : i + 1])

    gradients = per_example_gradients(model, alone, B)
    trainable = gradients[0].keys()
    masks = {parameter: rows_of(name, texts)} if parameter in trainable else {}
    expected = masked_clipped_mean(gradients, masks, CLIP, B)
    selection = selection_of(name, table) if masks else sdp.DPSGD()
    if physical is None:
        data: Any = [{**padded(texts, pad), "labels": labels()}]
    else:
        rows = [(text, label) for text, label in zip(texts, labels(), strict=True)]

        def collate(items: list[Any]) -> UserDict[str, Tensor]:
            ids = padded([text for text, _ in items], pad)
            return transformers.BatchEncoding({**ids, "labels": torch.stack([each for _, each in items])})

        data = DataLoader(rows, batch_size=B, collate_fn=collate)
    found = gradient_of(model, selection, data, mean_loss, physical)
    assert found.keys() == trainable
    for each in trainable:
        size = expected[each].norm()
        assert (found[each] - expected[each]).norm() <= 1e-4 * size + 1e-6, each
    return found


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("roberta", 1), ("xlm-roberta", 1)])
def test_adapters_head_and_word_embedding(kind: str, pad: int, selection: str) -> None:
    model = with_adapters(encoder(kind), "full")
    found = check(model, selection, pad)
    words = found[f"{table_of(model)}.weight"]
    assert words.any()
    assert not words[pad].any()


@pytest.mark.filterwarnings("error:physical_batch_size")  # no piece is stored
@pytest.mark.parametrize("selection", ["dpsgd", "adafest"])
@pytest.mark.parametrize("physical", [2, 4])
def test_in_pieces_padded_by_themselves(selection: str, physical: int) -> None:
    check(with_adapters(encoder("bert"), "full"), selection, 0, physical)


TARGETS = {
    "DistilBert": ["q_lin", "v_lin"],
    "Albert": ["query", "value"],  # one layer, run twice
    "Electra": ["query", "value"],
    "MPNet": ["q", "v"],
    "DebertaV2": ["query_proj", "value_proj"],
    "ModernBert": ["Wqkv"],
    "GPT2": ["c_attn"],
    "OPT": ["q_proj", "v_proj"],
    "Llama": ["q_proj", "v_proj"],
    "Qwen3": ["q_proj", "v_proj"],
}


@pytest.mark.parametrize("kind", TARGETS)
def test_adapters_on_other_architectures(kind: str) -> None:
    model, pad = other(kind), 1 if kind == "MPNet" else 0
    model.get_input_embeddings().padding_idx = pad
    check(with_adapters(model, "full", target_modules=TARGETS[kind]), "adafest", pad, physical=4)


@pytest.mark.parametrize("kind", ["DistilBert", "Albert", "GPT2", "Qwen3"])
def test_every_parameter_of_other_architectures(kind: str) -> None:
    check(other(kind), "dpsgd", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_dora": True},
        {"use_rslora": True, "bias": "all"},
        {"target_modules": "all-linear", "lora_bias": True},
        {"modules_to_save": ["classifier", "pooler"]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_kinds_of_lora(changes: dict[str, Any]) -> None:
    check(with_adapters(encoder("bert"), "full", **changes), "adafest", 0)


def test_prefixes_and_adaptive_ranks() -> None:
    prefix = peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    check(adapted(encoder("bert"), prefix, full=False), "dpsgd", 0)
    targets = ["query", "value"]
    ranks = peft.AdaLoraConfig(
        task_type="SEQ_CLS", init_r=3, target_r=2, target_modules=targets, total_step=9
    )
    check(adapted(encoder("bert"), ranks), "adafest", 0)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_dropout_and_checkpointed_layers(reentrant: bool | None) -> None:
    """Against autograd of each example's loss in the same batch, with the same random numbers."""
    model = with_adapters(encoder("bert"), "full", lora_dropout=0.3)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    batch = {**padded(sentences(), 0), "labels": labels()}

    def alone(model: nn.Module, i: int) -> Tensor:
        torch.manual_seed(5)
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return cross_entropy(logits(model, inputs), batch["labels"], reduction="none")[i]

    def seeded(model: nn.Module, batch: Any) -> Tensor:
        torch.manual_seed(5)
        return mean_loss(model, batch)

    expected = masked_clipped_mean(per_example_gradients(model, alone, B), {}, CLIP, B)
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    found = gradient_of(model, sdp.DPSGD(), [batch], seeded)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert (values - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-6, name


def test_positions_flattened_into_the_examples_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'model.decoder.layers.1.fc2' gives \[42, 8\].*do not flatten"):
        check(other("OPT"), "dpsgd", 0)


def test_a_large_vocabulary_is_never_allocated_again() -> None:
    rows = 250_002
    config = transformers.XLMRobertaConfig(
        vocab_size=rows, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = with_adapters(transformers.XLMRobertaForSequenceClassification(config), "full")
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data_loader=[{**padded(sentences(), 1), "labels": labels()}],
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        selection=sdp.AdaFEST(),
        expected_batch_size=B,
        poisson=False,
    )
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for _ in range(3):
        for batch in private.data_loader:
            with LargestAllocation(known) as watch:
                mean_loss(private.module, batch).backward()
                private.optimizer.step()
    assert watch.largest < rows
    step = private.optimizer.last_step
    assert step is not None
    assert step.table_coordinates == rows * 8
    assert step.reduction > 1000


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["dpsgd", "adafest"])
def test_peak_memory_of_1024_texts_is_that_of_a_piece(selection: str) -> None:
    """A piece of 16 holds 30 MB of activations; 1024 texts, if they were kept, 2 GB."""
    program = Path(text_peak_memory.__file__)

    def peak(examples: int) -> float:
        command = [sys.executable, str(program), selection, str(examples)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert peak(1024) < peak(64) + 50


@pytest.mark.parametrize("embedding", ["frozen", "lora"])
@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("roberta", 1)])
def test_frozen_and_adapted_word_embeddings(kind: str, pad: int, embedding: str) -> None:
    found = check(with_adapters(encoder(kind), embedding), "dpsgd", pad)
    assert any("lora_embedding_A" in name for name in found) == (embedding == "lora")


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("xlm-roberta", 1)])
def test_every_parameter_with_trainable_positions_and_types(kind: str, pad: int, selection: str) -> None:
    found = check(encoder(kind), selection, pad)
    assert {name.split(".")[-2] for name in found if "_embeddings.weight" in name} == {
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
    }


def test_a_causal_model_with_a_tied_output_layer_and_a_mean_over_the_tokens_of_an_example() -> None:
    model, texts = gpt2(), sentences()

    def token_losses(scores: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        each = cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        each = each.view(ids.shape[0], -1) * mask[:, 1:]
        return each.sum(1) / mask[:, 1:].sum(1)

    def alone(model: nn.Module, i: int) -> Tensor:
        ids = texts[i].unsqueeze(0)
        return token_losses(logits(model, {"input_ids": ids}), ids, torch.ones_like(ids)).sum()

    def whole(model: nn.Module, batch: Any) -> Tensor:
        return token_losses(logits(model, batch), batch["input_ids"], batch["attention_mask"]).mean()

    expected = masked_clipped_mean(per_example_gradients(model, alone, B), {}, CLIP, B)
    found = gradient_of(model, sdp.DPSGD(), [padded(texts, 0)], whole)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert (values - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-6, name


def _small(kind: str) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "num_labels": 2}
    if kind == "t5":
        config = transformers.T5Config(
            **sizes, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, dropout_rate=0.0
        )

        class Pooled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = transformers.T5EncoderModel(config)
                self.out = nn.Linear(8, 2)

            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
                hidden = self.encoder(input_ids, attention_mask).last_hidden_state
                return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.out(hidden[:, 0]))

        return Pooled().train()
    config = transformers.DebertaV2Config(
        **sizes,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pooler_dropout=0.0,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    )
    return transformers.DebertaV2ForSequenceClassification(config).train()


@pytest.mark.parametrize("length", [7, B])  # as many positions as examples must not pass for examples
@pytest.mark.parametrize(("kind", "name"), [("t5", "relative_attention_bias"), ("deberta", "rel_embeddings")])
def test_relative_positions_that_examples_share_are_refused_by_name(
    kind: str, name: str, length: int
) -> None:
    model = _small(kind)
    batch = {
        "input_ids": torch.randint(3, VOCABULARY, (B, length)),
        "attention_mask": torch.ones(B, length, dtype=torch.int64),
        "labels": labels(),
    }
    with pytest.raises((UnsupportedLayerError, ValueError, RuntimeError), match=name) as refused:
        gradient_of(model, sdp.DPSGD(), [batch], mean_loss)
    assert "freeze" in str(refused.value)
    model = _small(kind)
    for each, parameter in model.named_parameters():
        parameter.requires_grad_(name not in each and "pos_" not in each)
    assert gradient_of(model, sdp.DPSGD(), [batch], mean_loss)
