"""Fuzzing guided by coverage: atheris keeps the inputs that reach code of the library no other did, and changes those.

An input of atheris's is one byte, the number of the file's name, and the file's contents.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import re
import shutil
from pathlib import Path
from typing import NoReturn

import atheris

LONGEST = 2**20
"""Bytes of an input."""
NEVER = 10**6
"""Seconds after which atheris's own clock would ring: that of `Reader.check` is used."""


def fuzz_guided(name: str, inputs: int, seconds: float, seed: int) -> NoReturn:
    """Try a reader, and end the process, as atheris does: with status 1 if there was a fault."""
    with atheris.instrument_imports(include=["sparsedp"], exclude=_compiled_modules()):
        with contextlib.redirect_stderr(io.StringIO()):  # a line for each module
            from support.fuzz_data import fresh_folder, workplace
            from support.fuzz_readers import READERS
            from support.fuzz_trial import Trial

        reader = READERS[name]
        stored = reader.corpus()
        names = sorted({file for file, _ in stored})
        units = fresh_folder("units")
        for number, (file, data) in enumerate(stored):
            (units / str(number)).write_bytes(bytes([names.index(file)]) + data)
        trial = Trial(reader, inputs, seconds)

        def give(unit: bytes) -> None:
            trial.give(names[unit[0] % len(names)] if unit else names[0], unit[1:])
            if trial.is_over:
                new = len(os.listdir(units)) - len(stored)
                print(f"{name}: {new:,} inputs reached what none before them did", flush=True)
                shutil.rmtree(workplace(), ignore_errors=True)
                os._exit(bool(trial.faults))

        def mutate(unit: bytes, longest: int, number: int) -> bytes:
            rng = random.Random(number)
            own = rng.random() < 0.5
            data = reader.mutated(rng, unit[1:], stored) if own else atheris.Mutate(unit[1:], longest - 1)
            return (unit[:1] + data)[:longest]

        options = [f"-seed={seed + 1}", f"-max_len={LONGEST}", f"-timeout={NEVER}", "-rss_limit_mb=0"]
        options += ["-mutate_depth=1", "-reduce_inputs=0", "-reload=0", "-verbosity=0"]
        atheris.Setup([name, *options, str(units)], give, custom_mutator=mutate)
        atheris.Fuzz()
    raise AssertionError("atheris ends the process")


def _compiled_modules() -> list[str]:
    """The library's modules with functions that numba compiles: it knows nothing of atheris's instructions."""
    found = importlib.util.find_spec("sparsedp")
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parents[1]
    return [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.glob("sparsedp/**/*.py")
        if re.search(r"import (numba|compiled)\b", path.read_text())
    ]
