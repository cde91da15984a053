"""AES-256 in counter mode as a seekable sequence of random bytes."""

from __future__ import annotations

import hmac
import os
import threading
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES

KEY_BYTES = 32
_BLOCK = 16
_ZEROS = bytes(1 << 16)
"""What is encrypted: small enough to stay in a core's cache while it is read again and again."""

_generation = 0
"""How many forks lie between the first process and this one."""


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


class Keystream:
    """The bytes AES-256-CTR(key) from ``position`` on; the state is exactly (key, position).

    Guarantee: under the usual assumption on AES, bytes at different positions, and bytes under keys
    derived with different labels, are indistinguishable from independent uniform ones. No byte is ever
    handed out twice: a *guarded* keystream refuses to continue in a forked child, where parent and child
    would otherwise draw the same bytes, and no keystream can be copied or pickled.
    """

    __slots__ = ("_context", "_generation", "_guarded", "_key", "_lock", "_position")

    def __init__(self, key: bytes, position: int = 0, *, guarded: bool) -> None:
        self._guarded = guarded
        self._lock = threading.Lock()
        self.seek(key, position)

    def seek(self, key: bytes, position: int) -> None:
        """Continue from this key and byte position."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"key: {KEY_BYTES} bytes are needed, got {len(key)}")
        if position < 0:
            raise ValueError(f"position: must not be negative, got {position}")
        self._key = key
        self._position = position
        self._generation = _generation
        self._context: CipherContext | None = None

    @property
    def key(self) -> bytes:
        """The secret. Whoever has it can subtract all noise ever drawn."""
        return self._key

    @property
    def position(self) -> int:
        """How many bytes have been handed out."""
        return self._position

    def fill(self, buffer: memoryview | bytearray) -> int:
        """Overwrite a contiguous buffer with the next bytes; return the position of the first one."""
        target = memoryview(buffer).cast("B")
        with self._lock:
            self._refuse_forked_copy()
            start = self._position
            if self._context is None:
                self._context = self._context_at(start)
            for begin in range(0, len(target), len(_ZEROS)):
                chunk = target[begin : begin + len(_ZEROS)]
                self._context.update_into(_ZEROS[: len(chunk)] if len(chunk) < len(_ZEROS) else _ZEROS, chunk)
            self._position = start + len(target)
        return start

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        buffer = bytearray(count)
        self.fill(buffer)
        return bytes(buffer)

    def reserve(self, count: int) -> Keystream:
        """A reader of the next ``count`` bytes, which this keystream then passes over."""
        with self._lock:
            self._refuse_forked_copy()
            reader = Keystream(self._key, self._position, guarded=self._guarded)
            self.seek(self._key, self._position + count)
        return reader

    def aside(self, label: str, position: int, count: int) -> bytes:
        """Any stretch of the keystream of the key derived for ``label``; this one does not move."""
        return Keystream(self.derive(label), position, guarded=False).take(count)

    def derive(self, label: str) -> bytes:
        """A key of its own for every label (HMAC-SHA256 as a pseudorandom function of the label)."""
        self._refuse_forked_copy()
        return hmac.digest(self._key, label.encode(), "sha256")

    def _context_at(self, position: int) -> CipherContext:
        block, skip = divmod(position, _BLOCK)
        counter = block.to_bytes(_BLOCK, "big")
        context = Cipher(AES(self._key), modes.CTR(counter)).encryptor()
        context.update(bytes(skip))
        return context

    def _refuse_forked_copy(self) -> None:
        if self._guarded and self._generation != _generation:
            raise RuntimeError(
                "this secure stream belongs to the process that forked this one, which will draw the same "
                "noise: make a NoiseSource in the process that uses it"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream is not copied or pickled: a copy would draw the same noise again")

    def __repr__(self) -> str:
        return f"<Keystream at byte {self._position}>"
