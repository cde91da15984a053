"""Mutated inputs to everything that reads a file or an option; what fails is kept in `tests/fuzz/corpus`.

python scripts/fuzz.py [--reader NAME] [--inputs 100000] [--seconds 600] [--seed 0]
python scripts/fuzz.py --renew    writes the seeds again, after a format has changed

A reader takes an input or refuses it in a sentence of its own; `tests/support/fuzzing.py` says what a fault is. The exit
status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
MEMORY = 3 * 2**30
"""What an input may make a reader allocate."""
DIFFERENT = 20
"""So many different faults end a reader's turn."""


def fuzz(name: str, inputs: int, seconds: float, seed: int) -> int:
    """Try a reader; print what it did. Returns the number of different faults."""
    from support.fuzz_readers import READERS
    from support.fuzzing import FAULT, Fault

    reader = READERS[name]
    made = reader.inputs(random.Random(f"{name} {seed}"))
    known: Counter[str] = Counter()
    taken = tried = 0
    began = time.monotonic()
    is_last = False
    while not is_last:
        file, data = next(made)
        tried += 1
        limit_memory()
        try:
            taken += reader.check(file, data)
        except Fault as fault:
            cause = fault.__cause__ or fault
            place = traceback.extract_tb(cause.__traceback__)[-1]
            kind = f"{type(cause).__name__} at {Path(place.filename).name}:{place.lineno}"
            known[kind] += 1
            if known[kind] == 1:
                print(f"{fault}\n  {kind}: {reader.keep(FAULT, file, data)}", flush=True)
                traceback.print_exception(cause, limit=-6)
        passed = time.monotonic() - began
        is_last = tried == inputs or passed > seconds or len(known) == DIFFERENT
        if tried % 10_000 == 0 or is_last:
            print(
                f"{name}: {tried:,} inputs, {taken:,} taken, {tried - taken - known.total():,} refused, "
                f"{known.total():,} faults; {passed:.0f} s, {tried / max(passed, 1e-9):,.0f} a second",
                flush=True,
            )
    return len(known)


def limit_memory() -> None:
    """Let the next input allocate no more than ``MEMORY``. Allocators keep address space, so the limit moves with it."""
    usage = Path("/proc/self/statm")
    if usage.exists():
        pages = int(usage.read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))


def renew() -> None:
    """Write the seeds of all readers."""
    from support.fuzz_readers import READERS
    from support.fuzzing import SEED

    for reader in READERS.values():
        for old in reader.folder.glob(f"{SEED}*"):
            old.unlink()
        for name, data in reader.seeds().items():
            reader.keep(SEED, name, data)


def main() -> int:
    """Try one reader, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="the most that a reader may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--renew", action="store_true")
    options = parser.parse_args()
    if options.renew:
        renew()
        return 0
    from support.fuzz_readers import READERS

    names = [options.reader] if options.reader else list(READERS)
    return int(sum(fuzz(name, options.inputs, options.seconds, options.seed) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main())
