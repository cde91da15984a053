"""Mutated inputs to everything that reads a file or an option; what fails is kept in `tests/fuzz/corpus`.

python scripts/fuzz.py [--reader NAME] [--inputs 100000] [--seconds 600] [--seed 0]
python scripts/fuzz.py --engine atheris [...]    guided by the code that inputs reach; needs pip install '.[fuzz]'
python scripts/fuzz.py --renew    writes the seeds again, after a format has changed

A reader takes an input or refuses it in a sentence of its own; `tests/support/fuzzing.py` says what a fault is. The exit
status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]


def fuzz(name: str, inputs: int, seconds: float, seed: int) -> int:
    """Try a reader; print what it did. Returns the number of different faults."""
    from support.fuzz_readers import READERS
    from support.fuzz_trial import Trial

    reader = READERS[name]
    trial = Trial(reader, inputs, seconds)
    made = reader.inputs(random.Random(f"{name} {seed}"))
    while not trial.is_over:
        trial.give(*next(made))
    return len(trial.faults)


def fuzz_by_atheris(name: str | None, inputs: int, seconds: float, seed: int) -> int:
    """Try a reader, or each in a process of its own: atheris ends the process it works in."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: run pip install '.[fuzz]'", file=sys.stderr)
        return 2
    if name is not None:
        from support.fuzz_guided import fuzz_guided

        fuzz_guided(name, inputs, seconds, seed)
    from support.fuzz_readers import READERS

    calls = [[sys.executable, *sys.argv, "--reader", each] for each in READERS]
    return max(subprocess.run(call).returncode != 0 for call in calls)


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
    parser.add_argument(
        "--engine", choices=("plain", "atheris"), default="plain", help="what makes the inputs"
    )
    parser.add_argument("--renew", action="store_true")
    options = parser.parse_args()
    if options.renew:
        renew()
        return 0
    if options.engine == "atheris":
        return fuzz_by_atheris(options.reader, options.inputs, options.seconds, options.seed)
    from support.fuzz_readers import READERS

    if options.reader not in (None, *READERS):
        parser.error(f"--reader: {options.reader!r} is not one of {', '.join(READERS)}")
    names = [options.reader] if options.reader else list(READERS)
    return int(sum(fuzz(name, options.inputs, options.seconds, options.seed) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main())
