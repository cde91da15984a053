"""A trained model as a folder that plain PyTorch serves, without this package.

The folder holds the model's computation as a `torch.export` program whose weights are an argument (`model.pt2`, a graph
without weights or pickled objects), the weights and tables (`model.safetensors`), the rules from raw values to ids
(`encoding.json`, with vocabularies `encoding.safetensors`), the privacy statement, and a script that uses them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.durable import new_folder, write_file
from sparsedp.data import schema as schemas
from sparsedp.data.encoding import Encoding
from sparsedp.data.schema import Schema
from sparsedp.runs import serve
from sparsedp.runs.folder import RunFolder, refuse_prepared
from sparsedp.runs.model_folder import (
    DESCRIPTION,
    FORMAT,
    PROGRAM,
    STATEMENT,
    WEIGHTS,
    Build,
    ModelFolder,
    Program,
    read_statement,
)
from sparsedp.runs.prediction import TrainedModel
from sparsedp.runs.result import NOT_PRIVATE
from sparsedp.runs.unfinished import write_unfinished

Inputs = tuple[Tensor, Tensor, tuple[tuple[Tensor, Tensor], ...]]
TOLERANCE = 1e-6

README = """# A click model for PyTorch

{privacy}
{vocabulary}
- `model.pt2`: the computation, a `torch.export` program: `program(weights, numeric, ids, bags)` gives one logit a row
- `model.safetensors`: the weights and tables, which are its first argument
- `encoding.json` (with vocabularies `encoding.safetensors`): how raw columns become `numeric`, `ids` and `bags`
- `schema.json`: the columns as they were prepared
- `statement.json`: the privacy statement
- `serve.py`: all of this in use, with torch and safetensors alone: `python serve.py rows.csv > scores.csv`
"""


def export_run(
    run: str | Path,
    out: str | Path,
    *,
    trust: bool = False,
    model: Build | None = None,
    unfinished: bool = False,
) -> TrainedModel:
    """Write the model of a finished run to the new folder ``out``, check that it predicts the same, and return it.

    A run of a model of one's own is exported with ``trust=True`` or its class as ``model``. ``unfinished`` takes a run's
    last checkpoint, where the guarantee allows a release before the end; the statement is then of what was spent.
    """
    source = ModelFolder.open(run, unfinished=unfinished)
    if source.is_exported:
        raise ValueError(f"{run} is an exported model already")
    source.check_trust(trust or (source.is_finished and model is not None))
    schema, encoding = source.schema(), Encoding.read(source.path)
    refuse_prepared(Path(out))
    with new_folder(Path(out)) as folder:
        if source.is_finished:
            shutil.copyfile(source.path / WEIGHTS, folder / WEIGHTS)
            statement = read_statement(source.path)
        else:
            statement = write_unfinished(RunFolder(source.path), folder / WEIGHTS)
        copied = replace(source, path=folder)
        module = copied.module(schema, trust=trust, model=model).eval()
        weights = copied.weights()
        _write_program(module, weights, schema, folder / PROGRAM)
        _check_program(module, folder, schema)
        encoding.write(folder)
        write_file(folder / schemas.FILE, schema.to_json())
        _write_texts(folder, source, schema, statement)
    return TrainedModel(module, encoding, schema, statement)


class _Computation(nn.Module):
    """A model's forward with the weights as an argument. The model is no submodule: its weights are not exported."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._hidden = (module,)

    def forward(
        self,
        weights: Mapping[str, Tensor],
        numeric: Tensor,
        ids: Tensor,
        bags: tuple[tuple[Tensor, Tensor], ...],
    ) -> Tensor:
        """One logit an example."""
        logits: Tensor = torch.func.functional_call(self._hidden[0], dict(weights), (numeric, ids, *bags))
        return logits


def _write_program(module: nn.Module, weights: dict[str, Tensor], schema: Schema, path: Path) -> None:
    """Trace the model for any number of rows, and write the graph alone."""
    inputs = _inputs(schema, 5)
    batch = torch.export.Dim("batch")
    bags = tuple(({0: torch.export.Dim.DYNAMIC}, {0: batch}) for _ in inputs[2])
    shapes = (dict.fromkeys(weights), {0: batch}, {0: batch}, bags)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(_Computation(module), (weights, *inputs), dynamic_shapes=shapes)
            program.example_inputs = None  # they would be written too, weights and all
            torch.export.save(program, path)
    except Exception as error:  # torch raises errors of many kinds here
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"model: torch.export cannot write its computation ({reason})") from error


def _check_program(module: nn.Module, folder: Path, schema: Schema) -> None:
    """Refuse a program that computes something else, for one row or several."""
    program = Program(folder)
    for rows in (1, 5, 64):
        numeric, ids, bags = _inputs(schema, rows)
        with torch.no_grad():
            here, there = module(numeric, ids, *bags), program(numeric, ids, *bags)
        if not torch.allclose(
            torch.sigmoid(here), torch.sigmoid(there), rtol=0, atol=TOLERANCE, equal_nan=True
        ):
            raise ValueError(f"model: its exported computation gives other predictions for {rows} rows")


def _inputs(schema: Schema, rows: int) -> Inputs:
    """Rows that differ from each other, with bags of zero to three values."""
    number = torch.arange(rows)
    numbers = [torch.sin(number + 1.7 * at) for at in range(len(schema.numeric))]
    numeric = torch.stack(numbers, 1) if numbers else torch.zeros(rows, 0)
    columns = [(7 * number + at) % each.rows for at, each in enumerate(schema.categorical)]
    ids = torch.stack(columns, 1) if columns else torch.zeros(rows, 0, dtype=torch.long)
    lengths = number % 4
    offsets = torch.cumsum(lengths, 0) - lengths
    values = torch.arange(int(lengths.sum()))
    return numeric, ids, tuple((values * 5 % each.rows, offsets) for each in schema.multi_hot)


def _write_texts(
    folder: Path, source: ModelFolder, schema: Schema, statement: PrivacyStatement | None
) -> None:
    privacy = NOT_PRIVATE if statement is None else str(statement)
    fields: dict[str, Any] = {"private": False} if statement is None else statement.to_dict()
    fields |= {"text": privacy, "vocabulary": schema.vocabulary_statement}
    write_file(folder / STATEMENT, json.dumps(fields, indent=2) + "\n")
    description = {"format": FORMAT, "model": source.model, "options": source.options}
    write_file(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")
    learned = schema.vocabulary_statement
    vocabulary = "" if learned is None else f"\nThe vocabulary, which is a release of its own: {learned}\n"
    write_file(folder / "README.md", README.format(privacy=f"**{privacy}**", vocabulary=vocabulary))
    shutil.copyfile(serve.__file__, folder / "serve.py")
