"""Fuzzing of everything that reads a file or an option: mutated inputs, and what a reader may do with one.

A reader takes an input or refuses it with a sentence of its own. Anything else is a fault: an error that no code of
the library raised, an input that takes too long or too much memory, an input that was taken and read wrongly.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sparsedp

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
SOURCE = Path(sparsedp.__file__).parent
SECONDS = 20
"""Of computing, longer than any small input may take; ten times that of waiting."""
SEED, FAULT = "seed-", "fault-"

Read = Callable[[str, bytes], bool | None]
"""Reads an input, given as a file's name and contents; asserts that what it took is right. False: refused."""
Mutate = Callable[[random.Random, bytes], bytes]


class Fault(Exception):
    """An input on which a reader failed."""


class _Endless(BaseException):
    """Raised by the clock; a BaseException, so that no reader takes it for bad input."""


@dataclass(frozen=True)
class Reader:
    """Something that reads files: how, and how to make inputs that get far into it."""

    name: str
    read: Read
    seeds: Callable[[], Mapping[str, bytes]]
    """Inputs that it takes, by the names of their files."""
    mutations: tuple[Mutate, ...] = ()
    """Beside those of plain bytes: such as keep the form of the file."""

    @property
    def folder(self) -> Path:
        """Its inputs in the repository."""
        return CORPUS / self.name

    def corpus(self, kind: str = "") -> list[tuple[str, bytes]]:
        """(file's name, contents) of the stored inputs: the seeds, and all that once failed."""
        paths = sorted(self.folder.glob(f"{kind}*"))
        return [(_file_name(path.name), path.read_bytes()) for path in paths]

    def fill(self, folder: Path, *without: str) -> Path:
        """Write the seeds into a folder."""
        for name, data in _stored_seeds(self):
            if name not in without:
                (folder / name).write_bytes(data)
        return folder

    def keep(self, kind: str, name: str, data: bytes) -> Path:
        """Store an input in the repository."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = f"{hashlib.sha256(data).hexdigest()[:8]}-" if kind == FAULT else ""
        path = self.folder / f"{kind}{mark}{name}"
        path.write_bytes(data)
        return path

    def inputs(self, rng: random.Random) -> Iterator[tuple[str, bytes]]:
        """Mutated inputs, for ever: each a stored one with one change, or several."""
        seeds, stored = self.corpus(SEED), self.corpus()
        while True:
            name, data = rng.choice(seeds if rng.random() < 0.8 else stored)
            yield name, self.mutated(rng, data, stored)

    def mutated(self, rng: random.Random, data: bytes, stored: list[tuple[str, bytes]]) -> bytes:
        """An input with one change, or several; some put in a part of a stored one."""
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            mutations = self.mutations if self.mutations and rng.random() < 0.6 else (mutate_bytes,)
            data = rng.choice(mutations)(rng, data)
            if rng.random() < 0.05:
                data = splice(rng, data, rng.choice(stored)[1])
        return data

    def check(self, name: str, data: bytes) -> bool:
        """Read an input; whether it was taken. Raises ``Fault``."""

        def ring(number: int, frame: FrameType | None) -> None:
            raise _Endless

        before = [(each, signal.signal(each, ring)) for each in (signal.SIGALRM, signal.SIGPROF)]
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.read(name, data) is not False
        except _Endless as error:
            raise Fault(f"{self.name}: no answer after {SECONDS} s") from error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of polars is no Exception
            if is_refusal(error):
                return False
            raise Fault(f"{self.name}: {type(error).__name__}: {error}") from error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for each, handler in before:
                signal.signal(each, handler)


@functools.cache
def _stored_seeds(reader: Reader) -> list[tuple[str, bytes]]:
    return reader.corpus(SEED)


def _file_name(stored: str) -> str:
    return stored.removeprefix(SEED) if stored.startswith(SEED) else stored.split("-", 2)[2]


def is_refusal(error: BaseException) -> bool:
    """Whether an error is a sentence of the library: of a kind that people are shown, raised by its own code."""
    from sparsedp.accounting import BudgetExceeded

    if not isinstance(error, ValueError | OSError | BudgetExceeded) or isinstance(error, UnicodeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, OSError) or Path(frames[-1].filename).is_relative_to(SOURCE)


TOKENS = (
    *(b"", b"\0", b"\n", b"\r\n", b"\t", b",", b'"', b'""', b"|", b"=", b":", b"-", b" ", b"#", b"\\", b"%s", b"{", b"}", b"["),
    *(b"]", b"0", b"1", b"-1", b"1e308", b"1e999", b"-0.0", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"null", b"true"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"4294967296", b"9" * 400, b"0x10", b"1_000"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"\xff\xfe", b"../"),
    *(b"2020-13-45", b"2020-01-01", b"&a ", b"*a", b"!!python/object:os.system", b"<<: *a", b"? ", b"- ", b"---\n", b"a: b\n"),
)  # fmt: skip


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes: a bit, a token put in or over, a part left out, doubled, moved, cut off."""
    if not data:
        return rng.choice(TOKENS)
    at = rng.randrange(len(data))
    length = min(rng.choice((1, 1, 2, 4, 8, 16, 64, len(data))), len(data) - at)
    match rng.randrange(8):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + rng.choice(TOKENS) + data[at:]
        case 2:
            token = rng.choice(TOKENS)
            return data[:at] + token + data[at + len(token) :]
        case 3:
            return data[:at] + data[at + length :]
        case 4:
            return data[: at + length] + data[at:]
        case 5:
            other = rng.randrange(len(data))
            return data[:other] + data[at : at + length] + data[other:]
        case 6:
            return data[:at]
        case _:
            return data[:at] + rng.randbytes(length) + data[at + length :]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one input and the end of another."""
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e308, float("inf")),
    *(float("-inf"), float("nan"), "", " ", "0", "1", "-1", "nan", "inf", "1e400", "x" * 300, "\0", "\ud800", "é", "a,b", "../x"),
    *([], {}, [None], [[]], {"": None}, {"type": "GaussianDpEvent"}, [1] * 300, [1.5, "a"], "dp-sgd", "fest", "pctr", "private"),
)  # fmt: skip


def mutate_value(rng: random.Random, value: Any, odd: tuple[Any, ...] = ODD_VALUES) -> Any:
    """Change one place in a tree of lists and dicts: another value, one left out, one more, two exchanged."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, rng.choice(("", "x", "type", f"{key}_")): rng.choice(odd)}
            case 2:
                return {**value, key: value[rng.choice(list(value))]}
            case _:
                return {**value, key: mutate_value(rng, value[key], odd)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case 2:
                return [*value[:at], rng.choice(odd), *value[at:]]
            case _:
                return [*value[:at], mutate_value(rng, value[at], odd), *value[at + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((value + 1, value - 1, -value, value * 2, value // 3 if abs(value) < 1e300 else 0))
    return rng.choice(odd)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Change a value of a JSON text; bytes that are none stay as they are."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)
    return json.dumps(mutate_value(rng, value), indent=1).encode("utf-8", "surrogatepass")


def mutate_line(rng: random.Random, data: bytes) -> bytes:
    """Leave out, double or exchange a line."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return mutate_bytes(rng, data)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = mutate_bytes(rng, lines[at])
    return b"".join(lines)


def mutate_cell(rng: random.Random, data: bytes) -> bytes:
    """Put another value into a cell of a table with tabs or commas."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    cut = b"\t" if b"\t" in lines[at] else b","
    cells = lines[at].split(cut)
    place = rng.randrange(len(cells))
    cells[place] = rng.choice((*TOKENS, *cells, b"0.5", b"abc", b"68fd1e64", b"a|b|c"))
    if rng.random() < 0.1:
        cells.insert(place, rng.choice(cells))
    lines[at] = cut.join(cells)
    return b"\n".join(lines)
