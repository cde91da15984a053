"""What the records of a ledger add up to."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from dp_accounting import DpEvent

from sparsedp.accounting.event_json import event_from_json, event_key
from sparsedp.accounting.ledger.format import LedgerDamaged, Record

_FIELDS: dict[str, dict[str, type]] = {
    "run": {"writer": str, "run": str, "private": bool, "at": str},
    "event": {"number": int, "event": dict},
    "spend": {"writer": str, "event": int, "count": int},
    "reserve": {"writer": str, "event": int, "count": int},
    "settle": {"writer": str, "event": int, "taken": int, "unused": int},
    "truncated": {"bytes": int, "at": str},
}


@dataclass(frozen=True)
class Run:
    """One opening of the ledger for writing: the run's name, and whether its noise was secret."""

    name: str
    private: bool
    began: str


class LedgerState:
    """The sum of a ledger's records: each event with how often it may have been released.

    Guarantee: the count of an event is at least the number of its releases. A `spend` or `reserve` is entered
    before the release and only raises the count. A `settle` record lowers it, but only by steps that the same
    running writer had reserved and knows it never took; returning more than that writer has reserved is refused.
    """

    def __init__(self) -> None:
        self.events: list[DpEvent] = []
        self.counts: dict[str, int] = {}  # event key -> releases, reserved ones included
        self.run_counts: defaultdict[str, Counter[str]] = defaultdict(
            Counter
        )  # run's name -> the same for it
        self.open_reservations: Counter[tuple[str, int]] = Counter()  # (writer, event number) -> steps
        self.runs: dict[str, Run] = {}  # writer -> run
        self.truncated_bytes = 0
        self._keys: list[str] = []
        self._numbers: dict[str, int] = {}

    def number_of(self, event: DpEvent) -> int:
        """The number under which records refer to `event`: the next free one while it is unknown."""
        return self._numbers.get(event_key(event), len(self.events))

    def known(self, run: str | None = None) -> list[tuple[str, DpEvent, int]]:
        """Every event with its key and its count (of one run), in the order of their first appearance."""
        counts = self.counts if run is None else self.run_counts[run]
        return [(key, event, counts[key]) for key, event in zip(self._keys, self.events, strict=True)]

    @property
    def reserved_steps(self) -> int:
        """Steps reserved by writers that are active, or ended without closing."""
        return sum(self.open_reservations.values())

    def enter(self, record: Record) -> None:
        """Add one record; an inconsistent record is `LedgerDamaged`, even if its checksum is right."""
        kind = record.get("kind")
        fields = _FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is None or record.keys() != {"kind", *fields}:
            raise LedgerDamaged(f"a record of the ledger is of no known kind: {record!r}")
        for name, expected in fields.items():
            value = record[name]
            if type(value) is not expected or (isinstance(value, int) and value < 0):
                raise LedgerDamaged(f"{name} is not as it should be in the ledger's record {record!r}")
        getattr(self, f"_enter_{record['kind']}")(record)

    def _enter_run(self, record: Record) -> None:
        self.runs[record["writer"]] = Run(record["run"], record["private"], record["at"])

    def _enter_event(self, record: Record) -> None:
        if record["number"] != len(self.events):
            raise LedgerDamaged(
                f"event number {record['number']} follows {len(self.events) - 1} in the ledger"
            )
        try:
            event = event_from_json(record["event"])
            key = event_key(event)
        except ValueError as error:
            raise LedgerDamaged(
                f"event number {record['number']} of the ledger cannot be read: {error}"
            ) from error
        if key in self._numbers:
            raise LedgerDamaged(f"event number {record['number']} of the ledger was described before")
        self._numbers[key] = len(self.events)
        self._keys.append(key)
        self.events.append(event)
        self.counts[key] = 0

    def _enter_spend(self, record: Record) -> None:
        self._count(record, record["count"])

    def _enter_reserve(self, record: Record) -> None:
        self._count(record, record["count"])
        self.open_reservations[record["writer"], record["event"]] += record["count"]

    def _enter_settle(self, record: Record) -> None:
        account = (record["writer"], record["event"])
        settled = record["taken"] + record["unused"]
        if settled > self.open_reservations[account]:
            raise LedgerDamaged(f"the ledger's record {record!r} gives back more than was reserved")
        self._count(record, -record["unused"])
        self.open_reservations[account] -= settled

    def _enter_truncated(self, record: Record) -> None:
        self.truncated_bytes += record["bytes"]

    def _count(self, record: Record, change: int) -> None:
        """Change the count of a record's event: of all runs together, and of the one that its writer names."""
        key = self._key(record)
        self.counts[key] += change
        self.run_counts[self.runs[record["writer"]].name][key] += change

    def _key(self, record: Record) -> str:
        if record["event"] >= len(self.events):
            raise LedgerDamaged(f"the ledger's record {record!r} refers to an event that was never described")
        if record["writer"] not in self.runs:
            raise LedgerDamaged(f"the ledger's record {record!r} is by a writer that was never named")
        return self._keys[record["event"]]
