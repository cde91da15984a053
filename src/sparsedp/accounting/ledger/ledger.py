"""The durable ledger: what was released on a data set, on disk before anyone can see it."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from dp_accounting import DpEvent

from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.budget_cache import BudgetCache
from sparsedp.accounting.calibration import epsilon_of
from sparsedp.accounting.cap import EpsilonCap
from sparsedp.accounting.event_json import event_key, event_to_json
from sparsedp.accounting.events import Events
from sparsedp.accounting.ledger.file import LedgerBusy, LedgerFile
from sparsedp.accounting.ledger.format import LedgerDamaged, Record
from sparsedp.accounting.ledger.state import LedgerState, Run
from sparsedp.accounting.ledger.step_reserver import StepReserver
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.validation import check_count, check_delta, check_epsilon

__all__ = ["Ledger", "LedgerBusy", "LedgerDamaged", "StepReserver"]


class _Limit(NamedTuple):
    """Something that an entry must stay within, and the counts that it is held against."""

    budget_cache: BudgetCache
    counts: Mapping[str, int]
    cap: EpsilonCap | None

    def refusal(self, kind: str, key: str, run: str | None, path: Path) -> BudgetExceeded:
        """The error for an entry that does not fit."""
        if self.cap is not None:
            counted = "steps like it" if kind == "reserve" else "releases"
            number = self.counts.get(key, 0) if kind == "reserve" else sum(self.counts.values())
            return self.cap.refusal(
                "one more step" if kind == "reserve" else "this release",
                f"run {run!r} has {number} {counted} on the ledger {path}, also those that crashes took away "
                "(another training on the same data needs a name of its own: Ledger.open(path, run=...))",
            )
        return BudgetExceeded(
            f"the budget of epsilon {self.budget_cache.epsilon:g} at delta {self.budget_cache.delta:g} would be passed "
            f"by one more step (recorded so far: {self.counts.get(key, 0)} steps of this kind); nothing was spent"
        )


class Ledger:
    """The record of everything released on one data set, by one run or several, at once or in turn.

    Guarantee: at every moment, and after a crash at any moment, the events on disk contain every event whose
    result can have been seen. Proof: `spend` and the calls of a `step_reserver` return only when the entry is
    fsynced, and are made before the result exists; records are only appended; the one record that lowers a
    count (see `LedgerState`) is written by a living writer about its own steps that it has not taken and, having
    closed the step_reserver, cannot take any more. Resuming from an old checkpoint changes nothing: the steps taken
    since then stay counted.

    With a budget, an event that would pass it is refused with `BudgetExceeded` before anything is written; so
    is an event of a run that would pass the run's own `EpsilonCap`. A run goes by its name: whatever was
    entered under that name, by this process or by one that crashed, counts towards its cap.
    """

    def __init__(self, path: str | os.PathLike[str], *, run: str | None, private: bool = True) -> None:
        self.path = Path(path)
        self._file = LedgerFile(self.path)
        self._state = LedgerState()
        self._run = run
        self._private = private
        self._writer = secrets.token_hex(4)
        self._step_reservers: list[StepReserver] = []
        self._mutex = threading.RLock()
        self._look()
        head = self._file.head
        self.adjacency: str = head["adjacency"]
        self.unit: str = head["unit"]
        self.budget = (head["budget"]["epsilon"], head["budget"]["delta"]) if head["budget"] else None
        self._budget_cache = BudgetCache(*self.budget) if self.budget else None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: tuple[float, float] | None = None,
        run: str = "run",
        unit: str | None = None,
        private: bool = True,
    ) -> Ledger:
        """Open a ledger for writing, and make it if there is none.

        `budget` (epsilon, delta) and `unit` belong to the data set and are fixed when the ledger is made
        (default: no budget, "example"); if given later they must agree. `run` names the run: the same one again
        after a crash, another one for another training on the same data. `private=False` marks the run as
        seeded or without noise, which every later statement of the ledger repeats.
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
        return ledger

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open an existing ledger to look at it; it cannot be written through this object."""
        return cls(path, run=None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Who has written, in order."""
        return tuple(self._state.runs.values())

    @property
    def position(self) -> int:
        """Bytes committed so far; only grows."""
        self._look()
        return self._file.position

    @property
    def mark(self) -> str:
        """Where the ledger stands, for a checkpoint to keep and `require_mark` to check."""
        with self._mutex:
            self._look()
            return self._file.mark

    def require_mark(self, mark: str) -> None:
        """Refuse with `LedgerDamaged` unless this is the ledger that `mark` was taken from, with all it held."""
        with self._mutex, self._file.locked(write=False) as descriptor:
            self._file.require_mark(descriptor, mark)

    @property
    def unsettled(self) -> int:
        """Steps that count although a crashed or still working run may not have taken them all."""
        self._look()
        return self._state.unsettled

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader should know: writes that were cut short, a seal that was damaged."""
        self._look()
        notices = []
        if truncated := self._state.truncated_bytes + self._file.truncated:
            notices.append(
                f"{truncated} bytes of an entry cut short by a crash were set aside; its result was never released"
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

        Steps that this object's own step reservers have reserved and not taken are left out: they are known not to
        have happened. Those of other writers are in.
        """
        return self._events(None)

    def own_events(self) -> Events:
        """The same for the runs of this ledger's own name alone: what counts towards an `EpsilonCap`."""
        return self._events(self._run)

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

    def spend(self, event: DpEvent, count: int = 1, *, cap: EpsilonCap | None = None) -> None:
        """Record `count` releases of `event`, durably, before they are made; all of them or none.

        With a `cap` they are refused if everything under this run's name would then pass it.
        """
        self._enter("spend", event, event_key(event), check_count("count", count), cap)

    def step_reserver(
        self, event: DpEvent, reserve: int | None = None, *, cap: EpsilonCap | None = None
    ) -> StepReserver:
        """A function to call before each training step, which records steps in batches ahead of time.

        `reserve` is the size of a batch; by default so few steps that a crash loses at most a hundredth of
        the run, and one where the disk is quick. With a `cap` the step is refused after which everything
        under this run's name would pass it.
        """
        self._refuse_reader()
        key = event_key(event)
        step_reserver = StepReserver(
            key,
            lambda wanted: self._enter("reserve", event, key, wanted, cap),
            lambda taken, unused: self._return_unused(event, taken, unused),
            reserve=None if reserve is None else check_count("reserve", reserve),
            planned=0 if cap is None else cap.planned_steps,
        )
        self._step_reservers.append(step_reserver)
        return step_reserver

    def close(self) -> None:
        """Give back the steps that were reserved and not taken. Everything else is on disk already."""
        for step_reserver in self._step_reservers:
            step_reserver.close()
        self._step_reservers.clear()

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
        """Bring the state up to the file; if that is cut short (Ctrl-C, damage), start afresh next time."""
        try:
            for record in self._file.refresh(descriptor):
                self._state.enter(record)
        except BaseException:
            self._file.forget()
            self._state = LedgerState()
            raise

    def _events(self, run: str | None) -> list[tuple[DpEvent, int]]:
        with self._mutex:
            self._look()
            unused: dict[str, int] = {}
            for step_reserver in self._step_reservers:
                unused[step_reserver.key] = unused.get(step_reserver.key, 0) + step_reserver.unused
            known = [(event, count - unused.get(key, 0)) for key, event, count in self._state.known(run)]
            return [(event, count) for event, count in known if count > 0]

    def _enter(
        self,
        kind: Literal["spend", "reserve"],
        event: DpEvent,
        key: str,
        wanted: int,
        cap: EpsilonCap | None,
    ) -> tuple[int, float]:
        """Commit a spend of `wanted`, or a reservation of as many of them as budget and cap still allow.

        Returns how many were entered, and the seconds it took to bring them to disk.
        """
        self._refuse_reader()
        gave_back = False
        with self._mutex:
            while True:
                began = time.monotonic()
                with self._file.locked(write=True) as descriptor:
                    self._read_new(descriptor)
                    limits = self._limits(cap)
                    granted = [limit.budget_cache.grant(limit.counts, key, wanted) for limit in limits]
                    fitting = min([wanted, *(each or 0 for each in granted)])
                    if fitting == wanted or (fitting and kind == "reserve"):
                        self._append(descriptor, event, {"kind": kind, "count": fitting})
                        return fitting, time.monotonic() - began
                try:
                    for limit, each in zip(limits, granted, strict=True):
                        if each != wanted:
                            self._work_out(limit, kind, event, key, wanted, each)
                except BudgetExceeded:
                    # What this object's own step reservers hold ahead may make the room that is missing: once.
                    if gave_back or not sum(
                        step_reserver.give_back() for step_reserver in self._step_reservers
                    ):
                        raise
                    gave_back = True

    def _limits(self, cap: EpsilonCap | None) -> list[_Limit]:
        """What an entry must stay within: the data set's budget, beside all runs, and the run's own cap."""
        limits = []
        if self._budget_cache is not None:
            limits.append(_Limit(self._budget_cache, self._state.counts, None))
        if cap is not None:
            assert self._run is not None
            limits.append(_Limit(cap.budget_cache, self._state.run_counts[self._run], cap))
        return limits

    def _work_out(
        self, limit: _Limit, kind: str, event: DpEvent, key: str, wanted: int, granted: int | None
    ) -> None:
        """Accounting takes seconds, so it is done without the lock; `_enter` looks again afterwards."""
        if granted == 0 and kind == "reserve":
            raise limit.refusal(kind, key, self._run, self.path)
        events = {name: known for name, known, _ in self._state.known()} | {key: event}
        find_out = limit.budget_cache.admit if kind == "spend" else limit.budget_cache.extend
        try:
            find_out(events, dict(limit.counts), key, wanted)
        except BudgetExceeded as refusal:
            raise refusal if limit.cap is None else limit.refusal(kind, key, self._run, self.path) from None

    def _append(self, descriptor: int, event: DpEvent, entry: Record) -> None:
        """Write an entry about `event`, and before it what a reader needs to understand it."""
        records: list[Record] = []
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if self._file.truncated:
            records.append({"kind": "truncated", "bytes": self._file.truncated, "at": now})
        if self._writer not in self._state.runs:
            run = {"writer": self._writer, "run": self._run, "private": self._private, "at": now}
            records.append({"kind": "run", **run})
        number = self._state.number_of(event)
        if number == len(self._state.events):
            records.append({"kind": "event", "number": number, "event": event_to_json(event)})
        records.append({**entry, "writer": self._writer, "event": number})
        self._file.append(descriptor, records)

    def _return_unused(self, event: DpEvent, taken: int, unused: int) -> None:
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
