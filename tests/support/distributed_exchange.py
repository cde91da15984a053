"""Jobs that exchange arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsedp.accounting import BudgetExceeded
from sparsedp.distributed import Exchange


def exchanged(exchange: Exchange) -> Any:
    rank = exchange.rank
    messages = [
        [np.full(5 * rank + peer, rank, np.uint8), np.array([peer]), np.empty(0, np.float32)]
        for peer in range(exchange.size)
    ]
    return [[array.copy() for array in message] for message in exchange.all_to_all("test", messages)]


def counted(exchange: Exchange) -> Any:
    exchange.traffic.clear()
    exchange.all_gather("test", [np.arange(10)])
    return dict(exchange.traffic.sent), dict(exchange.traffic.messages)


def refused(exchange: Exchange) -> Any:
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise BudgetExceeded("no more")

    try:
        exchange.permitted("test", refuse)
    except Exception as error:
        assert len(calls) == exchange.is_root
        return type(error), str(error)


def disagreeing(exchange: Exchange) -> Any:
    exchange.agree("rate", "the same")
    try:
        exchange.agree("rate", exchange.rank)
    except ValueError as error:
        return str(error)
