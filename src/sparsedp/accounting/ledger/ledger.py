"""The durable ledger: every release on a data set, recorded on disk before its result exists."""

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
from sparsedp.accounting.groups import is_sampled
from sparsedp.accounting.ledger.file import LedgerBusy, LedgerFile
from sparsedp.accounting.ledger.format import LedgerDamaged, Record
from sparsedp.accounting.ledger.state import LedgerState, Run
from sparsedp.accounting.ledger.step_reserver import StepReserver
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE, PrivacyStatement
from sparsedp.accounting.trade_off import trade_off_curve
from sparsedp.core.validation import check_count, check_delta, check_epsilon

__all__ = ["Ledger", "LedgerBusy", "LedgerDamaged", "StepReserver"]


class _Limit(NamedTuple):
    """A limit that an entry must stay within, and the counts that it applies to."""

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
                "(another training on the same data needs another name: Ledger.open(path, run=...))",
            )
        return BudgetExceeded(
            f"the budget of epsilon {self.budget_cache.epsilon:g} at delta {self.budget_cache.delta:g} would be passed "
            f"by one more step (recorded so far: {self.counts.get(key, 0)} steps of this kind); nothing was spent"
        )


class Ledger:
    """The record of everything released on one data set, by one run or several, at once or in turn.

    Guarantee: at every moment, and after a crash at any moment, the events on disk contain every event whose
    result may have been seen. Proof: `spend` and the calls of a `step_reserver` return only when the entry is
    fsynced, and are made before the result exists; records are only appended; the one record that lowers a
    count (see `LedgerState`) is written by a running writer about steps that it reserved, has not taken and, having
    closed the step_reserver, cannot take any more. Resuming from an old checkpoint changes nothing: the steps taken
    since then stay counted.

    With a budget, an event that would exceed it is refused with `BudgetExceeded` before anything is written; so
    is an event that would exceed the run's `EpsilonCap`. A run is identified by its name: everything entered
    under that name, also by a process that crashed, counts towards its cap.
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
        self._refresh()
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
        adjacency: str = ADD_OR_REMOVE_ONE,
        private: bool = True,
    ) -> Ledger:
        """Open a ledger for writing; create it if there is none.

        `budget` (epsilon, delta), `unit` and `adjacency` belong to the data set and are fixed when the ledger is made
        (default: no budget, "example", add-or-remove-one); if given later they must agree. All events hold for the
        adjacency: "replace-one" for noise multipliers relative to what replacing a record changes. Events on a sample
        of the data are then refused, since their cost is known for add-or-remove-one. `run` names the run: the same
        one again after a crash, another one for another training on the same data. `private=False` marks the run as
        seeded or without noise, which every later statement of the ledger repeats.
        """
        if budget is not None:
            budget = (check_epsilon(budget[0], "budget epsilon"), check_delta(budget[1], "budget delta"))
        if adjacency not in (ADD_OR_REMOVE_ONE, REPLACE_ONE):
            raise ValueError(f"adjacency must be {ADD_OR_REMOVE_ONE} or {REPLACE_ONE}, got {adjacency!r}")
        if unit == "":
            raise ValueError("unit must not be empty: say what one neighbour is, for instance 'example'")
        head = {
            "adjacency": adjacency,
            "unit": unit or "example",
            "budget": {"epsilon": budget[0], "delta": budget[1]} if budget else None,
        }
        made = LedgerFile.create(path, head)
        ledger = cls(path, run=str(run), private=private)
        if not made:
            ledger._refuse_mismatch("budget", budget, ledger.budget)
            ledger._refuse_mismatch("unit", unit, ledger.unit)
            ledger._refuse_mismatch("adjacency", adjacency, ledger.adjacency)
        return ledger

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open an existing ledger read-only."""
        return cls(path, run=None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that have written, in order."""
        return tuple(self._state.runs.values())

    @property
    def position(self) -> int:
        """Bytes committed so far; only grows."""
        self._refresh()
        return self._file.position

    @property
    def mark(self) -> str:
        """The current position, for a checkpoint to save and `require_mark` to check."""
        with self._mutex:
            self._refresh()
            return self._file.mark

    def require_mark(self, mark: str) -> None:
        """Refuse with `LedgerDamaged` unless this ledger contains everything that it held at `mark`."""
        with self._mutex, self._file.locked(write=False) as descriptor:
            self._file.require_mark(descriptor, mark)

    @property
    def reserved_steps(self) -> int:
        """Reserved steps of crashed or active runs: they count, although some may not have been taken."""
        self._refresh()
        return self._state.reserved_steps

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader should know: incomplete writes, a damaged seal."""
        self._refresh()
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

        Steps that this object's step reservers have reserved and not taken are left out: they are known not to have
        happened. Those of other writers are included.
        """
        return self._events(None)

    def own_events(self) -> Events:
        """The same for runs under this ledger's run name only: what counts towards an `EpsilonCap`."""
        return self._events(self._run)

    def events_of(self, run: str) -> Events:
        """The same for the runs of one name, also where the ledger was opened for reading."""
        return self._events(run)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """What all runs together have spent, at `delta` (default: the budget's)."""
        if delta is None:
            if self.budget is None:
                raise ValueError("delta must be given: this ledger has no budget to take it from")
            delta = self.budget[1]
        delta = check_delta(delta)
        events = self.events()
        return PrivacyStatement(
            epsilon=epsilon_of(events, delta) if events else 0.0,
            delta=delta,
            adjacency=self.adjacency,
            unit=self.unit,
            released=self.released(events),
            private=all(run.private for run in self.runs),
            notes=self.notices,
            trade_off=trade_off_curve(events),
        )

    def released(self, events: Events) -> str:
        """What the results of these events of the ledger are, in the words of a statement."""
        names = ", ".join(dict.fromkeys(run.name for run in self.runs)) or "none"
        return f"the results of all {sum(count for _, count in events)} recorded events (runs: {names})"

    def spend(self, event: DpEvent, count: int = 1, *, cap: EpsilonCap | None = None) -> None:
        """Record `count` releases of `event`, durably, before they are made; all of them or none.

        With a `cap` they are refused if everything under this run's name would then exceed it.
        """
        self._enter("spend", event, event_key(event), check_count("count", count), cap)

    def step_reserver(
        self, event: DpEvent, reserve: int | None = None, *, cap: EpsilonCap | None = None
    ) -> StepReserver:
        """A function to call before each training step, which records steps in batches ahead of time.

        `reserve` is the size of a batch; by default few enough that a crash loses at most a hundredth of the run,
        and one where the disk is fast. With a `cap` a step is refused if everything under this run's name would
        then exceed it.
        """
        self._refuse_reader()
        self._refuse_sampled(event)
        key = event_key(event)
        step_reserver = StepReserver(
            key,
            lambda requested: self._enter("reserve", event, key, requested, cap),
            lambda taken, unused: self._return_unused(event, taken, unused),
            reserve=None if reserve is None else check_count("reserve", reserve),
            planned=0 if cap is None else cap.planned_steps,
        )
        self._step_reservers.append(step_reserver)
        return step_reserver

    def close(self) -> None:
        """Return the steps that were reserved and not taken. Everything else is on disk already."""
        for step_reserver in self._step_reservers:
            step_reserver.close()
        self._step_reservers.clear()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refresh(self) -> None:
        with self._mutex, self._file.locked(write=False) as descriptor:
            self._read_new(descriptor)

    def _read_new(self, descriptor: int) -> None:
        """Update the state from the file; if that is interrupted (Ctrl-C, damage), read everything next time."""
        try:
            for record in self._file.refresh(descriptor):
                self._state.enter(record)
        except BaseException:
            self._file.reset()
            self._state = LedgerState()
            raise

    def _events(self, run: str | None) -> list[tuple[DpEvent, int]]:
        with self._mutex:
            self._refresh()
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
        requested: int,
        cap: EpsilonCap | None,
    ) -> tuple[int, float]:
        """Commit a spend of `requested`, or a reservation of as many of them as budget and cap still allow.

        Returns how many were entered, and the seconds it took to write them to disk.
        """
        self._refuse_reader()
        self._refuse_sampled(event)
        returned_unused = False
        with self._mutex:
            while True:
                began = time.monotonic()
                with self._file.locked(write=True) as descriptor:
                    self._read_new(descriptor)
                    limits = self._limits(cap)
                    granted = [limit.budget_cache.grant(limit.counts, key, requested) for limit in limits]
                    fitting = min([requested, *(allowed or 0 for allowed in granted)])
                    if fitting == requested or (fitting and kind == "reserve"):
                        self._append(descriptor, event, {"kind": kind, "count": fitting})
                        return fitting, time.monotonic() - began
                try:
                    for limit, allowed in zip(limits, granted, strict=True):
                        if allowed != requested:
                            self._compute_limit(limit, kind, event, key, requested, allowed)
                except BudgetExceeded:
                    # Unused steps of this object's step reservers may free enough budget: try once.
                    if returned_unused or not sum(
                        step_reserver.return_unused() for step_reserver in self._step_reservers
                    ):
                        raise
                    returned_unused = True

    def _limits(self, cap: EpsilonCap | None) -> list[_Limit]:
        """The limits of an entry: the data set's budget, for all runs together, and the run's cap."""
        limits = []
        if self._budget_cache is not None:
            limits.append(_Limit(self._budget_cache, self._state.counts, None))
        if cap is not None:
            assert self._run is not None
            limits.append(_Limit(cap.budget_cache, self._state.run_counts[self._run], cap))
        return limits

    def _compute_limit(
        self, limit: _Limit, kind: str, event: DpEvent, key: str, requested: int, granted: int | None
    ) -> None:
        """Accounting takes seconds, so it runs without the lock; `_enter` checks again afterwards."""
        if granted == 0 and kind == "reserve":
            raise limit.refusal(kind, key, self._run, self.path)
        events = {name: known for name, known, _ in self._state.known()} | {key: event}
        compute = limit.budget_cache.admit if kind == "spend" else limit.budget_cache.extend
        try:
            compute(events, dict(limit.counts), key, requested)
        except BudgetExceeded as error:
            raise error if limit.cap is None else limit.refusal(kind, key, self._run, self.path) from None

    def _append(self, descriptor: int, event: DpEvent, entry: Record) -> None:
        """Write an entry about `event`, preceded by the records that it refers to."""
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

    def _refuse_sampled(self, event: DpEvent) -> None:
        if self.adjacency != ADD_OR_REMOVE_ONE and is_sampled(event):
            raise ValueError(
                f"event: the cost of {type(event).__name__} is known for {ADD_OR_REMOVE_ONE} adjacency, and the ledger "
                f"{self.path} is for {self.adjacency}; nothing was spent"
            )

    def _refuse_mismatch(self, name: str, requested: object, recorded: object) -> None:
        if requested is not None and requested != recorded:
            raise ValueError(
                f"{name} of the ledger {self.path} is {recorded}, not {requested}: a data set has one, fixed "
                "when its ledger is made"
            )
