"""A model by name: one of ours, or anyone's by its import path."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from sparsedp.data.schema import Schema

BUILT_IN = {"pctr": "sparsedp.models.pctr:PCTR", "dlrm": "sparsedp.models.dlrm:DLRM"}


def load_model(name: str, schema: Schema, **options: Any) -> nn.Module:
    """Build the model `name` for data of a schema: "pctr", "dlrm", or "package.module:Name".

    `Name` is a class with a class method `from_schema(schema, **options)`, or anything that can be called
    with `(schema, **options)`, and gives a torch module whose `forward(numeric, ids, *bags)` returns one
    logit an example.
    """
    made_by = _find(BUILT_IN.get(name, name), name)
    build = getattr(made_by, "from_schema", made_by)
    if not callable(build):
        raise ValueError(f"model {name}: {made_by!r} cannot be called to make a model")
    try:
        model = build(schema, **options)
    except TypeError as error:
        raise ValueError(f"model {name} cannot be built with options {sorted(options)}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name} gave a {type(model).__name__}, not a torch module")
    return model


def _find(path: str, name: str) -> Any:
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        known = ", ".join(BUILT_IN)
        raise ValueError(
            f"model must be one of {known}, or an import path 'package.module:Name', got {name!r}"
        )
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"model {name}: cannot import {module_name} ({error})") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise ValueError(f"model {name}: {module_name} has no {attribute}")
        target = getattr(target, part)
    return target
