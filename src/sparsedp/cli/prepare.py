"""`sparsedp prepare criteo` and `sparsedp prepare table`: from raw files to a folder that training reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsedp.cli.column_options import name_and_number, names_in, once, scales_in, table_rows_in
from sparsedp.cli.errors import refuse_bad_input, refuse_special_file
from sparsedp.core.strict_json import json_text

if TYPE_CHECKING:
    from sparsedp.data.preparation import Reader
    from sparsedp.data.rules import IdRule
    from sparsedp.data.schema import Schema
    from sparsedp.data.table import Columns
    from sparsedp.data.vocabulary import Vocabulary

SHOWN = 10
ALL = "all"
BUCKETS = 20_000
"""Rows of a hashed table where none are given: a few collisions at a thousand values, memory for dozens of tables."""

prepare_app = typer.Typer(
    help="Turn raw files into a folder of ids and numbers, by public rules.", no_args_is_help=True
)

Files = Annotated[list[Path], typer.Argument(help="Files, in time order.", exists=True, dir_okay=False)]
Out = Annotated[Path, typer.Option(help="Folder to write; an interrupted one is continued.")]
UserColumn = Annotated[
    str | None, typer.Option(help="Column that says whose a row is, for training with --unit user.")
]
RowsPerUser = Annotated[
    int | None, typer.Option(help="Keep the first so many rows of each user; needed with --user.")
]
VocabularyFile = Annotated[
    Path | None, typer.Option(help="Ids from this list: CSV, TSV or Parquet with columns feature and value.")
]
VocabularyEpsilon = Annotated[
    float | None, typer.Option(help="Learn the vocabulary by DP partition selection at this epsilon.")
]
VocabularyDelta = Annotated[float | None, typer.Option(help="Delta of the partition selection.")]
LedgerFile = Annotated[
    Path | None, typer.Option(help="The data's ledger, which the partition selection is entered in.")
]
VocabularyIsPublic = Annotated[
    bool,
    typer.Option(
        "--vocabulary-is-public", help="List the values as they are: I declare that they are public."
    ),
]
MinCount = Annotated[int, typer.Option(help="With --vocabulary-is-public: how often a value must occur.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first malformed line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Label = Annotated[str, typer.Option(help="A column of 0 and 1, or a comparison: 'delay>15'.")]
Numeric = Annotated[list[str] | None, typer.Option(help="Numeric columns (repeat, or with commas).")]
Categorical = Annotated[list[str] | None, typer.Option(help="Categorical columns.")]
MultiHot = Annotated[list[str] | None, typer.Option(help="Columns of several values, such as a|b|c.")]
Cross = Annotated[list[str] | None, typer.Option(help="A crossed feature, hashed: a,b=BUCKETS.")]
Hashed = Annotated[
    list[str] | None,
    typer.Option(
        "--hash",
        help="Rows of the table of a hashed column: NAME=BUCKETS; all=BUCKETS for every other column. "
        f"Default, without a vocabulary: all={BUCKETS}.",
    ),
]
Scales = Annotated[
    list[str] | None,
    typer.Option(
        help="Public bounds of a numeric column, which become -1 and 1: NAME=LOW:HIGH. Never take them from "
        "the private data. Default: NAME=log, sign(x) log(1 + |x|)."
    ),
]
Time = Annotated[str | None, typer.Option(help="Column that orders the rows: a number, date or timestamp.")]
Null = Annotated[list[str] | None, typer.Option(help="A text that means a missing value, such as NA.")]
Member = Annotated[
    str | None,
    typer.Option(
        help="Which members of a zip archive: a pattern such as '*/ratings.csv'. Default: all tables."
    ),
]


@prepare_app.command()
@refuse_bad_input
def criteo(
    files: Files,
    out: Out,
    buckets: Annotated[
        str | None,
        typer.Option(
            help="Rows of the 26 tables: one number or 26 with commas. Default: those of the FEST paper."
        ),
    ] = None,
    vocabulary: VocabularyFile = None,
    vocabulary_epsilon: VocabularyEpsilon = None,
    vocabulary_delta: VocabularyDelta = None,
    ledger: LedgerFile = None,
    vocabulary_is_public: VocabularyIsPublic = False,
    min_count: MinCount = 10,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Criteo click logs: Kaggle's train.txt or day_0, day_1, ..., plain, gzip or zstd."""
    from sparsedp.core.criteo import VOCABULARY_SIZES
    from sparsedp.data.criteo import CATEGORIES, Criteo
    from sparsedp.data.rules import HashRule

    _refuse_special_files(files)
    choice = _VocabularyChoice(
        vocabulary, vocabulary_epsilon, vocabulary_delta, ledger, vocabulary_is_public, min_count
    )
    if buckets is not None and choice.is_made:
        raise ValueError("buckets cannot be given together with a vocabulary")
    sizes = table_rows_in(buckets, len(CATEGORIES)) if buckets is not None else VOCABULARY_SIZES
    hashed = {} if choice.is_made else dict(zip(CATEGORIES, map(HashRule, sizes), strict=True))
    _prepare(Criteo.of(files), out, hashed, choice, strict, as_json)


@prepare_app.command()
@refuse_bad_input
def table(
    files: Files,
    out: Out,
    label: Label,
    numeric: Numeric = None,
    categorical: Categorical = None,
    multi_hot: MultiHot = None,
    multi_hot_separator: Annotated[str, typer.Option(help="The separator of those values.")] = "|",
    cross: Cross = None,
    hashed: Hashed = None,
    scale: Scales = None,
    time: Time = None,
    user: UserColumn = None,
    rows_per_user: RowsPerUser = None,
    separator: Annotated[str | None, typer.Option(help="Default: tab for .tsv, else comma.")] = None,
    null: Null = None,
    member: Member = None,
    vocabulary: VocabularyFile = None,
    vocabulary_epsilon: VocabularyEpsilon = None,
    vocabulary_delta: VocabularyDelta = None,
    ledger: LedgerFile = None,
    vocabulary_is_public: VocabularyIsPublic = False,
    min_count: MinCount = 10,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Any CSV, TSV (plain, gzip, zstd or in a zip archive) or Parquet table with named columns."""
    from sparsedp.data.archives import open_archives
    from sparsedp.data.label import Label as LabelRule
    from sparsedp.data.table import Columns, Table

    _refuse_special_files(files)
    crosses = [name_and_number("cross", text) for text in cross or ()]
    columns = Columns(
        label=LabelRule.parse(label),
        numeric=names_in(numeric),
        categorical=names_in(categorical),
        crosses=tuple(names_in([names]) for names, _ in crosses),
        multi_hot=names_in(multi_hot),
        multi_hot_separator=multi_hot_separator,
        time=time,
        user=user,
        rows_per_user=rows_per_user,
        scales=scales_in(scale),
    )
    choice = _VocabularyChoice(
        vocabulary, vocabulary_epsilon, vocabulary_delta, ledger, vocabulary_is_public, min_count
    )
    if user is not None:
        choice.refuse_learning()
    rules, defaulted = _hash_rules(
        columns, hashed, {"*".join(names_in([names])): rows for names, rows in crosses}, choice
    )
    reader = Table.of(
        open_archives(files, member),
        columns,
        separator="\t" if separator == "\\t" else separator,
        nulls=null or (),
    )
    _prepare(reader, out, rules, choice, strict, as_json, defaulted)


def _hash_rules(
    columns: Columns, hashed: Sequence[str] | None, crosses: Mapping[str, int], choice: _VocabularyChoice
) -> tuple[dict[str, IdRule], list[str]]:
    """(the rules of hashed columns, those of them that got the default).

    Those named, the crosses, and with `all` (or without a vocabulary) the rest.
    """
    from sparsedp.data.rules import HashRule

    sizes = once("hash", [name_and_number("hash", text) for text in hashed or ()])
    hashable = (*columns.categorical, *columns.multi_hot)
    others = sizes.pop(ALL, None) if ALL not in hashable else None
    unknown = sorted(sizes.keys() - set(hashable))
    if unknown:
        raise ValueError(f"hash: {', '.join(unknown)} is neither a categorical nor a multi-hot column")
    rest: list[str] = []
    if others is not None or not choice.is_made:
        # With a vocabulary, which has no multi-hot columns, `all` is for these.
        rest = [name for name in (columns.multi_hot if choice.is_made else hashable) if name not in sizes]
        sizes |= dict.fromkeys(rest, others or BUCKETS)
    rules = {name: HashRule(rows) for name, rows in (sizes | dict(crosses)).items()}
    return dict(rules), rest if others is None else []


@dataclass(frozen=True)
class _VocabularyChoice:
    """Where the vocabulary comes from, as given on the command line: at most one source."""

    file: Path | None
    epsilon: float | None
    delta: float | None
    ledger: Path | None
    is_public: bool
    min_count: int

    def __post_init__(self) -> None:
        for name, path in (("vocabulary", self.file), ("ledger", self.ledger)):
            if path is not None:
                refuse_special_file(name, path)
        if sum((self.file is not None, self.epsilon is not None, self.is_public)) > 1:
            raise ValueError(
                "vocabulary: give only one of a file, --vocabulary-epsilon and --vocabulary-is-public"
            )
        if self.epsilon is not None and (self.delta is None or self.ledger is None):
            raise ValueError(
                "vocabulary-epsilon needs --vocabulary-delta and --ledger, where its cost is entered"
            )
        if self.epsilon is None and (self.delta is not None or self.ledger is not None):
            raise ValueError("vocabulary-delta and ledger belong to --vocabulary-epsilon, which is missing")

    @property
    def is_made(self) -> bool:
        return self.file is not None or self.epsilon is not None or self.is_public

    def refuse_learning(self) -> None:
        """Refuse to learn from rows where users are to be protected."""
        if self.epsilon is not None:
            raise ValueError(
                "vocabulary-epsilon: partition selection protects single rows, not users; with --user give --hash or a "
                "public vocabulary"
            )

    def vocabulary(
        self, reader: Reader, out: Path, features: Sequence[str], progress: Callable[[int], None]
    ) -> Vocabulary:
        """Read or learn the vocabulary of some features."""
        from sparsedp.accounting.ledger import Ledger
        from sparsedp.data.partition_selection import PartitionSelection, PublicValues
        from sparsedp.data.vocabulary import Vocabulary, learn_privately, learn_public

        if self.file is not None:
            return Vocabulary.read(self.file)
        if self.is_public:
            selection = PublicValues(self.min_count, len(features))
            return learn_public(reader, out, features, selection, progress=progress)
        assert self.epsilon is not None
        assert self.delta is not None
        assert self.ledger is not None
        private = PartitionSelection(self.epsilon, self.delta, len(features))
        with Ledger.open(self.ledger, run="prepare: vocabulary") as ledger:
            if ledger.unit != "example":
                raise ValueError(f"ledger: protects {ledger.unit}, while a vocabulary is learned per example")
            return learn_privately(reader, out, features, private, ledger=ledger, progress=progress)


def _prepare(
    reader: Reader,
    out: Path,
    hashed: Mapping[str, IdRule],
    choice: _VocabularyChoice,
    strict: bool,
    as_json: bool,
    defaulted: Sequence[str] = (),
) -> None:
    """Decide the rule of every feature, prepare, and print a summary."""
    from sparsedp.data.archives import size_of
    from sparsedp.data.parts import refuse_other_things
    from sparsedp.data.preparation import prepare

    rules: dict[str, IdRule] = dict(hashed)
    statement = None
    refuse_other_things(out)  # before a vocabulary is paid for
    left = [name for name in reader.features if name not in rules]
    total = sum(size_of(path) for path in reader.files)
    if choice.is_made and left:
        with byte_progress("vocabulary", total) as advance:
            found = choice.vocabulary(reader, out, left, advance)
        rules |= {name: rule for name, rule in found.rules.items() if name not in rules}
        statement = found.statement
    missing = [name for name in (*reader.features, *reader.multi_hot) if name not in rules]
    if missing:
        raise ValueError(
            f"no ids for {', '.join(missing)}: give a number of buckets, or a vocabulary that has it"
        )
    with byte_progress("rows", total) as advance:
        schema = prepare(reader, out, rules, vocabulary_statement=statement, strict=strict, progress=advance)
    _report(schema, out, as_json)
    if defaulted and not as_json:
        typer.echo(f"{', '.join(defaulted)}: hashed into {BUCKETS:,} rows each; --hash decides")


def _report(schema: Schema, out: Path, as_json: bool) -> None:
    """Print what was prepared, and the malformed lines on standard error."""
    bad = [
        {"file": schema.sources[part.start.source].name, "line": line, "reason": reason}
        for part in schema.parts
        for line, reason in part.examples
    ]
    if schema.malformed:
        typer.echo(f"{_counted(schema.malformed, 'malformed line')} left out:", err=True)
        for each in bad[:SHOWN]:
            typer.echo(f"  {each['file']}, line {each['line']}: {each['reason']}", err=True)
        if schema.malformed > SHOWN:
            typer.echo(f"  ... and {schema.malformed - SHOWN:,} more", err=True)
    if as_json:
        summary = {
            "out": str(out),
            "rows": schema.rows,
            "parts": len(schema.parts),
            "malformed": schema.malformed,
            "malformed_lines": bad,
            "table_rows": sum(schema.vocabulary_sizes) + sum(feature.rows for feature in schema.multi_hot),
            "time": schema.time,
            "vocabulary_statement": schema.vocabulary_statement,
            "rows_per_user": schema.rows_per_user,
        }
        typer.echo(json_text(summary, indent=2))
        return
    features = _counted(len(schema.categorical) + len(schema.multi_hot), "feature")
    table_rows = sum(schema.vocabulary_sizes) + sum(feature.rows for feature in schema.multi_hot)
    typer.echo(f"{out}: {_counted(schema.rows, 'row')} in {_counted(len(schema.parts), 'part')}")
    typer.echo(
        f"{features} with {table_rows:,} table rows, {_counted(len(schema.numeric), 'numeric column')}"
    )
    if schema.time is not None:
        typer.echo(f"time: {schema.time} ({schema.time_unit})")
    if schema.user is not None:
        typer.echo(
            f"users: at most {_counted(schema.rows_per_user or 0, 'row')} of each, later ones were left out"
        )
    if schema.vocabulary_statement is not None:
        typer.echo(f"vocabulary: {schema.vocabulary_statement}")


@contextlib.contextmanager
def byte_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _refuse_special_files(files: Sequence[Path]) -> None:
    for path in files:
        refuse_special_file("files", path)


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
