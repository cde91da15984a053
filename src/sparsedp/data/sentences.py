"""Texts as they lie in files: GLUE-style TSV (single sentences and pairs) and plain text, one text a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsedp.core.extras import require


@dataclass(frozen=True)
class Sentences:
    """Texts, for tasks on pairs the second of each, and their labels where they have some.

    Guarantee: all three have the same length, and no text is empty.
    """

    texts: Sequence[str]
    pairs: Sequence[str] | None = None
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.texts:
            raise ValueError("texts: there are none")
        for name, column in (("pairs", self.pairs), ("labels", self.labels)):
            if column is not None and len(column) != len(self.texts):
                raise ValueError(f"{name}: there are {len(column)} for {len(self.texts)} texts")
        for name, texts in (("texts", self.texts), ("pairs", self.pairs or ())):
            empty = next((n for n, text in enumerate(texts) if not text.strip()), None)
            if empty is not None:
                raise ValueError(f"{name}: number {empty} is empty; leave such examples out")

    def __len__(self) -> int:
        return len(self.texts)


def read_tsv(
    path: Path,
    *,
    text: str | Sequence[str] = "sentence",
    pair: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
) -> Sentences:
    """Read a GLUE-style file: a header, tab-separated columns, no quoting; it may be compressed (``.zst``).

    ``text``, ``pair`` and ``label`` are names of columns, or of each several: the file has one of them. An empty
    text or label is refused with its line number.
    """
    lines = _lines(path)
    if not lines:
        raise ValueError(f"{path}: is empty; it must begin with a header")
    header = lines[0].split("\t")
    chosen = {
        argument: _column(path, header, argument, [names] if isinstance(names, str) else names)
        for argument, names in (("text", text), ("pair", pair), ("label", label))
        if names is not None
    }
    columns: dict[str, list[str]] = {name: [] for name in chosen}
    for number, line in enumerate(lines[1:], 2):
        values = line.split("\t")
        if len(values) != len(header):
            raise ValueError(f"{path}, line {number}: has {len(values)} columns, the header {len(header)}")
        for name, index in chosen.items():
            if not values[index].strip():
                raise ValueError(f"{path}, line {number}: its {name} (column {header[index]!r}) is empty")
            columns[name].append(values[index])
    if not columns["text"]:
        raise ValueError(f"{path}: has a header and no examples")
    return Sentences(columns["text"], columns.get("pair"), columns.get("label"))


def _column(path: Path, header: Sequence[str], argument: str, names: Sequence[str]) -> int:
    """The place of the one column that has one of the names."""
    found = [place for place, column in enumerate(header) if column in names]
    listed = " or ".join(map(repr, names))
    if len(found) > 1:
        raise ValueError(f"{argument}: {path} has {len(found)} columns {listed}; name one that is there once")
    if not found:
        has = ", ".join(map(repr, header))
        hint = "; for texts without labels give label=None" if argument == "label" else ""
        raise ValueError(
            f"{argument}: {path} has no column {listed}, only {has}; where files name it differently, give all names{hint}"
        )
    return found[0]


def read_lines(path: Path) -> Sentences:
    """Read plain text, one example a line; blank lines separate paragraphs and are left out."""
    texts = [line for line in _lines(path) if line.strip()]
    if not texts:
        raise ValueError(f"{path}: has no text")
    return Sentences(texts)


def read_bytes(path: Path) -> bytes:
    """The contents of a file, decompressed where its name ends in ``.zst``."""
    if path.suffix != ".zst":
        return path.read_bytes()
    require("zstandard")
    import zstandard

    left, parts = path.read_bytes(), []
    try:
        while left:
            frame = zstandard.ZstdDecompressor().decompressobj()
            parts.append(frame.decompress(left))
            if not frame.eof:  # zstandard itself takes the end of the file for that of the frame
                raise zstandard.ZstdError("it ends too early")
            left = frame.unused_data
    except zstandard.ZstdError as error:
        raise ValueError(f"{path}: is not a whole .zst file ({error})") from None
    return b"".join(parts)


def _lines(path: Path) -> list[str]:
    """The lines of a text file. Only line feeds end a line: other separators occur within sentences."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 (byte {error.start})") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
