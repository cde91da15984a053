"""Any table with a label: CSV, TSV (plain, gzip, zstd) or Parquet, with named columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sparsedp.core.arrays import U64
from sparsedp.core.validation import check_count
from sparsedp.data.archives import InputFile, ZipMember, refuse_repeats
from sparsedp.data.blocks import BLOCK_BYTES, Block, first_line, read_parquet, read_text, readable
from sparsedp.data.column_types import check_type
from sparsedp.data.encoding import EncodedFeature, Encoding, is_text
from sparsedp.data.examples import NUMERIC_RULE, Examples, Malformed, bag_of, transform
from sparsedp.data.hashing import cross, hash_strings
from sparsedp.data.label import Label
from sparsedp.data.lines import Separated
from sparsedp.data.quotes import Quotes
from sparsedp.data.rules import IdRule
from sparsedp.data.scales import Scale, scales_in_words
from sparsedp.data.schema import Feature, Schema, Source, SourcePosition
from sparsedp.data.user_cap import user_ids

QUOTE = '"'
LABEL = "label"
TIME = "time"
USER = "user_hash"
HEAD_ROWS = 1000
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns.

    `crosses` are combinations of columns, each one feature named `a*b`; `multi_hot` columns hold lists, or
    texts cut at `multi_hot_separator`; `derived` gives further columns by polars expressions that look at
    one row at a time. Each `user` is cut to `rows_per_user` rows.
    """

    label: Label
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    multi_hot: tuple[str, ...] = ()
    multi_hot_separator: str = "|"
    time: str | None = None
    derived: Mapping[str, pl.Expr] = field(default_factory=dict)
    user: str | None = None
    rows_per_user: int | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """Public bounds of numeric columns; those without get the fixed rule of `log_transform`."""

    def __post_init__(self) -> None:
        names = [LABEL, *self.numeric, *self.features, *self.multi_hot, *([TIME] if self.time else [])]
        names += [USER] if self.user else []
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"columns: {', '.join(twice)} would be written twice")
        unknown = sorted(self.scales.keys() - set(self.numeric))
        if unknown:
            raise ValueError(f"scale: {', '.join(unknown)} is not a numeric column")
        if not (self.features or self.multi_hot):
            raise ValueError("categorical: at least one categorical, crossed or multi-hot column is needed")
        if (self.user is None) != (self.rows_per_user is None):
            raise ValueError("user and rows_per_user belong together: give both, or neither")
        if self.multi_hot and not self.multi_hot_separator:
            raise ValueError("multi_hot_separator: must not be empty")
        if self.rows_per_user is not None:
            check_count("rows_per_user", self.rows_per_user)

    @property
    def features(self) -> tuple[str, ...]:
        """The one-hot features: the categorical columns, then the crosses."""
        return (*self.categorical, *("*".join(parts) for parts in self.crosses))

    @property
    def roles(self) -> list[tuple[str, str]]:
        """Every role with a column that it needs; a column may have several."""
        pairs = [("label", self.label.column)]
        pairs += [("numeric", name) for name in self.numeric]
        pairs += [("categorical", name) for name in self.categorical]
        pairs += [("multi-hot", name) for name in self.multi_hot]
        pairs += [("cross", name) for parts in self.crosses for name in parts]
        single = {"time": self.time, "user": self.user}
        return pairs + [(role, name) for role, name in single.items() if name is not None]


@dataclass(frozen=True)
class Table:
    """The reader of tables with equal columns. `nulls` are texts that mean a missing value."""

    files: tuple[InputFile, ...]
    columns: Columns
    separator: str = ","
    nulls: tuple[str, ...] = ()
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def of(
        cls,
        files: Sequence[InputFile],
        columns: Columns,
        *,
        separator: str | None = None,
        nulls: Sequence[str] = (),
    ) -> Table:
        """Read the names and headers of the files; the requested columns must be there."""
        if not files:
            raise ValueError("files: at least one is needed")
        refuse_repeats(files)
        if separator is None:
            separator = separator_of(files[0])
        if len(separator.encode()) != 1:
            raise ValueError(f"separator must be one byte, got {separator!r}")
        table = cls(tuple(files), columns, separator, tuple(nulls))
        if len({is_parquet(path) for path in files}) > 1:
            raise ValueError("files: Parquet and text cannot be mixed")
        table._check_columns()
        return table

    @property
    def features(self) -> tuple[str, ...]:
        """The one-hot features."""
        return self.columns.features

    @property
    def multi_hot(self) -> tuple[str, ...]:
        """The features with several values an example."""
        return self.columns.multi_hot

    @property
    def is_parquet(self) -> bool:
        """Whether the files are Parquet."""
        return is_parquet(self.files[0])

    def blocks(self, start: SourcePosition) -> Iterator[Block]:
        """Yield the files from `start` on."""
        if self.is_parquet:
            return read_parquet(self.files, start)
        return read_text(self.files, start, header=True, quotes=Quotes(self.separator), size=self.block_bytes)

    def schema(self, sources: tuple[Source, ...], rules: Mapping[str, IdRule]) -> Schema:
        """Describe the prepared columns."""

        def described(names: Sequence[str]) -> tuple[Feature, ...]:
            return tuple(Feature(name, rules[name].rows, rules[name].description) for name in names)

        return Schema(
            label=LABEL,
            label_rule=self.columns.label.rule,
            numeric=self.columns.numeric,
            numeric_rule="; ".join(filter(None, [NUMERIC_RULE, scales_in_words(self.columns.scales)])),
            categorical=described(self.columns.features),
            multi_hot=described(self.columns.multi_hot),
            time=None if self.columns.time is None else TIME,
            time_unit=None if self.columns.time is None else self._time_unit,
            sources=sources,
            scales=tuple((name, scale.low, scale.high) for name, scale in self.columns.scales.items()),
            derived=tuple(f"{name} = {expression}" for name, expression in self.columns.derived.items()),
            user=None if self.columns.user is None else USER,
            rows_per_user=self.columns.rows_per_user,
        )

    def encoding(self, rules: Mapping[str, IdRule]) -> Encoding:
        """The rules, for rows to predict."""
        columns = self.columns
        parts = {
            **{name: (name,) for name in columns.categorical},
            **{"*".join(c): c for c in columns.crosses},
        }
        return Encoding(
            numeric=columns.numeric,
            categorical=tuple(EncodedFeature.of(name, parts[name], rules[name]) for name in columns.features),
            multi_hot=tuple(
                EncodedFeature.of(name, (name,), rules[name], separator=columns.multi_hot_separator)
                for name in columns.multi_hot
            ),
            types=self._types(),
            nulls=() if self.is_parquet else self.nulls,
            label=columns.label.column,
            time=columns.time,
            derived={name: str(expression) for name, expression in columns.derived.items()},
            scales=dict(columns.scales),
        ).with_keys(rules)

    def _types(self) -> dict[str, str]:
        """What the columns of values hold where it is neither text nor integers."""
        if not (self.is_parquet or self.columns.derived):
            return {}
        names = {
            *self.columns.categorical,
            *self.columns.multi_hot,
            *(n for c in self.columns.crosses for n in c),
        }
        schema = self._head.with_columns(**self.columns.derived).schema
        kinds = {name: getattr(schema[name], "inner", schema[name]) for name in sorted(names)}
        return {name: str(kind) for name, kind in kinds.items() if not is_text(kind)}

    def read(self, block: Block) -> Examples:
        """Read a block; ragged lines and those without a usable label, number or time are left out."""
        if isinstance(block.content, bytes):
            with readable(self.files[block.start.source], f" after line {block.start.line}"):
                frame, numbers, reasons = self._parse(block.content)
        else:
            frame, numbers, reasons = block.content, np.arange(block.lines), {}
        frame = frame.with_columns(**self.columns.derived)
        plain = frame.select(self._plain())
        if self.columns.user is not None:
            users = hash_strings(user_ids(frame[self.columns.user]))
            plain = plain.with_columns(pl.Series(USER, users.view(np.int64)))
        good = np.ones(len(frame), bool)
        for name, right in self._usable(frame, plain).items():
            for at in np.flatnonzero(good & ~right):
                reasons[int(numbers[at])] = _complaint(name, frame[name][int(at)], self._form(name))
            good &= right
        if not good.all():
            frame, plain = frame.filter(pl.Series(good)), plain.filter(pl.Series(good))
        malformed = [Malformed(block.start.line + number + 1, reasons[number]) for number in sorted(reasons)]
        bags = [bag_of(frame[name], self.columns.multi_hot_separator) for name in self.columns.multi_hot]
        return Examples(plain, self._hashes(frame), bags, malformed)

    def _plain(self) -> list[pl.Expr]:
        """Label, numeric columns and time, in their final form."""
        expressions = [self.columns.label.expression.alias(LABEL)]
        expressions += [transform(name, self.columns.scales) for name in self.columns.numeric]
        if self.columns.time is not None:
            expressions.append(_seconds(pl.col(self.columns.time), self._time_kind).alias(TIME))
        return expressions

    def _usable(self, frame: pl.DataFrame, plain: pl.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """Which rows have a label, a time, and numbers where anything is written at all."""
        usable = {self.columns.label.column: plain[LABEL].is_not_null().to_numpy()}
        if self.columns.time is not None:
            usable[self.columns.time] = plain[TIME].is_not_null().to_numpy()
        if self.columns.user is not None:
            usable[self.columns.user] = (plain[USER] != 0).to_numpy()  # 0 is the hash of no text
        for name in self.columns.numeric:
            if frame[name].dtype == pl.String:
                is_number = frame[name].cast(pl.Float64, strict=False).is_not_null() | frame[name].is_null()
                usable[name] = is_number.to_numpy()
        return usable

    def _form(self, name: str) -> str:
        """What a value that cannot be used is not."""
        if name == self.columns.time and name != self.columns.label.column:
            is_date = self._time_kind == pl.String
            return "no date with the year first, such as 2020-12-31" if is_date else "no whole number"
        return "of no use"

    def _hashes(self, frame: pl.DataFrame) -> list[U64]:
        names = {*self.columns.categorical, *(name for parts in self.columns.crosses for name in parts)}
        hashed = {name: hash_strings(frame[name].cast(pl.String)) for name in sorted(names)}
        crossed = [cross([hashed[name] for name in parts]) for parts in self.columns.crosses]
        return [*(hashed[name] for name in self.columns.categorical), *crossed]

    def _parse(self, text: bytes) -> tuple[pl.DataFrame, NDArray[np.int64], dict[int, str]]:
        """Parse lines into strings; also give the number of each, and the reasons of those left out."""
        text = Quotes(self.separator).closed(text)
        form = Separated(self.separator, QUOTE, len(self._names))
        lines = form.lines(text)
        even = lines.columns == form.columns
        reasons = {
            int(number): f"{columns} columns instead of {form.columns}"
            for number, columns in zip(lines.numbers[~even], lines.columns[~even], strict=True)
        }
        if not even.any():
            return pl.DataFrame(schema=dict.fromkeys(self._names, pl.String)), lines.numbers[even], reasons
        frame = pl.read_csv(
            text if even.all() else lines.keep(even),
            separator=self.separator,
            quote_char=QUOTE,
            has_header=False,
            schema=dict.fromkeys(self._names, pl.String),
            null_values=list(self.nulls) or None,
            encoding="utf8-lossy",
        )
        return frame, lines.numbers[even], reasons

    @cached_property
    def _names(self) -> list[str]:
        return header_of(self.files[0], self.separator)

    @cached_property
    def _head(self) -> pl.DataFrame:
        """The first rows, for the kinds of their columns."""
        for block in self.blocks(SourcePosition()):
            frame = (
                block.content if isinstance(block.content, pl.DataFrame) else self._parse(block.content)[0]
            )
            return frame.head(HEAD_ROWS)
        raise ValueError(f"files: no rows in {self.files[0].name}")

    @cached_property
    def _time_kind(self) -> pl.DataType:
        """The type of the time column; texts count as ISO dates unless most are integers."""
        assert self.columns.time is not None
        values = self._head.with_columns(**self.columns.derived)[self.columns.time]
        if values.dtype == pl.String:
            integers = values.cast(pl.Int64, strict=False)
            return pl.Int64() if 2 * integers.count() > values.count() else pl.String()
        return values.dtype

    @property
    def _time_unit(self) -> str:
        form = "as it is" if self._time_kind.is_numeric() else "in seconds since 1970"
        return f"{self.columns.time}, {form}"

    def _check_columns(self) -> None:
        for path in self.files:
            types = self._types_in(path)
            for role, name in self.columns.roles:
                if name in self.columns.derived:
                    continue
                if name not in types:
                    has = ", ".join(each if each == each.strip() else repr(each) for each in types)
                    raise ValueError(f"{role}: no column {name!r} in {path.name}, which has {has}")
                if role != "label" or self.columns.label.reads_numbers:
                    check_type(role, name, types[name])

    def _types_in(self, path: InputFile) -> dict[str, pl.DataType]:
        """The columns of a file."""
        if self.is_parquet:
            if isinstance(path, ZipMember):
                raise ValueError(f"files: {path.name} is Parquet in an archive: unpack it first")
            with readable(path):
                return dict(pl.read_parquet_schema(path))
        names = header_of(path, self.separator)
        if names != self._names:
            raise ValueError(f"files: {path.name} has other columns than {self.files[0].name}")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"files: {path.name} has two columns {name!r}")
        return dict.fromkeys(names, pl.String())


def _complaint(name: str, value: object, form: str) -> str:
    return f"{name} is missing" if value in (None, "") else f"{name} is {str(value)[:40]!r}, which is {form}"


def is_parquet(path: InputFile) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.suffix.lower() in PARQUET


def separator_of(path: InputFile) -> str:
    """The separator of a text file, by its name."""
    return "\t" if {".tsv", ".tab"} & {suffix.lower() for suffix in path.suffixes} else ","


def header_of(path: InputFile, separator: str) -> list[str]:
    """The names of the columns in the first line of a text file."""
    line = first_line(path)
    if not line.strip():
        raise ValueError(f"files: {path.name} is empty")
    with readable(path, " in its header"):
        line = Quotes(separator).closed(line)
        names = pl.read_csv(line, separator=separator, has_header=False, infer_schema=False).row(0)
    return [str(name) for name in names]


def _seconds(time: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return a time as an integer: itself if it is a number, else seconds since 1970."""
    if kind.is_numeric():
        return time.cast(pl.Int64, strict=False)
    if kind == pl.String:
        # Day or month first is not told apart, so that a part of the times would be read wrongly: the year is first.
        time = pl.when(time.str.contains(r"^\d{4}")).then(time).str.to_datetime(strict=False, time_zone="UTC")
    return time.dt.epoch("s")
