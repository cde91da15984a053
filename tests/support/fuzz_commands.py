"""The command line, for fuzzing: any list of arguments is answered, or refused in one line with exit code 2."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from sparsedp.cli.app import app
from support.fuzz_data import TABLE, workplace
from support.fuzz_runs import LEDGER, PREDICT, RUN, SETTINGS
from support.fuzzing import Reader, mutate_bytes

NAMES = (
    "rows.csv",
    "run",
    "run.ledger",
    "config.yaml",
    "plan.yaml",
    "nothing",
    "out",
    "train.txt",
    ".",
    "tables.json",
)
VALUES = (
    *("", " ", "0", "1", "-1", "2", "0.5", "1e-5", "1e-300", "1e300", "1e999", "nan", "inf", "-inf", "1_0", "0x1", "9" * 30),
    *("true", "é", "\0", "\ud800", "\u0661", "a,b", "a=1", "=", "a=", "a,b=7", "generated:50", "generated:0", "generated:5x2"),
    *("generated:99999999999999999", "adafest", "fest", "dp-sgd", "non-private", "{}", "{a: *b}", "[1, 2]", "click>0.5"),
    *("learning_rate=0.1,0.5", "100x8", "t=50x4x2", "--", "-", "--help", "--json", "text", "*", "|", "\t", "all=5"),
    *("price=0:9", "price=log", "user", "a:b", "os:system", *NAMES),
)  # fmt: skip
COMMANDS = (
    "account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 100 --delta 1e-5",
    "account --ledger run.ledger --delta 1e-5 --json",
    "account --noise-multiplier 2 --examples 1000 --expected-batch-size 10 --epochs 1 --rows-per-user 3",
    "calibrate --epsilon 2 --sampling-rate 0.01 --steps 50 --delta 1e-5",
    "calibrate --epsilon 1 --examples 1000 --expected-batch-size 50 --epochs 1 --algorithm adafest --noise-ratio 3",
    "plan --epsilon 1 --examples 10000 --expected-batch-size 100 --epochs 1 --table 5000x8 --table t=100x4x2",
    "plan --epsilon 1 --data generated:50 --json",
    "train --data generated:50 --epsilon 1 --algorithm adafest --out out --expected-batch-size 10 --seed 3",
    "train --config config.yaml --out out --epochs 2 --unit user --model-options {hidden:[4]} --nproc 2",
    "train text --data train.txt --epsilon 1 --algorithm dp-sgd --out out --max-length 8",
    "resume run --json",
    "resume run --run-data nothing",
    "evaluate run --data generated:50",
    "predict run --input rows.csv --out predicted.csv --id site --strict",
    "export run --out exported",
    "sweep plan.yaml --out swept --jobs 1 --epochs 1",
    "tune --data generated:50 --epsilon 1 --out tuned --grid learning_rate=0.1,0.5 --runs 2 --law geometric",
    "report run --out report.html",
    "prepare table rows.csv --out prepared --label click --categorical site,app --numeric price --hash all=50 --time at",
    "prepare table rows.csv --out prepared --label click>0 --multi-hot tags --cross site,app=9 --scale price=0:9 --null NA",
    "prepare table rows.csv --out prepared --label click --categorical site --user app --rows-per-user 2 --hash site=9",
    "prepare table rows.csv --out prepared --label click --categorical site --vocabulary-is-public --min-count 1",
    "prepare criteo train.txt --out prepared --buckets 50 --strict",
    "bench ledger",
    "reproduce list",
    "demo --out demo",
    "--version",
    "--help",
)


def mutate_arguments(rng: random.Random, data: bytes) -> bytes:
    """Another value, one left out, doubled or moved, or one of another command."""
    arguments = data.decode("utf-8", "surrogateescape").split("\n")
    at, value = rng.randrange(len(arguments)), rng.choice(VALUES)
    match rng.randrange(7):
        case 0:
            arguments.pop(at)
        case 1:
            arguments.insert(at, value)
        case 2:
            arguments.insert(at, arguments[rng.randrange(len(arguments))])
        case 3:
            other = rng.choice(COMMANDS).split()
            start = rng.randrange(len(other))
            arguments += other[start : start + 2]
        case 4:
            changed = mutate_bytes(rng, arguments[at].encode("utf-8", "surrogatepass"))
            arguments[at] = changed.decode("utf-8", "replace").replace("/", "")
        case _:
            arguments[at] = value
    return "\n".join(arguments).encode("utf-8", "surrogatepass")


@functools.cache
def _command() -> Any:
    """The app with its options, which takes a while to make."""
    return typer.main.get_command(app)


@functools.cache
def _home() -> Path:
    """Files that the commands name."""
    home = workplace() / "home"
    home.mkdir(exist_ok=True)
    return home


def _furnish(home: Path) -> None:
    """Put the files in order again, if the last command changed any."""
    if _KNOWN and _state(home) == _KNOWN:
        return
    for path in home.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (home / "run").mkdir()
    RUN.fill(home / "run")
    for reader in (LEDGER, SETTINGS, PREDICT):
        reader.fill(home)
    (home / "rows.csv").write_bytes(TABLE)
    (home / "train.txt").write_bytes(b"no clicks\n")
    (home / "tables.json").write_text('[{"rows": 50, "dim": 4}]')
    _KNOWN.clear()
    _KNOWN.update(_state(home))


_KNOWN: dict[str, tuple[int, int, int]] = {}


def _state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Which files there are and when each was written last."""
    state = {}
    for entry in os.scandir(folder):
        stat = entry.stat(follow_symlinks=False)
        state[entry.path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if entry.is_dir(follow_symlinks=False):
            state |= _state(Path(entry.path))
    return state


def _stop(*_args: Any, **_options: Any) -> NoReturn:
    """In place of work that takes long: the options have been checked."""
    raise typer.Exit(0)


def _refuse(error: Exception) -> NoReturn:
    """In place of one line and exit code 2: the error itself."""
    raise error


HELPED = "NoArgsIsHelpError"
"""A group of commands without one of them: the help stands in place of a message."""
LONG = (
    "subprocess.run",
    "sparsedp.runs.start",
    "sparsedp.runs.train",
    "sparsedp.runs.processes.train_on_processes",
    "sparsedp.runs.processes.resume_on_processes",
    "sparsedp.runs.tuning.tune",
    "sparsedp.runs.sweep.sweep",
    "sparsedp.runs.resume",
    "sparsedp.runs.evaluation.evaluate_run",
    "sparsedp.report.write_report",
)


@functools.cache
def _replaced() -> list[tuple[Any, str, Any]]:
    """(module, name, what stands in its place), found once."""
    others = {
        "sparsedp.cli.errors.refuse": _refuse,
        "sparsedp.core.extras.require": lambda *_: None,  # saves seconds
    }
    found = []
    for target, instead in (dict.fromkeys(LONG, _stop) | others).items():
        module, name = target.rsplit(".", 1)
        found.append((importlib.import_module(module), name, instead))
        assert hasattr(*found[-1][:2]), target
    return found


@contextlib.contextmanager
def _without_work() -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in _replaced()]
    try:
        for module, name, instead in _replaced():
            setattr(module, name, instead)
        yield
    finally:
        for module, name, own in before:
            setattr(module, name, own)


def read_command(name: str, data: bytes) -> bool | None:
    """Run a command up to its work; False: wrong usage."""
    arguments = data.decode("utf-8", "surrogateescape").split("\n")
    home, before = _home(), Path.cwd()
    _furnish(home)
    os.chdir(home)
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    try:
        with _without_work(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            _command()(arguments, standalone_mode=False)
    except typer.TyperException as error:
        if error.exit_code != 2 or not (error.format_message() or type(error).__name__ == HELPED):
            raise
        return False
    finally:
        os.chdir(before)
    return None


def command_seeds() -> Mapping[str, bytes]:
    return {f"{number:02d}": "\n".join(command.split()).encode() for number, command in enumerate(COMMANDS)}


COMMAND = Reader("command", read_command, command_seeds, (mutate_arguments,))
