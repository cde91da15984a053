"""The durable ledger: what was released on a data set, on disk before anyone can see it."""

from __future__ import annotations

import os
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

from dp_accounting import DpEvent

from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.calibration import epsilon_of
from sparsedp.accounting.events import Events
from sparsedp.accounting.ledger_allowance import Allowance
from sparsedp.accounting.ledger_book import Book, Run
from sparsedp.accounting.ledger_events import event_key, event_to_json
from sparsedp.accounting.ledger_file import LedgerBusy, LedgerFile
from sparsedp.accounting.ledger_format import LedgerDamaged, Record
from sparsedp.accounting.ledger_stepper import Stepper
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.accounting.validation import check_count, check_delta, check_epsilon

__all__ = ["Ledger", "LedgerBusy", "LedgerDamaged", "Stepper"]


class Ledger:
    """The record of everything released on one data set, by one run or several, at once or in turn.

    Guarantee: at every moment, and after a crash at any moment, the events on disk contain every event whose
    result can have been seen. Proof: `spend` and the calls of a `stepper` return only when the entry is
    fsynced, and are made before the result exists; records are only appended; the one record that lowers a
    count (see `Book`) is written by a living writer about its own steps that it has not taken and, having
    closed the stepper, cannot take any more. Resuming from an old checkpoint changes nothing: the steps taken
    since then stay counted.

    With a budget, an event that would pass it is refused with `BudgetExceeded` before anything is written.
    """

    def __init__(self, path: str | os.PathLike[str], *, run: str | None, private: bool = True) -> None:
        self.path = Path(path)
        self._file = LedgerFile(self.path)
        self._book = Book()
        self._run = run
        self._private = private
        self._writer = secrets.token_hex(4)
        self._steppers: list[Stepper] = []
        self._mutex = threading.RLock()
        self._look()
        head = self._file.head
        self.adjacency: str = head["adjacency"]
        self.unit: str = head["unit"]
        self.budget = (head["budget"]["epsilon"], head["budget"]["delta"]) if head["budget"] else None
        self._allowance = Allowance(*self.budget) if self.budget else None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: tuple[float, float] | None = None,
        run: str = "run",
        unit: str | None = None,
        private: bool = True,
        at_least: int = 0,
    ) -> Ledger:
        """Open a ledger for writing, and make it if there is none.

        `budget` (epsilon, delta) and `unit` belong to the data set and are fixed when the ledger is made
        (default: no budget, "example"); if given later they must agree. `private=False` marks the run as
        seeded or without noise, which every later statement of the ledger repeats. `at_least` is the
        `position` that a checkpoint noted: an older copy of the ledger, which forgets steps, is then refused.
        """
        if budget is not None:
            budget = (check_epsilon(budget[0], "budget epsilon"), check_delta(budget[1], "budget delta"))
        if unit == "":
            raise ValueError("unit must not be empty: say what one neighbour is, for instance 'example'")
        head = {
            "adjacency": ADD_OR_REMOVE_ONE,
            "unit": unit or "example",
            "budget": {"epsilon": budget[0], "delta": budget[1]} if budget else None,
        }
        made = LedgerFile.create(path, head)
        ledger = cls(path, run=str(run), private=private)
        if not made:
            ledger._refuse_other("budget", budget, ledger.budget)
            ledger._refuse_other("unit", unit, ledger.unit)
        if ledger.position < at_least:
            raise LedgerDamaged(
                f"{path} holds {ledger.position} bytes, but {at_least} were noted when the checkpoint was "
                "made: it is an older copy, or another ledger"
            )
        return ledger

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open an existing ledger to look at it; it cannot be written through this object."""
        return cls(path, run=None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Who has written, in order."""
        return tuple(self._book.runs.values())

    @property
    def position(self) -> int:
        """Bytes committed so far; only grows. A checkpoint keeps it for `open(..., at_least=position)`."""
        self._look()
        return self._file.position

    @property
    def unsettled(self) -> int:
        """Steps that count although a crashed or still working run may not have taken them all."""
        self._look()
        return self._book.unsettled

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader should know: writes that were cut short, a seal that was damaged."""
        self._look()
        notices = []
        if torn := self._book.torn_bytes + self._file.torn:
            notices.append(
                f"{torn} bytes of an entry cut short by a crash were set aside; its result was never released"
            )
        notices += [
            f"seal {slot} in the head is damaged; the other one and all records are sound"
            for slot in self._file.damaged_seals
        ]
        if any(not run.private for run in self.runs):
            notices.append("a run was seeded or had no noise: not private")
        return tuple(notices)

    def events(self) -> Events:
        """Every event with how often its result may have been seen.

        Steps that this object's own steppers have reserved and not taken are left out: they are known not to
        have happened. Those of other writers are in.
        """
        with self._mutex:
            self._look()
            unused: dict[str, int] = {}
            for stepper in self._steppers:
                unused[stepper.key] = unused.get(stepper.key, 0) + stepper.unused
            return [
                (event, count - unused.get(event_key(event), 0))
                for event, count in self._book.known()
                if count > unused.get(event_key(event), 0)
            ]

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """What all runs together have spent, at `delta` (default: the budget's)."""
        if delta is None:
            if self.budget is None:
                raise ValueError("delta must be given: this ledger has no budget to take it from")
            delta = self.budget[1]
        delta = check_delta(delta)
        events = self.events()
        names = ", ".join(dict.fromkeys(run.name for run in self.runs)) or "none"
        total = sum(count for _, count in events)
        return PrivacyStatement(
            epsilon=epsilon_of(events, delta) if events else 0.0,
            delta=delta,
            adjacency=self.adjacency,
            unit=self.unit,
            released=f"the results of all {total} recorded events (runs: {names})",
            private=all(run.private for run in self.runs),
            notes=self.notices,
        )

    def spend(self, event: DpEvent, count: int = 1) -> None:
        """Record `count` releases of `event`, durably, before they are made; all of them or none."""
        self._enter("spend", event, check_count("count", count))

    def stepper(self, event: DpEvent, reserve: int | None = None) -> Stepper:
        """A function to call before each training step, which records steps in batches ahead of time.

        `reserve` is the size of a batch; by default 64, and up to 1024 where the disk is so slow that
        recording would otherwise hold up training.
        """
        self._refuse_reader()
        stepper = Stepper(
            event_key(event),
            lambda wanted: self._enter("reserve", event, wanted),
            lambda taken, unused: self._settle(event, taken, unused),
            reserve=None if reserve is None else check_count("reserve", reserve),
        )
        self._steppers.append(stepper)
        return stepper

    def close(self) -> None:
        """Give back the steps that were reserved and not taken. Everything else is on disk already."""
        for stepper in self._steppers:
            stepper.close()
        self._steppers.clear()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> None:
        with self._mutex, self._file.locked(write=False) as descriptor:
            self._read_new(descriptor)

    def _read_new(self, descriptor: int) -> None:
        """Bring the book up to the file; if that is cut short (Ctrl-C, damage), start afresh next time."""
        try:
            for record in self._file.refresh(descriptor):
                self._book.enter(record)
        except BaseException:
            self._file.forget()
            self._book = Book()
            raise

    def _enter(self, kind: Literal["spend", "reserve"], event: DpEvent, wanted: int) -> tuple[int, float]:
        """Commit a spend of `wanted`, or a reservation of as many of them as the budget still allows.

        Returns how many were entered, and the seconds it took to bring them to disk.
        """
        self._refuse_reader()
        gave_back = False
        with self._mutex:
            while True:
                with self._file.locked(write=True) as descriptor:
                    self._read_new(descriptor)
                    granted = self._granted(event, wanted)
                    if granted == wanted or (granted and kind == "reserve"):
                        began = time.monotonic()
                        self._append(descriptor, event, {"kind": kind, "count": granted})
                        return granted, time.monotonic() - began
                try:
                    self._work_out_allowance(kind, event, wanted, granted)
                except BudgetExceeded:
                    # What this object's own steppers hold ahead may make the room that is missing: once.
                    if gave_back or not sum(stepper.give_back() for stepper in self._steppers):
                        raise
                    gave_back = True

    def _granted(self, event: DpEvent, wanted: int) -> int | None:
        if self._allowance is None:
            return wanted
        return self._allowance.grant(self._book.counts, event_key(event), wanted)

    def _work_out_allowance(self, kind: str, event: DpEvent, wanted: int, granted: int | None) -> None:
        """Accounting takes seconds, so it is done without the lock; `_enter` looks again afterwards."""
        assert self._allowance is not None
        key = event_key(event)
        if granted == 0 and kind == "reserve":
            raise BudgetExceeded(
                f"the budget of epsilon {self._allowance.epsilon:g} at delta {self._allowance.delta:g} would be "
                f"passed by one more step (recorded so far: {self._book.counts.get(key, 0)} steps of this kind); "
                "nothing was spent"
            )
        events = {event_key(known): known for known in self._book.events} | {key: event}
        find_out = self._allowance.admit if kind == "spend" else self._allowance.extend
        find_out(events, self._book.counts, key, wanted)

    def _append(self, descriptor: int, event: DpEvent, entry: Record) -> None:
        """Write an entry about `event`, and before it what a reader needs to understand it."""
        records: list[Record] = []
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if self._file.torn:
            records.append({"kind": "torn", "bytes": self._file.torn, "at": now})
        if self._writer not in self._book.runs:
            run = {"writer": self._writer, "run": self._run, "private": self._private, "at": now}
            records.append({"kind": "run", **run})
        number = self._book.number_of(event)
        if number == len(self._book.events):
            records.append({"kind": "event", "number": number, "event": event_to_json(event)})
        records.append({**entry, "writer": self._writer, "event": number})
        self._file.append(descriptor, records)

    def _settle(self, event: DpEvent, taken: int, unused: int) -> None:
        with self._mutex, self._file.locked(write=True) as descriptor:
            self._read_new(descriptor)
            self._append(descriptor, event, {"kind": "settle", "taken": taken, "unused": unused})

    def _refuse_reader(self) -> None:
        if self._run is None:
            raise ValueError(f"{self.path} was opened for reading only")

    def _refuse_other(self, name: str, given: object, recorded: object) -> None:
        if given is not None and given != recorded:
            raise ValueError(
                f"{name} of the ledger {self.path} is {recorded}, not {given}: a data set has one, fixed "
                "when its ledger is made"
            )
