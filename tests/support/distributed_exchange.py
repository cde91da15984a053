"""Jobs that exchange arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

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


def out_of_step(exchange: Exchange) -> Any:
    """What each process is told when rank 1 does something else than the others."""
    calls: list[Callable[[str], Any]] = [
        lambda purpose: exchange.all_gather(purpose, [np.arange(3)]),
        lambda purpose: exchange.permitted(purpose, lambda: None),
        lambda purpose: exchange.from_root(purpose, lambda: "an answer"),
    ]
    told = []
    for number, call in enumerate(calls):
        try:
            told.append(str(call("charge" if exchange.rank == 1 else f"checkpoint {number}")))
        except RuntimeError as error:
            told.append(str(error))
            if number == 2:  # what rank 0 sent next is still on its way
                exchange._broadcast("test", [torch.empty(1000, dtype=torch.uint8)])
    return told


def failing_alone(exchange: Exchange) -> Any:
    """The error of each process where one of them fails."""
    assert exchange.everywhere("test", lambda: exchange.rank) == exchange.rank

    def act() -> None:
        if exchange.rank == 1:
            raise ValueError("no examples")

    try:
        exchange.everywhere("test", act)
    except ValueError as error:
        return str(error)


def disagreeing(exchange: Exchange) -> Any:
    exchange.agree("rate", "the same")
    try:
        exchange.agree("rate", exchange.rank)
    except ValueError as error:
        return str(error)
