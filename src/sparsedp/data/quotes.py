"""Quotes in separated text: which of them enclose a value, and which are characters like others.

The rule: a quote encloses only at the start of a value, and only where another one ends the value, before a separator or
the end of the line; between the two, a pair stands for one quote. Any other quote is a character, as in `5" pipe`. A parser
that counts quotes would take it for the start of a value, and the lines up to the next quote for that value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparsedp.core.arrays import I64


@dataclass(frozen=True)
class Quotes:
    """The quotes of a text with this separator, one byte each. Texts begin at the start of a line."""

    separator: str
    quote: str = '"'

    def closed(self, text: bytes) -> bytes:
        """The same values, in quotes that can be counted; lines keep their numbers."""
        if text.count(self._quote) % 2 == 0 and self._can_be_counted(text):
            return text
        pieces, done = [], 0
        while (start := self._next_line(text, done)) is not None:
            pieces.append(text[done:start])
            for value in self._values(text, start):
                pieces += [self._enclosed(value), value["end"]]
                done = value.end()
        return b"".join([*pieces, text[done:]])

    def last_line_end(self, text: bytes) -> int:
        """The length of the whole lines of a text that goes on: up to the last line break that is in no value."""
        end = text.rfind(b"\n") + 1
        if not end or self._quote not in text:
            return end
        return self._counted_end(text, end) if self._can_be_counted(text) else self._read_end(text)

    @property
    def _quote(self) -> bytes:
        return self.quote.encode()

    @cached_property
    def _value(self) -> re.Pattern[bytes]:
        """A value, in quotes or plain, and what ends it."""
        cut, quote = re.escape(self.separator), re.escape(self.quote)
        end = rf"{cut}|\r?\n|\r?\Z"
        plain = rf"[^{cut}\r\n]*+(?:\r(?!\n|\Z)[^{cut}\r\n]*+)*+"
        quoted = f"{quote}(?:[^{quote}]|{quote}{quote})*+{quote}"
        return re.compile(f"(?:{quoted}(?={end})|(?P<plain>{plain}))(?P<end>{end})".encode())

    @cached_property
    def _unclosed(self) -> re.Pattern[bytes]:
        """A value that more text may close."""
        quote = re.escape(self.quote)
        return re.compile(rf"{quote}(?:[^{quote}]|{quote}{quote})*+(?:{quote}\r?)?\Z".encode())

    def _can_be_counted(self, text: bytes) -> bool:
        """Whether each quote opens a value, closes one or is of a pair inside one: then every second one closes.

        The last one may open a value that goes on.
        """
        data = np.frombuffer(text, np.uint8)
        quotes: I64 = np.flatnonzero(data == ord(self.quote))
        before, after = quotes[::2] - 1, quotes[1::2] + 1
        before, after = before[before >= 0], after[after < len(data)]
        returns = data[after] == ord("\r")
        breaks = after[returns] + 1
        beside = np.zeros(256, bool)
        beside[list(f"\n{self.separator}{self.quote}".encode())] = True
        return bool(
            beside[data[before]].all()
            and beside[data[after[~returns]]].all()
            and (data[breaks[breaks < len(data)]] == ord("\n")).all()
        )

    def _counted_end(self, text: bytes, end: int) -> int:
        quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(self.quote))
        while end and (before := int(np.searchsorted(quotes, end))) % 2:
            # The break lies inside quotes, opened at the last quote before it: go back before that line.
            end = text.rfind(b"\n", 0, int(quotes[before - 1])) + 1
        return end

    def _read_end(self, text: bytes) -> int:
        done = 0
        while (start := self._next_line(text, done)) is not None:
            for value in self._values(text, start):
                goes_on = not value["end"].strip(b"\r") or self._unclosed.match(text, value.start())
                if goes_on:
                    return start
                done = value.end()
        return text.rfind(b"\n") + 1

    def _next_line(self, text: bytes, done: int) -> int | None:
        """Where the next line with a quote begins."""
        quote = text.find(self._quote, done)
        return None if quote < 0 else max(done, text.rfind(b"\n", done, quote) + 1)

    def _values(self, text: bytes, start: int) -> Iterator[re.Match[bytes]]:
        """The values of the line that begins at `start`, each with what ends it."""
        while True:
            value = self._value.match(text, start)
            assert value is not None  # a value may be empty, and a text ends somewhere
            yield value
            start = value.end()
            if value["end"] != self.separator.encode():
                return

    def _enclosed(self, value: re.Match[bytes]) -> bytes:
        """A value as a parser that counts quotes reads it."""
        plain = value["plain"]
        if plain is None:
            return value[0].removesuffix(value["end"])
        if self._quote not in plain:
            return bytes(plain)
        return self._quote + plain.replace(self._quote, 2 * self._quote) + self._quote
