"""What a step costs on many processes, from public sizes: bytes, messages, memory, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsedp.distributed.exchange import HEAD

_RELEASE_ROUNDS, _TABLE_ROUNDS = 7, 3


@dataclass(frozen=True)
class TableLoad:
    """A selectable table and how a step of AdaFEST uses it, per process and on average."""

    rows: int
    dim: int
    touched: float
    """Distinct rows that the examples of one process read."""
    surviving: float
    """Those of them that survive."""
    sharded: bool = True
    selected: float = 0.0
    """Of a table that every process holds: rows with noise, over all processes."""


@dataclass(frozen=True)
class StepCost:
    """What one process sends, in how many messages and rounds, and what it holds."""

    sent: dict[str, float]
    """Bytes by purpose, as ``Traffic`` counts them."""
    messages: int
    rounds: int
    """Exchanges one after the other: each waits once for the network."""
    memory: float
    """Bytes of parameters."""

    @property
    def bytes(self) -> float:
        """All bytes sent."""
        return sum(self.sent.values())

    def seconds(self, *, compute: float, bandwidth: float, latency: float) -> float:
        """The time of a step: computing, sending at ``bandwidth`` (bytes a second), waiting in every round."""
        return compute + self.bytes / bandwidth + self.rounds * latency


def step_cost(tables: Sequence[TableLoad], *, dense: int, ranks: int) -> StepCost:
    """The cost of a step for each of ``ranks`` processes; ``dense`` counts the dense coordinates.

    Nothing depends on the number of rows of a sharded table but its memory (and 4 more bytes an id where a
    process holds more than 2^31 rows).
    """
    others = ranks - 1
    share = others / ranks  # of what is sent to owners, this much goes to other processes
    sent = dict.fromkeys(("ids", "rows", "counts", "survivors", "sums", "release"), 0.0)
    widest = max((_id_bytes(table, ranks) for table in tables), default=4)
    for table in tables:
        if table.sharded:
            sent["ids"] += share * _id_bytes(table, ranks) * table.touched + others * HEAD
            sent["rows"] += share * 4 * table.dim * table.touched
        else:
            sent["release"] += others * (4 + 4 * table.dim) * table.selected / ranks
        sent["counts"] += share * 16 * table.touched
        sent["survivors"] += share * table.touched
        sent["sums"] += share * (widest + 4 * table.dim) * table.surviving
    sent["counts"] += others * HEAD
    sent["survivors"] += others * 8 * len(tables)
    sent["sums"] += share * 4 * dense + others * (HEAD + 8 * len(tables))
    sent["release"] += share * 4 * dense
    lookups = sum(table.sharded for table in tables) * _TABLE_ROUNDS
    return StepCost(
        sent=sent,
        messages=others * (lookups + _RELEASE_ROUNDS - 1),
        rounds=lookups + _RELEASE_ROUNDS,
        memory=4 * dense + sum(4 * t.rows * t.dim / (ranks if t.sharded else 1) for t in tables),
    )


def _id_bytes(table: TableLoad, ranks: int) -> int:
    return 4 if table.rows <= ranks * 2**31 else 8
