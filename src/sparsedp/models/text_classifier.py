"""A classifier on a pretrained Hugging Face encoder, with LoRA and a word embedding that may be trained sparsely."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparsedp.core.extras import require

Embedding = Literal["full", "frozen", "lora"]
Pooling = Literal["mean", "first"]

_SPARE_ROWS = 512
"""Word embeddings are often padded to a round number of rows; a larger difference is another vocabulary."""


class TextClassifier(nn.Module):
    """``head(pooled encoder states)``: logits of (input_ids, attention_mask, token_type_ids).

    Pads do not reach the pooled state, so that a text's logits do not depend on the batch it is padded in.
    """

    def __init__(self, encoder: nn.Module, classes: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise ValueError(f"pooling: must be 'mean' or 'first', not {pooling!r}")
        if classes < 2:
            raise ValueError(f"classes: must be at least 2, got {classes}")
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.pooling = pooling

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """One row of logits a text."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        if self.pooling == "first":
            return self.head(states[:, 0])  # type: ignore[no-any-return]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * mask).sum(1) / mask.sum(1))  # type: ignore[no-any-return]

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The mean cross entropy of a batch of ``TextData``."""
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        return cross_entropy(self(**inputs), batch["labels"])

    @property
    def word_embedding(self) -> str:
        """The name of the word embedding's module: the table that selection rules choose rows of."""
        words = word_embedding_of(self.encoder)
        return str(next(name for name, module in self.named_modules() if module is words))


def load_tokenizer(source: str | Path) -> Any:
    """The tokeniser in a local folder, or in an installed package that carries one."""
    require("transformers", "tokenizers")
    import transformers

    folder = model_folder(source)
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model: {folder} has no tokeniser that can be read ({_first_line(error)})"
        ) from None


def untrained_encoder(source: str | Path) -> nn.Module:
    """The encoder's architecture alone, without memory for its weights."""
    require("transformers")
    import transformers

    with torch.device("meta"):
        encoder = transformers.AutoModel.from_config(_encoder_config(model_folder(source)))  # type: ignore[no-untyped-call]
    assert isinstance(encoder, nn.Module)
    return encoder


def load_text_classifier(
    source: str | Path,
    *,
    classes: int = 2,
    tokenizer: Any = None,
    embedding: Embedding = "full",
    lora_rank: int = 8,
    lora_targets: Sequence[str] | None = None,
    embedding_rank: int = 8,
    pooling: Pooling = "mean",
    dropout: float = 0.0,
    rows: int | None = None,
) -> TextClassifier:
    """A classifier on the encoder in a local folder, or in an installed package that carries one.

    Trainable are a new head, LoRA adapters of rank ``lora_rank`` in the layers named ``lora_targets`` (default:
    peft's choice for the architecture, mostly the query and value projections; rank 0: none), and of the word
    embedding everything ("full"), nothing ("frozen") or an adapter of ``embedding_rank`` ("lora"). Everything else
    is frozen, positions and types too. With a ``tokenizer`` its vocabulary must be the encoder's. ``rows``: cut the word
    embedding to its first rows, for a small copy of the model.
    """
    require("transformers", "peft")
    import transformers

    if embedding not in ("full", "frozen", "lora"):
        raise ValueError(f"embedding: must be 'full', 'frozen' or 'lora', not {embedding!r}")
    folder = model_folder(source)
    config = _encoder_config(folder)
    _set_dropout(config, dropout)
    try:
        with _quiet():
            encoder = transformers.AutoModel.from_pretrained(folder, config=config, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"model: {folder} has no encoder that can be read ({_first_line(error)})") from None
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # the head pools itself
    if tokenizer is not None:
        check_vocabulary(tokenizer, encoder)
    encoder.requires_grad_(False)
    words = word_embedding_of(encoder)
    if rows is not None:
        _cut_rows(words, rows)
    if embedding == "full":
        words.sparse = True
        words.weight.requires_grad_(True)
    _add_adapters(encoder, lora_rank, lora_targets, embedding_rank if embedding == "lora" else 0)
    return TextClassifier(encoder, classes, pooling=pooling).train()


def word_embedding_of(encoder: nn.Module) -> nn.Embedding:
    """The table of input tokens."""
    words = encoder.get_input_embeddings()  # type: ignore[operator]
    words = getattr(words, "base_layer", words)  # within an adapter
    if not isinstance(words, nn.Embedding):
        raise ValueError(f"model: its word embedding is a {type(words).__name__}, not a torch Embedding")
    return words


def _cut_rows(words: nn.Embedding, rows: int) -> None:
    """Only the first rows; a pad that is not among them is none any more."""
    words.weight = nn.Parameter(words.weight[:rows].detach().clone(), requires_grad=False)
    words.num_embeddings = len(words.weight)
    if words.padding_idx is not None and words.padding_idx >= rows:
        words.padding_idx = None


def check_vocabulary(tokenizer: Any, encoder: nn.Module) -> None:
    """Refuse a tokeniser that was not made for the encoder; make pads neither train nor count."""
    words = word_embedding_of(encoder)
    size, rows = len(tokenizer), words.num_embeddings
    if size > rows or rows - size > _SPARE_ROWS:
        raise ValueError(
            f"tokenizer: has {size} tokens and the model's word embedding {rows} rows; give the tokeniser that the model "
            "was trained with (after adding tokens, call resize_token_embeddings on the model)"
        )
    pad = tokenizer.pad_token_id
    if pad is not None and words.padding_idx not in (None, pad):
        raise ValueError(
            f"tokenizer: pads with id {pad} and the model with id {words.padding_idx}; give the tokeniser that the model "
            "was trained with"
        )
    words.padding_idx = pad


def most_tokens(encoder: nn.Module) -> int | None:
    """How many tokens the encoder's absolute positions allow; None where they set no limit."""
    config: Any = encoder.config
    positions = getattr(config, "max_position_embeddings", None)
    table = next((m for n, m in encoder.named_modules() if n.endswith("position_embeddings")), None)
    if positions is None or not isinstance(table, nn.Embedding):
        return positions
    # RoBERTa numbers positions from the padding index on.
    reserved = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(table.num_embeddings) - reserved


def model_folder(source: str | Path) -> Path:
    """A local folder with a ``config.json``, or that of an installed package (itself, or its folder ``model``)."""
    folder = Path(source)
    if (folder / "config.json").is_file():
        return folder
    name = str(source).replace("-", "_")
    if name.isidentifier():
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            for candidate in (Path(place), Path(place) / "model"):
                if (candidate / "config.json").is_file():
                    return candidate
    raise ValueError(
        f"model: {source} is neither a folder with a config.json nor an installed package that carries one; nothing "
        "is downloaded"
    )


def _encoder_config(folder: Path) -> Any:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"model: {folder} has no encoder that can be read ({_first_line(error)})") from None
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"model: {config.model_type} is an encoder with a decoder; give an encoder alone")
    return config


def _add_adapters(encoder: nn.Module, rank: int, targets: Sequence[str] | None, embedding_rank: int) -> None:
    """LoRA in the targets, and in the word embedding where it has a rank."""
    if rank < 0 or embedding_rank < 0:
        raise ValueError(
            f"lora_rank and embedding_rank must not be negative, got {rank} and {embedding_rank}"
        )
    if not rank and not embedding_rank:
        return
    import peft

    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    words = word_embedding_of(encoder)
    table = next(name for name, module in encoder.named_modules() if module is words)
    if targets is None:
        kind = str(encoder.config.model_type)  # type: ignore[union-attr]
        targets = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind)
        if targets is None and rank:
            raise ValueError(f"lora_targets: must be given for {kind} models")
    chosen = [*(targets if rank and targets else ()), *([table] if embedding_rank else ())]
    config = peft.LoraConfig(
        r=rank or embedding_rank,
        lora_alpha=2 * (rank or embedding_rank),
        target_modules=chosen,
        lora_dropout=0.0,
        rank_pattern={table: embedding_rank} if embedding_rank else {},
        alpha_pattern={table: 2 * embedding_rank} if embedding_rank else {},
    )
    try:
        peft.inject_adapter_in_model(config, encoder)
    except ValueError as error:
        raise ValueError(f"lora_targets: {_first_line(error)}") from None
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("lora_" in name)
    for parameter in trained:
        parameter.requires_grad_(True)


def _set_dropout(config: Any, rate: float) -> None:
    """Under noise dropout only costs accuracy; every rate that the architecture has is set."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):  # hidden_dropout_prob, resid_pdrop, layerdrop, ...
            setattr(config, name, rate)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar and its report on weights of other heads, which are left out here."""
    import transformers

    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
