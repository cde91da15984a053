"""One turn of a reader: the inputs that it was given, and how many it took, refused and failed on."""

from __future__ import annotations

import resource
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.fuzzing import FAULT, Fault, Reader

MEMORY = 3 * 2**30
"""What an input may make a reader allocate."""
DIFFERENT = 20
"""So many different faults end a reader's turn."""


@dataclass
class Trial:
    """A reader's turn, of so many inputs or seconds; it prints faults as they come, and counts now and then."""

    reader: Reader
    inputs: int
    seconds: float
    tried: int = 0
    taken: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """By kind: the error and its place."""
    began: float = field(default_factory=time.monotonic)
    is_over: bool = False

    def give(self, file: str, data: bytes) -> None:
        """Let the reader read an input; a fault of a new kind is printed and its input kept."""
        self.tried += 1
        limit_memory()
        try:
            self.taken += self.reader.check(file, data)
        except Fault as fault:
            self._note(fault, file, data)
        is_late = time.monotonic() - self.began > self.seconds
        self.is_over = self.tried >= self.inputs or is_late or len(self.faults) == DIFFERENT
        if self.tried % 10_000 == 0 or self.is_over:
            print(self.counts(), flush=True)

    def counts(self) -> str:
        """What the reader did so far, in one line."""
        passed = time.monotonic() - self.began
        failed = self.faults.total()
        return (
            f"{self.reader.name}: {self.tried:,} inputs, {self.taken:,} taken, "
            f"{self.tried - self.taken - failed:,} refused, {failed:,} faults; "
            f"{passed:.0f} s, {self.tried / max(passed, 1e-9):,.0f} a second"
        )

    def _note(self, fault: Fault, file: str, data: bytes) -> None:
        cause = fault.__cause__ or fault
        place = traceback.extract_tb(cause.__traceback__)[-1]
        kind = f"{type(cause).__name__} at {Path(place.filename).name}:{place.lineno}"
        self.faults[kind] += 1
        if self.faults[kind] == 1:
            print(f"{fault}\n  {kind}: {self.reader.keep(FAULT, file, data)}", flush=True)
            traceback.print_exception(cause, limit=-6)


def limit_memory() -> None:
    """Let the next input allocate no more than ``MEMORY``. Allocators keep address space, so the limit moves with it."""
    usage = Path("/proc/self/statm")
    if usage.exists():
        pages = int(usage.read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
