"""How raw values become what a model reads: the rules of a preparation, in files that travel with a model.

`encoding.json` holds the columns and their rules, `encoding.safetensors` the keys of the vocabularies. Both are
plain data: reading them runs nothing. They hold no row of the data; a vocabulary is what its preparation released.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sparsedp.core.arrays import I64
from sparsedp.core.durable import write_file
from sparsedp.core.text_files import read_json_object
from sparsedp.data.examples import NUMERIC_RULE
from sparsedp.data.hashing import MAX_ROWS, check_rows
from sparsedp.data.rules import HashRule, IdRule, VocabularyRule
from sparsedp.data.scales import Scale
from sparsedp.data.schema import Feature, Schema

FILE = "encoding.json"
KEYS_FILE = "encoding.safetensors"
FORMAT = "sparsedp-encoding-1"

HASH, VOCABULARY, IDS = "hash", "vocabulary", "ids"
RULES = (HASH, VOCABULARY, IDS)
TEXT, HEX = "text", "hex"


def is_text(kind: pl.DataType) -> bool:
    """Whether values of a type have one text, in every file format: texts themselves, and integers."""
    return kind.is_integer() or isinstance(kind, pl.String | pl.Categorical | pl.Enum)


class MissingEncoding(ValueError):
    """A folder has no encoding: its data was prepared before there was one."""


@dataclass(frozen=True)
class EncodedFeature:
    """A feature: the raw columns it is made of (several are crossed), its rule, and the height of its table.

    The rule "hash" and "vocabulary" are those of `sparsedp.data.rules`; with "ids" a value is its own id.
    `separator` cuts the texts of a multi-hot column.
    """

    name: str
    columns: tuple[str, ...]
    rule: str
    rows: int
    separator: str | None = None

    @classmethod
    def of(
        cls, name: str, columns: tuple[str, ...], rule: IdRule, *, separator: str | None = None
    ) -> EncodedFeature:
        """The feature of a rule of a preparation."""
        kind = VOCABULARY if isinstance(rule, VocabularyRule) else HASH
        return cls(name, columns, kind, rule.rows, separator)


@dataclass(frozen=True, eq=False)
class Encoding:
    """The rules from raw columns to the numbers and ids of a model, in the order in which it takes them.

    `types` says what a raw column of values held when it was prepared, where that was neither text nor integers
    (whose ids are those of their texts): "hex" for eight hex digits in either case, or the name of a polars type.
    `nulls` are texts that mean a missing value. `header` names the columns of files that have no header line,
    the label first. `label` and `time` are not needed for a prediction. `derived` columns must be given
    like any other; the text says how the preparation made them.
    """

    numeric: tuple[str, ...]
    categorical: tuple[EncodedFeature, ...]
    multi_hot: tuple[EncodedFeature, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    header: tuple[str, ...] | None = None
    label: str | None = None
    time: str | None = None
    derived: Mapping[str, str] = field(default_factory=dict)
    numeric_rule: str = NUMERIC_RULE
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """Public bounds of numeric columns; `numeric_rule` is for the others."""
    keys: Mapping[str, I64] = field(default_factory=dict)
    """The keys of every feature with a vocabulary."""

    @property
    def features(self) -> tuple[EncodedFeature, ...]:
        """All features."""
        return (*self.categorical, *self.multi_hot)

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that a prediction needs, each once."""
        values = (column for feature in self.features for column in feature.columns)
        return tuple(dict.fromkeys([*self.numeric, *values]))

    def rule_of(self, feature: EncodedFeature) -> IdRule:
        """The rule from hashes to ids of a feature that is hashed or has a vocabulary."""
        if feature.rule == VOCABULARY:
            return VocabularyRule(self.keys[feature.name])
        return HashRule(feature.rows)

    def with_keys(self, rules: Mapping[str, IdRule]) -> Encoding:
        """The same with the keys of the rules that are vocabularies."""
        names = [feature.name for feature in self.features]
        keys = {name: rule.keys for name in names if isinstance(rule := rules[name], VocabularyRule)}
        return dataclasses.replace(self, keys=keys)

    def write(self, folder: Path) -> None:
        """Write both files (the second where there are vocabularies), the description last."""
        if self.keys:
            from safetensors.numpy import save

            arrays = {name: np.ascontiguousarray(keys, "<i8") for name, keys in self.keys.items()}
            write_file(folder / KEYS_FILE, save(arrays))
        write_file(folder / FILE, self.to_json())

    def to_json(self) -> str:
        """Return the text of `encoding.json`."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        fields |= {
            name: [dataclasses.asdict(f) for f in fields[name]] for name in ("categorical", "multi_hot")
        }
        fields["scales"] = {name: dataclasses.asdict(scale) for name, scale in self.scales.items()}
        del fields["keys"]
        return json.dumps({"format": FORMAT, **fields}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: str | Path) -> Encoding:
        """Read the files of a folder; anything that is not of the format is refused."""
        path = Path(folder) / FILE
        if not path.exists():
            raise MissingEncoding(
                f"encoding: {folder} has no {FILE}; run the same `sparsedp prepare` again on its data, which adds it, "
                "and train again"
            )
        try:
            encoding = _from_fields(read_json_object(path))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"encoding: {path} is not a {FORMAT} description ({reason})") from error
        listed = [feature for feature in encoding.features if feature.rule == VOCABULARY]
        if not listed:
            return encoding
        return dataclasses.replace(encoding, keys=_read_keys(Path(folder) / KEYS_FILE, listed))

    def require_schema(self, schema: Schema) -> None:
        """Refuse an encoding that is not the one of the data that a schema describes."""
        here = (self.numeric, _heights(self.categorical), _heights(self.multi_hot))
        there = (schema.numeric, _heights(schema.categorical), _heights(schema.multi_hot))
        if here != there:
            raise ValueError("encoding: has other columns than the schema beside it")
        if dict(self.scales) != {name: Scale(low, high) for name, low, high in schema.scales}:
            raise ValueError("encoding: scales numeric columns otherwise than the schema beside it")


def _heights(features: tuple[EncodedFeature, ...] | tuple[Feature, ...]) -> list[tuple[str, int]]:
    return [(feature.name, feature.rows) for feature in features]


def _read_keys(path: Path, listed: list[EncodedFeature]) -> dict[str, I64]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if not path.exists():
        raise ValueError(f"encoding: the vocabularies are missing: there is no {path}")
    try:
        arrays = load(path.read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"encoding: {path} cannot be read ({error})") from error
    for feature in listed:
        keys = arrays.get(feature.name)
        if keys is None or keys.dtype != np.int64 or keys.shape != (feature.rows - 1,):
            raise ValueError(
                f"encoding: {path} has no vocabulary of {feature.rows - 1} keys for {feature.name}"
            )
    return {feature.name: arrays[feature.name] for feature in listed}


def _from_fields(fields: dict[str, Any]) -> Encoding:
    """Check every field: the folder may be anyone's."""
    if fields.pop("format") != FORMAT:
        raise ValueError("it has another format")
    if fields["numeric_rule"] != NUMERIC_RULE:
        raise ValueError(f"this version does not know the numeric rule {fields['numeric_rule']!r}")
    encoding = Encoding(
        numeric=_texts(fields["numeric"]),
        categorical=tuple(_feature(each, multi_hot=False) for each in fields["categorical"]),
        multi_hot=tuple(_feature(each, multi_hot=True) for each in fields["multi_hot"]),
        types=_mapping(fields["types"]),
        nulls=_texts(fields["nulls"]),
        header=None if fields["header"] is None else _texts(fields["header"]),
        label=_optional(fields["label"]),
        time=_optional(fields["time"]),
        derived=_mapping(fields["derived"]),
        scales={_text(name): _scale(bounds) for name, bounds in fields.get("scales", {}).items()},
    )
    if not encoding.features:
        raise ValueError("it has no features")
    if not encoding.scales.keys() <= set(encoding.numeric):
        raise ValueError("it scales columns that are not numeric")
    return encoding


def _feature(fields: dict[str, Any], *, multi_hot: bool) -> EncodedFeature:
    feature = EncodedFeature(
        name=_text(fields["name"]),
        columns=_texts(fields["columns"]),
        rule=_text(fields["rule"]),
        rows=fields["rows"],
        separator=_optional(fields["separator"]),
    )
    if feature.rule not in RULES:
        raise ValueError(f"{feature.name}: there is no rule {feature.rule!r}")
    if type(feature.rows) is not int or not 1 <= feature.rows <= MAX_ROWS:
        raise ValueError(f"{feature.name}: rows must lie in 1..{MAX_ROWS}, got {feature.rows!r}")
    if feature.rule == HASH:
        check_rows(feature.rows, f"{feature.name}: rows")
    if len(feature.columns) < 1 or (len(feature.columns) > 1 and (multi_hot or feature.rule == IDS)):
        raise ValueError(f"{feature.name}: cannot be made of {len(feature.columns)} columns")
    if multi_hot and (not feature.separator or feature.rule == IDS):
        raise ValueError(f"{feature.name}: a multi-hot feature has a separator, and no ids of its own")
    return feature


def _scale(bounds: Any) -> Scale:
    if not isinstance(bounds, dict) or not all(type(each) in (int, float) for each in bounds.values()):
        raise ValueError(f"{bounds!r} are not the bounds of a scale")
    return Scale(float(bounds["low"]), float(bounds["high"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list")
    return tuple(_text(value) for value in values)


def _mapping(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ValueError(f"{values!r} is not a mapping")
    return {_text(name): _text(value) for name, value in values.items()}
