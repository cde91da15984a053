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
_ZEROS = memoryview(bytes(1 << 16))
"""What is encrypted: small enough to stay in a core's cache while it is read again and again."""

_generation = 0
"""How many forks lie between the first process and this one."""
_adoption = threading.Lock()
"""Held while a seeded keystream is made this process's own."""


def _count_fork() -> None:
    global _generation, _adoption
    _generation += 1
    _adoption = threading.Lock()


os.register_at_fork(after_in_child=_count_fork)


class Keystream:
    """The bytes of AES-256-CTR(key) from ``position`` on; the state is exactly (key, position).

    Guarantee: under the usual assumption on AES and HMAC, bytes at different positions, and bytes under keys
    derived with different labels, are indistinguishable from independent uniform ones. No byte is handed out
    twice: a private keystream refuses to continue in a forked child, where parent and child would draw the same
    bytes, and no keystream can be copied or pickled. Threads may share one. A fork may come at any time: a
    child never waits for a lock that a thread of its parent held.
    """

    __slots__ = ("_context", "_generation", "_lock", "key", "position", "private")

    key: bytes
    """The secret key: with it all noise ever drawn can be subtracted."""
    position: int
    """How many bytes have been handed out."""
    private: bool

    def __init__(self, key: bytes, position: int = 0, *, private: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key: must have {KEY_BYTES} bytes, got {len(key)}")
        if position < 0:
            raise ValueError(f"position: must not be negative, got {position}")
        self.key = key
        self.position = position
        self.private = private
        self._generation = _generation
        self._lock = threading.Lock()
        self._context: CipherContext | None = None

    def fill(self, buffer: memoryview | bytearray) -> int:
        """Overwrite a contiguous buffer with the next bytes; return the position of the first one."""
        target = memoryview(buffer).cast("B")
        with self._lock_of_this_process():
            start = self.position
            context = self._context or self._context_at(start)
            for begin in range(0, len(target), len(_ZEROS)):
                part = target[begin : begin + len(_ZEROS)]
                context.update_into(_ZEROS[: len(part)], part)
            self._context = context
            self.position = start + len(target)
        return start

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        buffer = bytearray(count)
        self.fill(buffer)
        return bytes(buffer)

    def reserve(self, count: int) -> Keystream:
        """A reader of the next ``count`` bytes, which this keystream then passes over."""
        with self._lock_of_this_process():
            reader = Keystream(self.key, self.position, private=self.private)
            self.position += count
            self._context = None
        return reader

    def derive(self, label: str) -> bytes:
        """A separate key for every label, by HMAC-SHA256; this keystream does not advance."""
        self._refuse_forked_copy()
        return hmac.digest(self.key, label.encode(), "sha256")

    def branch(self, label: str, position: int) -> Keystream:
        """The keystream of the key derived for ``label``, from ``position`` on; this one does not move."""
        return Keystream(self.derive(label), position, private=self.private)

    def _context_at(self, position: int) -> CipherContext:
        block, skip = divmod(position, _BLOCK)
        context = Cipher(AES(self.key), modes.CTR(block.to_bytes(_BLOCK, "big"))).encryptor()
        context.update(bytes(skip))
        return context

    def _lock_of_this_process(self) -> threading.Lock:
        """After a fork the old lock may be held for ever: refuse before taking it, or take a new one."""
        self._refuse_forked_copy()
        if self._generation != _generation:
            with _adoption:
                if self._generation != _generation:
                    self._lock, self._context = threading.Lock(), None
                    self._generation = _generation
        return self._lock

    def _refuse_forked_copy(self) -> None:
        if self.private and self._generation != _generation:
            raise RuntimeError(
                "this secure stream belongs to the process that forked this one and will draw the same noise "
                "there: make a NoiseSource in the process that uses it"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream is not copied or pickled: a copy would draw the same noise again")

    def __repr__(self) -> str:
        return f"<Keystream at byte {self.position}>"
