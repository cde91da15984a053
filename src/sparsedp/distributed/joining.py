"""Joining the processes that torchrun started, also where it started them again after a crash."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparsedp.distributed.exchange import Exchange, PeerLost, default_exchange

_POLL_SECONDS = 0.02


def init_processes(timeout_seconds: float = 45.0) -> Exchange:
    """Join the processes that torchrun started (gloo, which works in main memory), and give the exchange.

    A process that is lost without closing its connections is noticed after ``timeout_seconds``.
    """
    if not dist.is_initialized():
        timeout = timedelta(seconds=timeout_seconds)
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        token = meet(store, rank, size, timeout_seconds)
        dist.init_process_group(
            "gloo", store=PrefixStore(token, store), rank=rank, world_size=size, timeout=timeout
        )
    return default_exchange()


def meet(store: Store, rank: int, size: int, timeout_seconds: float) -> str:
    """A name that the living processes share, and none that has ended ever had.

    After a restart torchrun's store still holds the addresses of the processes that have ended, and gloo would
    call them. Every process leaves a fresh number; rank 0 answers each number with the name of the new group, and
    says to begin when all have confirmed it. A number of a process that has ended is never confirmed.
    """
    deadline = time.monotonic() + timeout_seconds
    number = secrets.token_hex(8)
    if rank != 0:
        store.set(f"number {rank}", number)
        token = _awaited(store, f"answer {rank} {number}", deadline, rank)
        store.set(f"confirmed {rank} {token}", "1")
        _awaited(store, f"begin {token}", deadline, rank)
        return token
    answered: dict[int, str] = {}
    missing = set(range(1, size))
    while missing:
        for other in sorted(missing):
            if store.check([f"number {other}"]):
                seen = store.get(f"number {other}").decode()
                if answered.get(other) != seen:
                    store.set(f"answer {other} {seen}", number)
                    answered[other] = seen
            if store.check([f"confirmed {other} {number}"]):
                missing.discard(other)
        _wait(deadline, f"ranks {sorted(missing)} did not join" if missing else "")
    store.set(f"begin {number}", "1")
    return number


def _awaited(store: Store, key: str, deadline: float, rank: int) -> str:
    while not store.check([key]):
        _wait(deadline, f"rank {rank} joined, and rank 0 did not answer")
    return str(store.get(key).decode())


def _wait(deadline: float, problem: str) -> None:
    if problem:
        if time.monotonic() > deadline:
            raise PeerLost(f"{problem}: start all processes of the run again, or give them more time")
        time.sleep(_POLL_SECONDS)
