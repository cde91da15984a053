"""From raw files to a prepared folder: read blocks, encode them on all cores, commit parts in order."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import polars as pl

from sparsedp.data import encoding as encodings
from sparsedp.data.archives import InputFile
from sparsedp.data.blocks import Block, source_of
from sparsedp.data.examples import Examples, encode
from sparsedp.data.parts import PreparedFolder, finished, refuse_other_things
from sparsedp.data.rules import IdRule
from sparsedp.data.schema import Part, Schema, Source, SourcePosition
from sparsedp.data.user_cap import UserCap

MAX_EXAMPLES = 20
"""How many malformed lines of a part are stored with their reasons; all are counted."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int], None]
"""Called with the bytes of all the files that have been dealt with so far."""


class Reader(Protocol):
    """A format: which files, which features, how to cut them into blocks and how to read a block."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files, in the order of time."""

    @property
    def features(self) -> tuple[str, ...]:
        """The features with one value an example."""

    @property
    def multi_hot(self) -> tuple[str, ...]:
        """The features with several values an example."""

    def blocks(self, start: SourcePosition) -> Iterator[Block]:
        """Yield the blocks of all files from `start` on, always the same ones."""

    def read(self, block: Block) -> Examples:
        """Read a block; what comes out depends on it alone."""

    def schema(self, sources: tuple[Source, ...], rules: Mapping[str, IdRule]) -> Schema:
        """Describe the prepared columns."""

    def encoding(self, rules: Mapping[str, IdRule]) -> encodings.Encoding:
        """The rules, for rows to predict."""


def prepare(
    reader: Reader,
    out: str | Path,
    rules: Mapping[str, IdRule],
    *,
    vocabulary_statement: str | None = None,
    strict: bool = False,
    progress: Progress = lambda done: None,
) -> Schema:
    """Write the files of `reader` as a prepared folder and return its schema.

    Takes up an interrupted preparation behind its last finished part; the folder comes out the same, byte
    for byte, also after interruptions. With `strict`, the first malformed line stops the work.
    """
    out = Path(out)
    sources = tuple(source_of(path) for path in reader.files)
    schema = dataclasses.replace(reader.schema(sources, rules), vocabulary_statement=vocabulary_statement)
    encoding = reader.encoding(rules)
    if (done := finished(out, schema)) is not None:
        if not (out / encodings.FILE).exists():
            encoding.write(out)
        return done
    refuse_other_things(out)
    with PreparedFolder.open(out, schema) as folder:
        for part in folder.parts:
            _check(part, schema, strict, read=True)  # else it would not have been committed
        start = folder.parts[-1].end if folder.parts else SourcePosition()
        first = len(folder.parts)

        def read(block: Block) -> tuple[Block, Examples, pl.DataFrame]:
            examples = reader.read(block)
            return block, examples, encode(examples, schema, rules)

        def write(item: tuple[int, tuple[Block, Examples, pl.DataFrame]]) -> tuple[Part, Block, bool]:
            number, (block, examples, frame) = item
            return _write_part(folder, first + number, block, examples, frame), block, len(examples.plain) > 0

        parts = in_order(read, reader.blocks(start))
        if schema.rows_per_user is not None:
            parts = _capped(parts, folder, schema.rows_per_user)
        for part, block, has_read in in_order(write, enumerate(parts)):
            _check(part, schema, strict, read=has_read)
            folder.commit(part)
            progress(sum(source.size for source in sources[: block.end.source]) + block.read)
        if not any(part.rows for part in folder.parts):
            raise ValueError(f"files: no rows in {', '.join(source.name for source in sources)}")
        encoding.write(out)
        return folder.finish()


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Map over items on as many threads as there are cores, a few items ahead, yielding results in order."""
    workers = os.cpu_count() or 1
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _capped(
    parts: Iterator[tuple[Block, Examples, pl.DataFrame]], folder: PreparedFolder, rows_per_user: int
) -> Iterator[tuple[Block, Examples, pl.DataFrame]]:
    """Cut the users of the parts, in order; what earlier parts of the folder hold counts."""
    assert folder.schema.user is not None
    cap, user = UserCap(rows_per_user), folder.schema.user
    for part in folder.parts:
        cap.keep(pl.read_parquet(folder.path / part.file, columns=[user])[user].to_numpy())
    for block, examples, frame in parts:
        yield block, examples, frame.filter(pl.Series(cap.keep(frame[user].to_numpy()), dtype=pl.Boolean))


def _write_part(
    folder: PreparedFolder, number: int, block: Block, examples: Examples, frame: pl.DataFrame
) -> Part:
    file, sha256 = folder.write(number, frame)
    reasons = tuple((bad.line, bad.reason) for bad in examples.malformed[:MAX_EXAMPLES])
    return Part(file, len(frame), sha256, block.start, block.end, len(examples.malformed), reasons)


def _check(part: Part, schema: Schema, strict: bool, *, read: bool) -> None:
    """Stop at a malformed line if `strict`, and at a file that is not of the format at all: no line could be `read`."""
    if not part.malformed:
        return
    line, reason = part.examples[0]
    where = f"{schema.sources[part.start.source].name}, line {line}: {reason}"
    if strict:
        raise ValueError(f"malformed line in {where}")
    if not read and part.start.line <= 1:
        raise ValueError(f"none of the first {part.malformed} lines can be read; {where}")
