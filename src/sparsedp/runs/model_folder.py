"""The files that a trained model is loaded from: a finished run's folder, or one that `export` wrote.

A folder may be anyone's: loading it reads data and runs nothing. The two that would run something are asked for by
`trust`: importing a model that is not one of ours, and an exported program (torch reads it with code of its own
that evaluates texts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.text_files import read_json_object, read_text
from sparsedp.data.encoding import Encoding
from sparsedp.data.schema import Schema
from sparsedp.models.loading import BUILT_IN
from sparsedp.models.loading import load_model as build_model
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.prediction import TrainedModel
from sparsedp.runs.text_config import TextConfig

DESCRIPTION = "model.json"
WEIGHTS = "model.safetensors"
PROGRAM = "model.pt2"
STATEMENT = "statement.json"
FORMAT = "sparsedp-model-1"

Build = Callable[..., nn.Module]


def load(folder: str | Path, *, trust: bool = False, model: Build | None = None) -> TrainedModel:
    """The model in the folder of a finished run, or in an exported one, ready to predict.

    Loading runs no code of the folder. A model of one's own (``package.module:Name``) is imported, or an exported
    program run, only with ``trust=True``; or give its class as ``model``. Texts: see ``docs/serving.md``.
    """
    return ModelFolder.open(folder).load(trust=trust, model=model)


@dataclass(frozen=True)
class ModelFolder:
    """What describes a model: its name, its options, and whether the folder was exported."""

    path: Path
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    is_exported: bool = False

    @classmethod
    def open(cls, folder: str | Path, *, unfinished: bool = False) -> ModelFolder:
        """Read the description; refuse a folder without a finished model, unless that is asked for."""
        path, run = Path(folder), RunFolder(folder)
        if not path.is_dir():
            raise ValueError(f"{folder} is no folder")
        if (path / DESCRIPTION).exists():
            found = cls._exported(path)
        elif run.has_config:
            config = run.config()
            if isinstance(config, TextConfig):
                raise ValueError(
                    f"{folder} holds a text classifier: `sparsedp predict` predicts with it, and its encoder is served with "
                    "Hugging Face's save_pretrained (docs/serving.md)"
                )
            found = cls(path, config.model, config.model_options)
        else:
            raise ValueError(f"{folder} holds neither a run nor an exported model")
        if not (unfinished or found.is_finished):
            raise run.incomplete()
        return found

    @property
    def is_finished(self) -> bool:
        """Whether the weights are there."""
        return (self.path / WEIGHTS).exists()

    @classmethod
    def _exported(cls, path: Path) -> ModelFolder:
        try:
            fields = read_json_object(path / DESCRIPTION)
            if fields["format"] != FORMAT or not isinstance(fields["model"], str):
                raise ValueError(f"not of the format {FORMAT}")
            return cls(path, fields["model"], dict(fields["options"]), is_exported=True)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path / DESCRIPTION} does not describe a model ({error})") from error

    def load(self, *, trust: bool = False, model: Build | None = None) -> TrainedModel:
        """The model, ready to predict (see ``load``)."""
        schema = self.schema()
        return TrainedModel(
            self.module(schema, trust=trust, model=model),
            Encoding.read(self.path),
            schema,
            read_statement(self.path),
        )

    def schema(self) -> Schema:
        """The columns that the model was made for."""
        path = self.path / "schema.json"
        if not path.exists():
            raise ValueError(
                f"{self.path} has no schema.json: it was trained by an earlier version; train again to predict"
            )
        return Schema.from_json(read_text(path))

    def module(self, schema: Schema, *, trust: bool = False, model: Build | None = None) -> nn.Module:
        """The torch module with its weights."""
        if model is not None:
            return self._own(schema, model)
        if self.model in BUILT_IN:
            with torch.device("meta"), _Unfilled():  # no memory is filled before the weights are there
                module = self._build(schema, self.model)
            return self._fill(module)
        self.check_trust(trust)
        if self.is_exported:
            return Program(self.path)
        return self._own(schema, None)

    def check_trust(self, trust: bool) -> None:
        """Refuse to run code that is not ours unless that was asked for."""
        if self.model not in BUILT_IN and not trust:
            raise ValueError(
                f"model: {self.model} of {self.path} is not one of {', '.join(BUILT_IN)}, and loading it runs code; pass "
                "trust=True (--trust) if you trust the folder, or its class as model="
            )

    def weights(self) -> dict[str, Tensor]:
        """The weights by name."""
        try:
            return load_file(self.path / WEIGHTS)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self.path / WEIGHTS} cannot be read ({error})") from error

    def _build(self, schema: Schema, model: str | Build) -> nn.Module:
        if isinstance(model, str):
            return build_model(model, schema, **self.options)
        build = getattr(model, "from_schema", model)
        try:
            module = build(schema, **self.options)
        except TypeError as error:
            raise ValueError(f"model cannot be built with options {sorted(self.options)}: {error}") from error
        if not isinstance(module, nn.Module):
            raise ValueError(f"model gave a {type(module).__name__}, not a torch module")
        return module

    def _fill(self, module: nn.Module) -> nn.Module:
        """Put the weights into a module without memory."""
        weights = self.weights()
        try:
            module.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ValueError(f"{self.path / WEIGHTS} does not fit the model ({_line(error)})") from error
        return module.requires_grad_(False)

    def _own(self, schema: Schema, model: Build | None) -> nn.Module:
        """A model of one's own. Buffers that the weights lack stay as they were built: they were not released."""
        module = self._build(schema, model or self.model)
        try:
            missing, unexpected = load_model(module, str(self.path / WEIGHTS), strict=False)
        except (SafetensorError, RuntimeError, OSError) as error:
            raise ValueError(f"{self.path / WEIGHTS} does not fit the model ({_line(error)})") from error
        lost = sorted({*missing} & {name for name, _ in module.named_parameters()})
        if lost or unexpected:
            raise ValueError(
                f"{self.path / WEIGHTS} does not fit the model (missing: {lost}, unexpected: {sorted(unexpected)})"
            )
        return module.requires_grad_(False)


class _Unfilled(TorchFunctionMode):
    """Leaves out first values: without memory they fill nothing, and take torch longer than all the rest."""

    _FILLS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in self._FILLS:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


class Program(nn.Module):
    """An exported program with its weights: torch alone runs it, the model's own code is not needed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        if not is_zipfile(folder / PROGRAM):
            raise ValueError(f"{folder / PROGRAM} is no exported program")
        try:
            self._program = torch.export.load(folder / PROGRAM).module()
            self._weights = load_file(folder / WEIGHTS)
        except Exception as error:  # torch raises errors of many kinds here
            raise ValueError(f"{folder / PROGRAM} cannot be loaded ({_line(error)})") from error

    def forward(self, numeric: Tensor, ids: Tensor, *bags: tuple[Tensor, Tensor]) -> Tensor:
        """One logit an example."""
        logits: Tensor = self._program(self._weights, numeric, ids, bags)
        return logits

    def train(self, mode: bool = True) -> Program:
        """A program has no modes: it was exported for evaluation."""
        return self


def read_statement(folder: Path) -> PrivacyStatement | None:
    """The privacy statement in a folder; None where there is none, for a model trained without privacy."""
    path = folder / STATEMENT
    if not path.exists():
        return None
    fields = read_json_object(path)
    return PrivacyStatement.from_dict(fields, str(path)) if "epsilon" in fields else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
