"""Where all randomness of a run comes from."""

from __future__ import annotations

import hashlib
import operator
import secrets
from collections.abc import Mapping
from typing import NoReturn

from sparsedp.randomness.keystream import KEY_BYTES
from sparsedp.randomness.stream import Stream


class NoiseSource:
    """Three independent streams: who is in a batch, which rows are selected, what noise is added.

    ``NoiseSource()`` takes its keys from the operating system and is what a private result needs.
    ``NoiseSource(seed=7)`` is the same generator keyed from the seed: reproducible, not private, for
    anyone who knows the seed can subtract the noise. A source that was ever seeded stays marked as seeded.

    A secure source refuses to draw in a forked child and cannot be copied or pickled: each process makes
    its own. ``state_dict`` holds the keys: it belongs in the run's private folder, never in an exported
    model, and continuing twice from one state adds the *same* noise to two results. To branch from a
    checkpoint, make a new source.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.sampling = _new_stream("sampling", seed)
        self.selection = _new_stream("selection", seed)
        self.noise = _new_stream("noise", seed)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable: False when seeded."""
        return all(stream.is_private for stream in self._streams)

    def state_dict(self) -> dict[str, dict[str, str | int]]:
        """The state of each stream, in plain integers and strings."""
        return {stream.name: stream.state() for stream in self._streams}

    def load_state_dict(self, state: Mapping[str, Mapping[str, str | int]]) -> None:
        """Continue exactly where ``state_dict`` was taken; a seeded state makes this source not private."""
        if set(state) != {stream.name for stream in self._streams}:
            raise ValueError("state: not the state of a NoiseSource")
        before = self.state_dict()
        try:
            for stream in self._streams:
                stream.restore(state[stream.name])
        except ValueError:
            for stream in self._streams:
                stream.restore(before[stream.name])
            raise

    @property
    def _streams(self) -> tuple[Stream, Stream, Stream]:
        return self.sampling, self.selection, self.noise

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a NoiseSource is not copied or pickled, a copy would draw the same noise again: "
            "make one per process, or use state_dict() to resume a run"
        )

    def __repr__(self) -> str:
        return f"NoiseSource({'secure' if self.is_private else 'seeded: reproducible, not private'})"


def _new_stream(name: str, seed: int | None) -> Stream:
    if seed is None:
        return Stream(name, secrets.token_bytes(KEY_BYTES), private=True)
    key = hashlib.sha256(f"sparsedp seed {operator.index(seed)} stream {name}".encode()).digest()
    return Stream(name, key, private=False)
