"""Serve an exported model with torch, safetensors and the standard library; the package that trained it is not needed.

    python serve.py rows.csv > scores.csv

`export` puts a copy of this file beside the model. Import `Served` for a service of your own, or translate the few
lines from a value to an id into the language of your service.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

WORD = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
CROSS = 0xD1B54A32D192ED03
NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE)
FLOAT = r"-?(\d+\.\d+|\d(\.\d+)?e[+-]?\d+|inf)|NaN"
FORMS = {"Boolean": "true|false", "Float32": FLOAT, "Float64": FLOAT, "Date": r"\d{4}-\d\d-\d\d"}
"""The texts of values that were neither texts nor integers when the data was prepared; another text has another id."""


def mix(word: int) -> int:
    """Scramble a 64-bit word: the finaliser of SplitMix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def hash_text(text: str) -> int:
    """The hash of a value: its UTF-8 bytes folded eight at a time; 0 for an empty one."""
    data = text.encode()
    state = mix(len(data) * GAMMA & WORD)
    for start in range(0, len(data), 8):
        state = mix(state ^ int.from_bytes(data[start : start + 8], "little"))
    return state if data else 0


def cross(hashes: Sequence[int]) -> int:
    """The hash of several values together; 0 where all are missing."""
    state = mix(len(hashes) * CROSS & WORD)
    for each in hashes:
        state = mix(state ^ each)
    return state if any(hashes) else 0


def signed_log(number: float) -> float:
    """sign(x) log(1 + |x|); 0 where x is not finite."""
    return math.copysign(math.log1p(abs(number)), number) if math.isfinite(number) else 0.0


def scaled(number: float, low: float, high: float) -> float:
    """Low becomes -1, high becomes 1, what lies outside is moved to them; 0 where x is not finite."""
    place = (number - (low + high) / 2) / ((high - low) / 2)
    return min(max(place, -1.0), 1.0) if math.isfinite(number) else 0.0


class Served:
    """An exported model: rows of raw values in, probabilities of label 1 out."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.encoding: dict[str, Any] = json.loads((folder / "encoding.json").read_text())
        self.statement: dict[str, Any] = json.loads((folder / "statement.json").read_text())
        keys = folder / "encoding.safetensors"
        lists = load_file(keys) if keys.exists() else {}
        self._ids: dict[str, dict[int, int]] = {
            name: {key: number + 1 for number, key in reversed(list(enumerate(each.tolist())))}
            for name, each in lists.items()
        }
        features = [*self.encoding["categorical"], *self.encoding["multi_hot"]]
        self._columns = {*self.encoding["numeric"], *(each for one in features for each in one["columns"])}
        self._weights = load_file(folder / "model.safetensors")
        self._program = torch.export.load(folder / "model.pt2").module()

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """The probability of label 1 of each row: a mapping from raw columns to texts, numbers or None."""
        names, features = self.encoding["numeric"], self.encoding["categorical"]
        if missing := self._columns - rows[0].keys() if rows else ():
            raise ValueError(f"{min(missing)}: a column of this name is needed")
        numeric = torch.tensor([[self._number(row, name) for name in names] for row in rows])
        ids = torch.tensor([[self._id(row, each) for each in features] for row in rows])
        with torch.no_grad():
            logits = self._program(
                self._weights,
                numeric.float().reshape(len(rows), len(names)),
                ids.long().reshape(len(rows), len(features)),
                tuple(self._bag(rows, each) for each in self.encoding["multi_hot"]),
            )
        return list(torch.sigmoid(logits.double()).tolist())

    def _text(self, row: Mapping[str, Any], column: str) -> str:
        value = row[column]
        if value is None or value in self.encoding["nulls"]:
            return ""
        if isinstance(value, bool | float):
            raise ValueError(f"{column}: give a text or an integer, got {value!r}")
        text = str(value)
        kind = self.encoding["types"].get(column)
        if kind == "hex":
            text = text.lower()
            if not re.fullmatch("([0-9a-f]{8})?", text):
                raise ValueError(f"{column}: is {text!r}, not 8 hex digits")
        form = FORMS.get(kind)
        if form is not None and not re.fullmatch(f"({form})?", text):
            raise ValueError(f"{column}: is {text!r}, which no {kind} is written as")
        return text

    def _number(self, row: Mapping[str, Any], column: str) -> float:
        value = row[column]
        if value is None or value == "" or value in self.encoding["nulls"]:
            return 0.0
        if isinstance(value, str) and not NUMBER.fullmatch(value):
            raise ValueError(f"{column}: is {value!r}, which is no number")
        bounds = self.encoding["scales"].get(column)
        return signed_log(float(value)) if bounds is None else scaled(float(value), **bounds)

    def _id(self, row: Mapping[str, Any], feature: Mapping[str, Any]) -> int:
        if feature["rule"] == "ids":
            text = self._text(row, feature["columns"][0])
            is_id = re.fullmatch(r"\+?\d+", text, re.ASCII)
            return int(text) if is_id and int(text) < feature["rows"] else 0
        hashes = [hash_text(self._text(row, column)) for column in feature["columns"]]
        return self._number_of(hashes[0] if len(hashes) == 1 else cross(hashes), feature)

    def _number_of(self, hashed: int, feature: Mapping[str, Any]) -> int:
        """The id of a hash: a bucket, or the place of its upper 40 bits in the vocabulary; 0 is missing."""
        if not hashed:
            return 0
        if feature["rule"] == "vocabulary":
            return int(self._ids[feature["name"]].get(hashed >> 24, 0))
        buckets = int(feature["rows"]) - 1
        return 1 + ((hashed >> 32) * buckets >> 32)

    def _bag(
        self, rows: Sequence[Mapping[str, Any]], feature: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of a multi-hot feature, and where each row's begin."""
        (column,) = feature["columns"]
        values, offsets = list[int](), list[int]()
        for row in rows:
            offsets.append(len(values))
            given = row[column]
            texts = given if isinstance(given, list) else self._text(row, column).split(feature["separator"])
            hashes = [hash_text(str(text)) for text in texts if text is not None]
            values += [self._number_of(hashed, feature) for hashed in hashes if hashed]
        return torch.tensor(values, dtype=torch.long), torch.tensor(offsets, dtype=torch.long)


def read_rows(path: str, header: list[str] | None) -> Iterator[dict[str, Any]]:
    """The rows of a CSV or TSV file; `header` names the columns of one that has no header line."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline()
        file.seek(0)
        tabs = first.count("\t") + 1
        if header is not None and header[-1] not in first and tabs in (len(header), len(header) - 1):
            names: list[str] | None = header[-tabs:]
            lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        else:
            names, lines = None, csv.reader(file, delimiter="," if tabs == 1 else "\t", strict=True)
        try:
            names = next(lines, []) if names is None else names
            if len(set(names)) < len(names):
                raise ValueError(f"{path}: two columns have one name")
            for line in lines:
                if len(line) != len(names):
                    raise ValueError(f"{path}, line {lines.line_num}: not {len(names)} columns")
                yield dict(zip(names, line, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error} (is a quote not closed?)") from None


def main() -> None:
    """Print the probabilities of a file's rows."""
    try:
        if len(sys.argv) != 2:
            raise ValueError("give one file of rows, as in: python serve.py rows.csv > scores.csv")
        served = Served(Path(__file__).parent)
        print(served.statement["text"], file=sys.stderr)
        print("probability")
        rows = read_rows(sys.argv[1], served.encoding["header"])
        while batch := list(islice(rows, 4096)):
            print("\n".join(map(repr, served.predict(batch))))
    except (OSError, ValueError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
