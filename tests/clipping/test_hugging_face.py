"""Models as the language engineer has them: full fine-tuning, tied output layers, adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

B, T = 3, 5


class Logits(nn.Module):
    """The first output alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits


def text() -> tuple[Tensor, Tensor]:
    mask = torch.ones(B, T, dtype=torch.int64)
    mask[0, 3:] = 0
    return torch.randint(3, 20, (B, T)), mask


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def test_bert_with_every_parameter_trainable(check):
    capture = check(Logits(bert().double().train()), *text(), tolerance=1e-7)
    names = {name.rpartition(".")[2] for name in capture.tables}
    assert names == {"word_embeddings", "position_embeddings", "token_type_embeddings"}


def test_gpt2_with_its_tied_output_layer(check):
    config = transformers.GPT2Config(
        vocab_size=20,
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    capture = check(Logits(transformers.GPT2LMHeadModel(config).double().train()), *text(), tolerance=1e-7)
    assert set(capture.tables) == {"model.transformer.wpe"}
    assert "model.transformer.wte.weight" in capture.dense


def test_llama(check):
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    check(Logits(transformers.LlamaForCausalLM(config).double().train()), *text(), tolerance=1e-5)


def test_adapters_and_word_embeddings(check):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], lora_dropout=0.0)
    model = peft.get_peft_model(bert(), config)
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name:
            parameter.requires_grad_(True)
        if "lora_B" in name:
            nn.init.normal_(parameter)
    capture = check(Logits(model.double().train()), *text(), tolerance=1e-7)
    assert [name.rpartition(".")[2] for name in capture.tables] == ["word_embeddings"]
    assert all("lora_" in name for name in capture.dense)
    assert len(capture.dense) == 8


def test_adapters_on_an_embedding(check):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["word_embeddings"], lora_dropout=0.0)
    model = peft.get_peft_model(bert(), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)
    capture = check(Logits(model.double().train()), *text(), tolerance=1e-7)
    assert len(capture.dense) == 2
