"""One statement for all periods of a stream, from what its ledgers hold at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsedp.accounting import Ledger, PrivacyStatement, TradeOffCurve
from sparsedp.runs.config import RunConfig

EVERY_PERIOD = "the model after every step of every period"
"""What a stream releases."""

IN_SEQUENCE = (
    "a user may have rows in each of them, so the periods compose in sequence: all steps and all counts of all periods are "
    "in this epsilon; a cap on a user's rows is one in each period"
)


def stream_statement(
    config: RunConfig, statements: Sequence[PrivacyStatement], ledgers: Sequence[Ledger]
) -> PrivacyStatement | None:
    """The statement of a stream from those of its periods, in order, and the ledger of each; None without privacy.

    Its epsilon and curve are those of all that the ledgers hold now, whatever they held when a period ended.
    """
    if not statements:
        return None
    private = all(statement.private for statement in statements)
    if config.unit == "user":
        last = _as_charged(statements[-1], ledgers[-1], statements[-1].delta)
        return replace(
            last,
            released=EVERY_PERIOD,
            private=private and last.private,
            notes=(f"{len(statements)} periods: {IN_SEQUENCE}", *last.notes),
        )
    delta = max(statement.delta for statement in statements)
    charged = [
        _as_charged(statement, ledger, statement.delta if config.ledger is None else delta)
        for statement, ledger in zip(statements, ledgers, strict=True)
    ]
    worst = max(charged, key=lambda statement: statement.epsilon)
    return PrivacyStatement(
        epsilon=worst.epsilon,
        delta=delta,
        adjacency=worst.adjacency,
        unit=worst.unit,
        released=EVERY_PERIOD,
        private=all(statement.private for statement in charged),
        notes=(
            f"{len(statements)} periods of disjoint examples: the costliest one counts",
            "each period has this delta"
            if config.delta is not None
            else "delta is that of the smallest period: by default a period's is 1 / (10 x its own examples), which is "
            "more than 1 / (10 x all examples)",
        ),
        trade_off=TradeOffCurve.worst_of([statement.trade_off for statement in charged]),
    )


def _as_charged(statement: PrivacyStatement, ledger: Ledger, delta: float) -> PrivacyStatement:
    """The statement with the cost at ``delta`` of all that the ledger holds."""
    found = ledger.statement(delta)
    return replace(
        statement,
        epsilon=found.epsilon,
        delta=delta,
        private=statement.private and found.private,
        trade_off=found.trade_off,
    )
