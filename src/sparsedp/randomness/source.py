"""Where all randomness of a run comes from."""

from __future__ import annotations

import hashlib
import operator
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from sparsedp.randomness.keystream import KEY_BYTES
from sparsedp.randomness.stream import Stream

_STREAMS = ("sampling", "selection", "noise")


class NoiseSource:
    """Three independent streams: who is in a batch, which rows are selected, what noise is added.

    ``NoiseSource()`` takes its keys from the operating system and is what a private result needs.
    ``NoiseSource(seed=7)`` is the same generator keyed from the seed: reproducible, not private, for
    anyone who knows the seed can subtract the noise. A source that was ever seeded stays marked so.

    A secure source refuses to draw in a forked child and cannot be copied or pickled: each process makes
    its own. ``state_dict`` holds the keys: it belongs in the run's private folder, never in an exported
    model, and continuing twice from one state adds the *same* noise to two results. To branch from a
    checkpoint, make a new source.
    """

    sampling: Stream
    selection: Stream
    noise: Stream

    def __init__(self, seed: int | None = None) -> None:
        self._private = seed is None
        for name in _STREAMS:
            key = secrets.token_bytes(KEY_BYTES) if seed is None else _key_of(operator.index(seed), name)
            setattr(self, name, Stream(name, key, private=self._private))

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable: False when seeded."""
        return self._private

    def state_dict(self) -> dict[str, Any]:
        """Keys and positions of the streams, in plain integers and strings."""
        return {
            "private": self._private,
            "streams": {name: getattr(self, name).state() for name in _STREAMS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken; a seeded state makes this source not private."""
        if set(state) != {"private", "streams"} or set(state["streams"]) != set(_STREAMS):
            raise ValueError("state: not the state of a NoiseSource")
        self._private = self._private and bool(state["private"])
        for name in _STREAMS:
            stream = Stream(name, bytes(KEY_BYTES), private=self._private)
            stream.restore(state["streams"][name])
            setattr(self, name, stream)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a NoiseSource is not copied or pickled, a copy would draw the same noise again: "
            "make one per process, or use state_dict() to resume a run"
        )

    def __repr__(self) -> str:
        return f"NoiseSource({'secure' if self._private else 'seeded: reproducible, not private'})"


def _key_of(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"sparsedp seed {seed} stream {name}".encode()).digest()
