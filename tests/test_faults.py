"""A full disk, a folder that cannot be written, no memory, a clock that goes back: nothing is lost, nothing unpaid."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from support.command_line import assert_refused, invoke
from support.ledgers import ONCE, STEP
from support.runs import config, settings

from sparsedp.accounting import Ledger, PoissonSampledDpEvent, epsilon_of
from sparsedp.accounting.ledger import file as ledger_file
from sparsedp.accounting.ledger import ledger as ledgers
from sparsedp.runs import resume, start
from sparsedp.runs.folder import RunFolder
from sparsedp.training.step import PrivateStep

SMALL: dict[str, Any] = {
    "data": "generated:120",
    "expected_batch_size": 30,
    "epochs": 2,
    "checkpoint_every": 2,
    "evaluate_every": 3,
    "delta": 1e-3,
    "fest_mu": 0.05,
}


def paid_steps(path: Path) -> int:
    """The steps on a run's ledger, which are within its epsilon."""
    events = Ledger.read(RunFolder(path).ledger).events() if RunFolder(path).ledger.exists() else []
    assert not events or epsilon_of(events, SMALL["delta"]) <= 2.0
    return sum(count for event, count in events if isinstance(event, PoissonSampledDpEvent))


@contextmanager
def noting_updates() -> Iterator[list[None]]:
    """Grows by one with each update of the parameters, which comes after its step was paid for."""
    updates: list[None] = []
    step = torch.optim.SGD.step

    def noting(self: torch.optim.SGD, *given: Any) -> Any:
        updates.append(None)
        return step(self, *given)

    with mock.patch.object(torch.optim.SGD, "step", noting):
        yield updates


class FullDisk:
    """Lets so many system calls that write to the disk succeed; all after them fail."""

    def __init__(self, room: int) -> None:
        self.calls, self._room = 0, room

    def __call__(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls > self._room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        return write

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with (
            mock.patch.object(os, "pwrite", self(os.pwrite)),
            mock.patch.object(os, "fsync", self(os.fsync)),
            mock.patch.object(os, "replace", self(os.replace)),
            mock.patch.object(os, "link", self(os.link)),
        ):
            yield


def run_on_full_disk(room: int, path: Path) -> bool:
    """Start a run that fails when the disk is full, free the disk, finish the run; False if it needed no more room."""
    asked, disk = config("fest", **{**SMALL, "seed": None}), FullDisk(room)
    with noting_updates() as updates:
        try:
            with disk.at_work():
                start(asked, path)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
        optimizers = 2
        assert len(updates) // optimizers <= paid_steps(path)
        result = resume(path) if RunFolder(path).has_config else start(asked, path)
        assert result.steps == len(updates) // optimizers - result.lost_steps or result.lost_steps > 0
        assert len(updates) // optimizers <= paid_steps(path)
    assert result.steps > 0
    assert RunFolder(path).weights.exists()
    return disk.calls > room


@pytest.mark.parametrize("room", [3, 17, 30])
def test_a_disk_that_is_full_loses_nothing(room: int, tmp_path: Path) -> None:
    assert run_on_full_disk(room, tmp_path / "run")


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Each call that writes, of all that a run makes, is the first to fail once."""
    room = 0
    while run_on_full_disk(room, tmp_path / f"run-{room}"):
        room += 1
    assert room > 30


def test_a_full_disk_is_one_line_at_the_command_line(tmp_path: Path) -> None:
    with FullDisk(20).at_work():
        arguments = [
            f"--{name.replace('_', '-')}={value}" for name, value in settings("adafest", **SMALL).items()
        ]
        options = [each for each in arguments if not each.startswith("--model-options")]
        result = invoke("train", *options, "--model-options", "{hidden: [4]}", "--out", tmp_path / "run", "--json")  # fmt: skip
    assert_refused(result, "No space left on device")


def as_nobody(work: Callable[[], None]) -> str:
    """What a process that may not write here says; root may write anywhere, so it becomes somebody else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as answer:
        return answer.read()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder with a ledger that everybody may read and nobody else may write."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with Ledger.open(folder / "run.ledger") as ledger:
        ledger.spend(ONCE)
    os.chmod(folder / "run.ledger", 0o444)
    os.chmod(folder, 0o555)
    opened = [each for each in tmp_path.parents if each.stat().st_mode & 0o077 == 0]
    for each in [tmp_path, *opened]:
        os.chmod(each, 0o755)
    yield folder
    os.chmod(folder, 0o755)
    for each in [tmp_path, *opened]:
        os.chmod(each, 0o700)


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_spent(read_only: Path) -> None:
    before = (read_only / "run.ledger").read_bytes()
    assert "Permission denied" in as_nobody(lambda: Ledger.open(read_only / "run.ledger").spend(ONCE))
    assert "Permission denied" in as_nobody(lambda: RunFolder(read_only / "run").create(config()))
    assert as_nobody(lambda: _read(read_only / "run.ledger")) == "nothing"  # to read needs no right to write
    assert (read_only / "run.ledger").read_bytes() == before


def _read(path: Path) -> None:
    assert Ledger.read(path).events() == [(ONCE, 1)]


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards(datetime):
        now_ = datetime(2030, 1, 1, tzinfo=UTC)

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            cls.now_ -= timedelta(days=1)
            return cls.now_

    ticks = iter(range(10**9, 0, -7))
    monkeypatch.setattr(ledgers, "datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    path = tmp_path / "run.ledger"
    for number in range(3):
        with Ledger.open(path, run=f"run {number}") as ledger:
            ledger.spend(ONCE)
            step = ledger.step_reserver(STEP)
            for _ in range(40):
                step()
    assert dict(Ledger.read(path).events()) == {ONCE: 3, STEP: 120}
    began = [run.began for run in Ledger.read(path).runs]
    assert began == sorted(began, reverse=True)


OUT_OF_MEMORY = [
    MemoryError("9 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    torch.OutOfMemoryError("CUDA out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["python", "cpu", "device"])
def test_no_memory_within_a_step_is_one_line_and_the_run_goes_on(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = PrivateStep.release, []

    def fails(self: PrivateStep, *given: Any, **options: Any) -> Any:
        calls.append(None)
        found = release(self, *given, **options)
        if len(calls) == 4:
            raise error
        return found

    path = tmp_path / "run"
    with noting_updates() as updates:
        with monkeypatch.context() as patched:
            patched.setattr(PrivateStep, "release", fails)
            (tmp_path / "config.yaml").write_text(config("adafest", **{**SMALL, "seed": None}).to_yaml())
            refused = invoke("train", "--config", tmp_path / "config.yaml", "--out", path, "--json")
        assert_refused(refused, "out of memory", "sparsedp resume", "stay charged")
        assert paid_steps(path) == 4  # the step whose noise was drawn stays paid, and is not in the model
        assert len(updates) // 2 == 3
        result = resume(path)
        assert len(updates) // 2 <= paid_steps(path)
    assert result.lost_steps >= 1
    assert all(bool(each.isfinite().all()) for each in load_file(RunFolder(path).weights).values())


def test_other_errors_of_torch_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: PrivateStep, *given: Any, **options: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(PrivateStep, "release", fails)
    (tmp_path / "config.yaml").write_text(config("adafest", **SMALL).to_yaml())
    found = invoke("train", "--config", tmp_path / "config.yaml", "--out", tmp_path / "run", "--json")
    assert isinstance(found.exception, RuntimeError)


def test_a_write_of_a_few_bytes_at_a_time_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(
        ledger_file.os, "pwrite", lambda number, data, at: real(number, data[: max(1, len(data) // 3)], at)
    )
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        ledger.spend(ONCE, 5)
    assert Ledger.read(tmp_path / "run.ledger").events() == [(ONCE, 5)]
