"""How often each of very many values occurs, in bounded memory: sorted runs on disk, merged by range."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.durable import write_file
from sparsedp.core.text_files import read_json_object
from sparsedp.core.typed_fields import check_fields
from sparsedp.core.validation import check_count
from sparsedp.data.schema import SourcePosition

RUN_ENTRIES = 2**24
_STATE = "state.json"


class ValueCounts:
    """Counts of ids in `range(size)`, gathered block by block into a folder.

    At most about `entries` (id, count) pairs are in memory; beyond that they go to disk as a sorted run,
    together with the place in the input up to which everything is counted, from which an interrupted count
    goes on.
    """

    def __init__(self, folder: Path, size: int, entries: int = RUN_ENTRIES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.size = size
        self.counted = SourcePosition()
        self._folder = folder
        self._entries = entries
        self._runs = 0
        self._pending: list[SparseCounts] = []
        if (folder / _STATE).exists():
            state = read_json_object(folder / _STATE)
            try:
                self._runs, self.counted = (
                    check_count("runs", state["runs"], 0),
                    SourcePosition(**state["counted"]),
                )
                check_fields(self.counted)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{folder / _STATE} is damaged ({error}): remove {folder} to count again"
                ) from error

    def add(self, counts: SparseCounts, end: SourcePosition) -> None:
        """Add the counts of the block that ends at `end`."""
        self._pending.append(counts)
        self.counted = end
        if sum(counts.ids.size for counts in self._pending) >= self._entries:
            self._spill()

    def ranges(self) -> Iterator[tuple[int, SparseCounts]]:
        """Yield the total counts, cut into ranges that together are `range(size)`: the first id, the counts from there on."""
        self._spill()
        runs = [np.load(self._run(number), mmap_mode="r") for number in range(self._runs)]
        bounds = self._bounds(runs)
        for low, high in itertools.pairwise(bounds):
            pieces = [run[:, slice(*np.searchsorted(run[0], (low, high)))] for run in runs]
            together = np.concatenate([np.asarray(piece) for piece in pieces], axis=1)
            yield low, SparseCounts.of(together[0] - low, high - low, together[1].astype(np.float64))

    def _bounds(self, runs: list[I64]) -> list[int]:
        """Cut the ids so that no range holds many more entries than fit, by every 1024th of each run."""
        looked = np.sort(np.concatenate([run[0, ::1024] for run in runs]))
        pieces = -(-1024 * len(looked) // self._entries)
        inner = looked[len(looked) * np.arange(1, pieces) // pieces]
        return [0, *np.unique(inner[inner > 0]).tolist(), self.size]

    def _spill(self) -> None:
        if not self._pending and self._runs:
            return
        total = SparseCounts.sum(self._pending, self.size)
        run = np.stack([total.ids, total.values.astype(np.int64)])
        with self._run(self._runs).open("wb") as file:
            np.save(file, run)
        self._pending, self._runs = [], self._runs + 1
        write_file(self._folder / _STATE, json.dumps({"runs": self._runs, "counted": asdict(self.counted)}))

    def _run(self, number: int) -> Path:
        return self._folder / f"run-{number:05d}.npy"
