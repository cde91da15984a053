"""What a prepared folder holds: columns with their roles, the rule of every id, parts and sources."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsedp.core.text_files import parse_json, read_text
from sparsedp.core.typed_fields import check_fields
from sparsedp.core.validation import check_count

FILE = "schema.json"
MANIFEST = "manifest.jsonl"
FORMAT = "sparsedp-clicks-1"
_PART = re.compile(r"part-\d{5,}\.parquet")


@dataclass(frozen=True)
class Feature:
    """A column of ids: `rows` is the height of its table, `rule` the public rule from a value to an id."""

    name: str
    rows: int
    rule: str


@dataclass(frozen=True)
class SourcePosition:
    """A point between two lines of the sources: bytes of (unpacked) text and lines of its source before it.

    `earlier_lines` counts the lines of the sources before this one.
    """

    source: int = 0
    byte: int = 0
    line: int = 0
    earlier_lines: int = 0


@dataclass(frozen=True)
class Part:
    """One Parquet file: the lines it came from, what it holds, and examples of the lines left out."""

    file: str
    rows: int
    sha256: str
    start: SourcePosition
    end: SourcePosition
    malformed: int = 0
    examples: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Source:
    """An input file as it was when it was read."""

    name: str
    size: int
    sample_sha256: str


@dataclass(frozen=True)
class Schema:
    """The description of a prepared folder, stored as `schema.json` beside its parts.

    `time` names the column that orders the rows (a day number, a timestamp in seconds, or the position of
    the line) and `time_unit` says which. `vocabulary_statement` is the privacy statement of a vocabulary
    learned from the data. `user` names the column of users, as 64-bit hashes of the values; every user was cut
    to at most `rows_per_user` rows.
    """

    label: str
    label_rule: str
    numeric: tuple[str, ...]
    numeric_rule: str
    categorical: tuple[Feature, ...]
    multi_hot: tuple[Feature, ...] = ()
    time: str | None = None
    time_unit: str | None = None
    sources: tuple[Source, ...] = ()
    parts: tuple[Part, ...] = ()
    vocabulary_statement: str | None = None
    derived: tuple[str, ...] = ()
    user: str | None = None
    rows_per_user: int | None = None
    scales: tuple[tuple[str, float, float], ...] = ()
    """Numeric columns that public bounds bring to -1..1: (name, low, high); the others follow `numeric_rule`."""

    @property
    def rows(self) -> int:
        """How many examples the folder holds."""
        return sum(part.rows for part in self.parts)

    @property
    def malformed(self) -> int:
        """How many lines were left out because they could not be read."""
        return sum(part.malformed for part in self.parts)

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The table heights of the categorical features, in order."""
        return tuple(feature.rows for feature in self.categorical)

    @property
    def digest(self) -> str:
        """A hash of everything the schema says, to tell whether a derived file still belongs to it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def require_same_columns(self, other: Schema) -> None:
        """Refuse data whose columns or id rules differ from these: its ids would mean something else."""
        for what in ("label_rule", "numeric", "numeric_rule", "scales", "categorical", "multi_hot"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise ValueError(f"data folder of another schema: {_first_difference(what, mine, theirs)}")

    def to_json(self) -> str:
        """Return the text of `schema.json`."""
        fields = dataclasses.asdict(self)
        if self.user is None:
            del fields["user"], fields["rows_per_user"]
        if not self.scales:  # as folders were described before there were scales: the digest stays the same
            del fields["scales"]
        return json.dumps({"format": FORMAT, "rows": self.rows, **fields}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read the text of a `schema.json`."""
        try:
            fields = parse_json(text, FILE)
            if fields.pop("format") != FORMAT:
                raise KeyError("format")
            fields.pop("rows")
            fields["numeric"], fields["derived"] = tuple(fields["numeric"]), tuple(fields["derived"])
            fields["scales"] = tuple((name, low, high) for name, low, high in fields.get("scales", ()))
            for name in ("categorical", "multi_hot"):
                fields[name] = tuple(Feature(**feature) for feature in fields[name])
            fields["sources"] = tuple(Source(**source) for source in fields["sources"])
            fields["parts"] = tuple(part_from_dict(part) for part in fields["parts"])
            schema = cls(**fields)
            schema._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"schema: not a {FORMAT} description ({error})") from error
        return schema

    def _check(self) -> None:
        """Refuse what no preparation writes: the file may be anyone's."""
        from sparsedp.data.hashing import MAX_ROWS  # here: numpy and polars are not loaded to find no file

        check_fields(self)
        features = (*self.categorical, *self.multi_hot)
        for feature in features:
            check_count(f"rows of {feature.name}", feature.rows, maximum=MAX_ROWS)
        names = [self.label, *self.numeric, *(feature.name for feature in features)]
        names += [name for name in (self.time, self.user) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name")
        for part in self.parts:
            if not _PART.fullmatch(part.file):
                raise ValueError(f"a part cannot be the file {part.file!r}")
            check_count(f"rows of {part.file}", part.rows, minimum=0)
            check_count(f"malformed lines of {part.file}", part.malformed, minimum=0)

    @classmethod
    def read(cls, folder: str | Path) -> Schema:
        """Read the schema of a prepared folder."""
        path = Path(folder) / FILE
        if not path.exists():
            begun = (Path(folder) / MANIFEST).exists()
            reason = "was begun and not finished: run the same command again" if begun else f"has no {FILE}"
            raise ValueError(f"data: {folder} is not a prepared folder: it {reason}")
        return cls.from_json(read_text(path))


def part_from_dict(fields: dict[str, Any]) -> Part:
    """Rebuild a part from its JSON form."""
    examples = tuple((int(line), str(reason)) for line, reason in fields["examples"])
    start, end = SourcePosition(**fields["start"]), SourcePosition(**fields["end"])
    return Part(**{**fields, "start": start, "end": end, "examples": examples})


def _first_difference(what: str, mine: Any, theirs: Any) -> str:
    if isinstance(mine, tuple) and len(mine) == len(theirs):
        mine, theirs = next((a, b) for a, b in zip(mine, theirs, strict=True) if a != b)
    elif isinstance(mine, tuple):
        return f"{len(theirs)} {what} columns where {len(mine)} were expected"
    return f"{what} is {theirs} where {mine} was expected"
