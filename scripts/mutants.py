"""Do the tests notice? Plant each fault of `tests/mutants.toml` in a copy of the source: a test must then fail.

python scripts/mutants.py [--share 1/10] [--only WORD] [--workers 2] [--quick]

A mutant names the test that is known to kill it. That one runs first; if it passes, all tests of the mutated
file run, then all of its room (with `--quick`: none of these). The exit status is 1 if one survives whose entry does
not say why, or if fewer than 95% are killed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS, LIST = ROOT / "src", ROOT / "tests", ROOT / "tests" / "mutants.toml"
BAR = 0.95
SECONDS = (120, 300, 1200)
"""How long the tests of a mutant may take: the one that is named, those of its file, those of its room."""
HEAVY = (
    *("cryptography.hazmat.primitives.ciphers", "dp_accounting", "hypothesis", "numba", "opacus", "polars", "pydantic", "pytest"),
    *("safetensors.torch", "scipy.stats", "sklearn.linear_model", "sympy", "torch._dynamo", "torch.distributed", "typer", "yaml"),
)  # fmt: skip
"""What the tests import and the library's source has no part in."""
ENDLESS = "(does not end)"


@dataclass(frozen=True)
class Mutant:
    """One fault: ``old`` stands exactly once in ``file``, and ``new`` in its place is wrong."""

    name: str
    file: str
    """Below ``src/sparsedp``."""
    old: str
    new: str
    test: str
    """The test that fails, or its file."""
    survives: str = ""
    """Why no quick test can kill it, where that is so."""

    @property
    def room(self) -> str:
        """The first folder of the file."""
        return self.file.split("/")[0]

    def tests(self) -> Iterator[list[str]]:
        """What to run, the likeliest first."""
        yield [self.test]
        stem = Path(self.file).stem
        yield [str(path) for path in sorted((TESTS / self.file).parent.glob(f"test_{stem}*.py"))]
        yield [str(TESTS / self.room)]


def read(path: Path = LIST) -> list[Mutant]:
    """All mutants of a list."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]


def faults(mutants: Sequence[Mutant]) -> Iterator[str]:
    """What is wrong with the list itself."""
    for name, count in Counter(mutant.name for mutant in mutants).items():
        if count > 1:
            yield f"{name!r} stands {count} times"
    for mutant in mutants:
        path = SOURCE / "sparsedp" / mutant.file
        found = path.read_text().count(mutant.old) if path.is_file() else 0
        if found != 1 or mutant.new == mutant.old:
            yield f"{mutant.name!r}: its text stands {found} times in {mutant.file}"
        file, _, function = mutant.test.partition("::")
        function = function.partition("[")[0]
        if not (ROOT / file).is_file() or (function and f"def {function}(" not in (ROOT / file).read_text()):
            yield f"{mutant.name!r}: no test {mutant.test}"


def killer(mutant: Mutant, *, quick: bool = False) -> str | None:
    """The test that fails on the mutant, None if none does (``quick``: if the named one does not)."""
    with tempfile.TemporaryDirectory() as folder:
        source = _copy_with(mutant, Path(folder))
        for tests, seconds in zip(mutant.tests(), SECONDS[: 1 if quick else None], strict=not quick):
            failed = first_failure(source, tests, seconds) if tests else None
            # That one test does not end is the fault's doing; that many take long is not.
            if failed is not None and (seconds == SECONDS[0] or not failed.endswith(ENDLESS)):
                return failed
    return None


def _copy_with(mutant: Mutant, folder: Path) -> Path:
    """The mutated source; compiled loops are compiled anew where one of them may have changed."""
    path = SOURCE / "sparsedp" / mutant.file
    text = path.read_text()
    copy = shutil.copytree(
        SOURCE, folder / "src", ignore=_stale_loops(mutant) if "@compiled" in text else None
    )
    (copy / "sparsedp" / mutant.file).write_text(text.replace(mutant.old, mutant.new))
    return copy


def _stale_loops(mutant: Mutant) -> Callable[[str, list[str]], set[str]]:
    """Which compiled loops not to copy: those of the mutant's room and of later ones, which alone may hold its code."""
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    rooms = [layer.removeprefix("sparsedp.") for layer in layers]  # the last room first
    stale = {SOURCE / "sparsedp" / room for room in rooms[: rooms.index(mutant.room) + 1]}

    def chosen(folder: str, names: list[str]) -> set[str]:
        is_stale = not stale.isdisjoint((Path(folder), *Path(folder).parents))
        return {name for name in names if is_stale and name.endswith((".nbi", ".nbc"))}

    return chosen


def first_failure(source: Path, tests: Sequence[str], seconds: int) -> str | None:
    """The first of the ``tests`` that fails on the library at ``source``, in a process of its own."""
    log = source.parent / "log"
    child = os.fork()
    if child == 0:
        status = 3
        try:
            status = _run(source, tests, log, seconds)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in (0, 4, 5):  # all passed, or there was none
        return None
    if status == -signal.SIGALRM:
        return f"{tests[0]} {ENDLESS}"
    lines = [line for line in log.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines]
    return failed[0] if failed else f"{tests[0]} (ended with {status})"


def _run(source: Path, tests: Sequence[str], log: Path, seconds: int) -> int:
    import pytest

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.setsid()
    signal.alarm(seconds)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(source)
    os.environ["SPARSEDP_CACHE"] = str(source.parent / "cache")  # a fault must not be remembered
    sys.path.insert(0, str(source))
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header"]
    return int(pytest.main([*options, *tests]))


def _import_heavy() -> None:
    """Once, for all the processes that test a mutant. Nothing of the library itself."""
    for name in HEAVY:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # pytest collects garbage several times in each of the processes


def tried(mutants: Sequence[Mutant], workers: int, quick: bool) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant with what killed it, as it comes; several processes take turns through the list."""
    streams = []
    for worker in range(workers):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            status = 1
            try:
                with open(write_end, "w", buffering=1) as results:
                    for number in range(worker, len(mutants), workers):
                        results.write(json.dumps([number, killer(mutants[number], quick=quick)]) + "\n")
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        streams.append(open(read_end))  # noqa: SIM115
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if not line:
                selector.unregister(key.fileobj)
                continue
            number, by = json.loads(line)
            yield mutants[number], by
    if any(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(workers)):
        raise RuntimeError("a worker ended with an error, see above")


def main() -> int:
    """Try all, or a share of the list; print what survives."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--share", default="1/1", help="1/10: the first, 11th, 21st... of the list")
    parser.add_argument("--only", default="", help="mutants whose name or file has this word")
    parser.add_argument("--workers", type=int, default=1, help="so many mutants at a time")
    parser.add_argument("--quick", action="store_true", help="run the named test alone")
    options = parser.parse_args()
    nth, shares = (int(part) for part in options.share.split("/"))
    mutants = read()
    if wrong := [*faults(mutants)]:
        print("\n".join(wrong))
        return 1
    chosen = [each for each in mutants if options.only in f"{each.file} {each.name}"][nth - 1 :: shares]
    os.environ["OMP_NUM_THREADS"] = "1"
    _import_heavy()
    killed: Counter[str] = Counter()
    begin = time.monotonic()
    unexplained = 0
    for mutant, by in tried(chosen, options.workers, options.quick):
        killed[mutant.room] += by is not None
        unexplained += by is None and not mutant.survives
        verdict = "killed  " if by is not None else "SURVIVED"
        print(f"{verdict} {mutant.file}: {mutant.name} <- {by or mutant.survives or None}", flush=True)
    for room, count in sorted(Counter(mutant.room for mutant in chosen).items()):
        print(f"{room}: {killed[room]} of {count} killed")
    share = killed.total() / max(len(chosen), 1)
    print(f"{killed.total()} of {len(chosen)} killed ({share:.1%}) in {time.monotonic() - begin:.0f} s")
    return int(share < BAR or unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
