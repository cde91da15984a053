"""Small Hugging Face models with random weights, as the language engineer fine-tunes them, and padded batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LABELS = 40, 8, 2
LENGTHS = (5, 2, 7, 4, 6, 3)

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": LABELS,
}


def encoder(kind: str) -> nn.Module:
    """A classifier on a small encoder: bert, roberta or xlm-roberta; weights large enough for gradients to differ."""
    import transformers

    names = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
    config = getattr(transformers, f"{names[kind]}Config")(**_SIZES)
    torch.manual_seed(1)
    model = getattr(transformers, f"{names[kind]}ForSequenceClassification")(config)
    return randomised(model)


def other(kind: str) -> nn.Module:
    """A classifier on a small model of another architecture, with pads of id 0 (MPNet: 1)."""
    import transformers

    few = {"vocab_size": VOCABULARY, "num_labels": LABELS, "pad_token_id": 0, "max_position_embeddings": 16}
    sizes = {
        **few,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
    }
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_dropout": 0.0}
    gpt2_sizes = {
        "n_embd": WIDTH,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    ends = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    distil = {
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 12,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    options = {
        "DistilBert": {**few, **distil, "seq_classif_dropout": 0.0},
        "Albert": {**sizes, **dropout, "embedding_size": 6, "classifier_dropout_prob": 0.0},
        "Electra": {**sizes, **dropout, "embedding_size": 6},
        "MPNet": {**sizes, **dropout, "pad_token_id": 1},
        "DebertaV2": {**sizes, **dropout, **relative},
        "ModernBert": {**sizes, **ends},
        "GPT2": {**few, **gpt2_sizes},
        "OPT": {**sizes, "ffn_dim": 12, "dropout": 0.0, "word_embed_proj_dim": 6},
        "Llama": {**sizes, "num_key_value_heads": 1},
        "Qwen3": {**sizes, "num_key_value_heads": 1, "head_dim": 4},
    }
    config = getattr(transformers, f"{kind}Config")(**options[kind])
    torch.manual_seed(1)
    return randomised(getattr(transformers, f"{kind}ForSequenceClassification")(config))


def gpt2() -> nn.Module:
    """A causal language model whose output layer is its word embedding."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=WIDTH,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    torch.manual_seed(1)
    return randomised(transformers.GPT2LMHeadModel(config))


def randomised(model: nn.Module) -> nn.Module:
    """Every weight matrix drawn anew: the initial ones of Hugging Face are too small to tell gradients apart."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.4)
    return model.train()


def with_adapters(model: nn.Module, embedding: str, **changes: Any) -> nn.Module:
    """LoRA in the attention blocks and a trainable head; the word embedding is "full", "frozen" or "lora"."""
    import peft

    targets = ["query", "value"] + (["word_embeddings"] if embedding == "lora" else [])
    options = {"r": 2, "lora_alpha": 4, "target_modules": targets, "lora_dropout": 0.0, **changes}
    return adapted(model, peft.LoraConfig(task_type="SEQ_CLS", **options), full=embedding == "full")


def adapted(model: nn.Module, config: Any, *, full: bool = True) -> nn.Module:
    """The model with peft's adapters, none of them zero, and its word embedding trainable where ``full``."""
    import peft

    made = peft.get_peft_model(model, config)
    if full:
        made.get_input_embeddings().weight.requires_grad_(True)
    for name, parameter in made.named_parameters():
        if "lora_" in name and parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return made.train()


def sentences(first: int = 3, seed: int = 0) -> list[Tensor]:
    """Ids of sentences of several lengths, with words that repeat within and between them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(first, first + 12, (length,), generator=generator) for length in LENGTHS]


def padded(texts: list[Tensor], pad: int) -> dict[str, Tensor]:
    """The sentences as one batch, as a tokeniser pads them."""
    longest = max(map(len, texts))
    ids = torch.full((len(texts), longest), pad)
    mask = torch.zeros_like(ids)
    for n, text in enumerate(texts):
        ids[n, : len(text)] = text
        mask[n, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def labels() -> Tensor:
    return torch.arange(len(LENGTHS)) % LABELS


def table_of(model: nn.Module) -> str:
    """The name of the word embedding's module."""
    words = model.get_input_embeddings()  # type: ignore[operator]
    words = getattr(words, "base_layer", words)  # within an adapter
    return next(name for name, module in model.named_modules() if module is words)


def logits(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return model(**batch).logits  # type: ignore[no-any-return]


WORDS = ("the", "film", "is", "a", "good", "bad", "dull", "fine", "plot", "story", "very", "not")


def tokenizer(kind: str = "bert", limit: int = 16) -> Any:
    """A word tokeniser with the special tokens of BERT (pad 0) or RoBERTa (pad 1)."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] if kind == "bert" else ["<s>", "<pad>", "</s>", "<unk>"]
    names = [*special, *WORDS]
    names += [f"word{n}" for n in range(VOCABULARY - len(names))]
    first, pad, last, unknown = (1, 0, 2, 3) if kind == "bert" else (0, 1, 2, 3)
    made = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token=special[unknown]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(special[first], first), (special[last], last)]
    made.post_processor = processors.TemplateProcessing(
        single=f"{special[first]} $A {special[last]}",
        pair=f"{special[first]} $A {special[last]} $B:1 {special[last]}:1",
        special_tokens=ends,
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=special[pad],
        cls_token=special[first],
        sep_token=special[last],
        unk_token=special[unknown],
        model_max_length=limit,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
    )


def reviews(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Made-up reviews with their labels: good and fine are positive, bad and dull are not."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for n in range(count):
        length = int(torch.randint(1, 7, (), generator=generator))
        fillers = [WORDS[int(i)] for i in torch.randint(0, 4, (length,), generator=generator)]
        verdict = WORDS[4 + 3 * (n // 2 % 2)] if n % 2 else WORDS[5 + n // 2 % 2]
        made.append((" ".join([*fillers, verdict]), str(n % 2)))
    return made


def write_reviews(path: Any, count: int, seed: int = 0) -> None:
    """A GLUE-style file."""
    lines = ["sentence\tlabel", *("\t".join(each) for each in reviews(count, seed))]
    path.write_text("\n".join(lines) + "\n")


def write_model(folder: Any, kind: str = "bert", **changes: Any) -> None:
    """A small encoder with its tokeniser, as Hugging Face saves them."""
    import transformers

    names = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
    config = getattr(transformers, f"{names[kind]}Config")(**(_SIZES | changes))
    torch.manual_seed(2)
    getattr(transformers, f"{names[kind]}Model")(config).save_pretrained(folder)
    tokenizer(kind).save_pretrained(folder)
