"""The privacy engine for a training script that torchrun starts on many processes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn
from typing_extensions import override

from sparsedp.accounting import Ledger
from sparsedp.accounting.events import DpEvent
from sparsedp.clipping import Capture
from sparsedp.distributed import checkpoint
from sparsedp.distributed.embedding import without_exchange
from sparsedp.distributed.exchange import Exchange
from sparsedp.distributed.joining import init_processes
from sparsedp.distributed.session import Dataset, DistributedSession
from sparsedp.randomness import NoiseSource
from sparsedp.training import PrivacyEngine
from sparsedp.training.loader import check_loader
from sparsedp.training.step_config import Sampling, sampling_of


class DistributedEngine(PrivacyEngine):
    """``PrivacyEngine`` over all processes of a run: the guarantee of one machine for the data of all of them.

    Every process runs the same script. Each samples its own part of the examples, so that the union is a Poisson
    sample of the whole; ``expected_batch_size`` and the figures of a step are those of all processes together. Rows
    are chosen jointly, and each released coordinate gets noise once (see ``DistributedStep``).

    ``dataset`` says what each process's loader holds: "whole", the same data set in the same order everywhere, of
    which each process samples a range of its own; or "shard", examples that no other process has. Otherwise an
    example may be sampled by two processes, which breaks the guarantee and cannot be noticed here.

    Rank 0 is the ledger's only writer: a step is charged there before any process draws noise, and one that would
    exceed the budget is refused in all of them. Ask rank 0 for ``epsilon`` and ``statement``.

    Models may hold ``ShardedEmbedding`` tables; all other parameters are copied from rank 0 by ``make_private``.
    """

    def __init__(
        self,
        accountant: Literal["pld", "prv"] = "pld",
        secure: bool = True,
        seed: int | None = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        *,
        dataset: Dataset = "whole",
        exchange: Exchange | None = None,
    ) -> None:
        if dataset not in ("whole", "shard"):
            raise ValueError(f"dataset must be 'whole' or 'shard', got {dataset!r}")
        self.exchange = exchange or init_processes()
        self.dataset: Dataset = dataset
        self.seed = seed
        self._ledger_elsewhere = ledger is not None and not self.exchange.is_root
        given = f"dataset {dataset!r}, seed {seed}, {'no' if ledger is None else 'a'} ledger"
        self.exchange.agree("DistributedEngine", given)
        own_seed = None if seed is None else seed_of_rank(seed, self.exchange.rank)
        own_ledger = ledger if self.exchange.is_root else None
        set_up = super().__init__
        self.exchange.everywhere("ledger", lambda: set_up(accountant, secure, own_seed, own_ledger))

    @override
    def _sampling_of(self, data_loader: Any, expected_batch_size: float | None, poisson: bool) -> Sampling:
        examples = None
        if self.dataset == "shard" and poisson:
            self.exchange.everywhere("examples", lambda: check_loader(data_loader))
            parts = self.exchange.all_gather("examples", [np.array([len(data_loader.dataset)])])
            examples = sum(int(part[0]) for (part,) in parts)
        return sampling_of(data_loader, expected_batch_size, poisson, examples)

    @override
    def _new_capture(self, module: nn.Module, loss_reduction: Literal["mean", "sum"]) -> Capture:
        return Capture(module, loss_reduction=loss_reduction, while_probing=without_exchange)

    @override
    def _new_session(self, *args: Any, **kwargs: Any) -> DistributedSession:
        return DistributedSession(self.exchange, self.dataset, self.source, self.ledger, *args, **kwargs)

    @property
    @override
    def session(self) -> DistributedSession:
        session = super().session
        assert isinstance(session, DistributedSession)
        return session

    @override
    def events(self) -> list[tuple[DpEvent, int]]:
        """Everything spent so far, at rank 0 (elsewhere only of a run without a ledger)."""
        if self._ledger_elsewhere:
            raise RuntimeError(
                f"epsilon: rank {self.exchange.rank} does not read the ledger, which also counts lost steps and other "
                "runs; ask rank 0 (engine.exchange.is_root)"
            )
        return super().events()

    def reseed(self) -> None:
        """After a resume: a seeded run draws from streams of their own for the steps to come."""
        if self.seed is not None:
            steps = self.session.optimizer.steps_taken
            fresh = NoiseSource(seed_of_rank(self.seed, self.exchange.rank, steps))
            self.source.load_state_dict(fresh.state_dict())
            assert self.session.loader is not None
            self.session.loader.reseed(self.source.sampling.fork(0))
            self.session.share_stream()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Refused: no process holds all of it."""
        raise RuntimeError("state_dict: no process holds the whole state of the run; use save(folder)")

    @override
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint into the folder ``path``, which all processes see. A collective."""
        checkpoint.save(self, Path(path))

    @override
    def resume(self, path: str | os.PathLike[str]) -> None:
        """Continue from the folder ``path``, also with another number of processes than saved it. A collective."""
        checkpoint.resume(self, Path(path))

    def has_checkpoint(self, path: str | os.PathLike[str]) -> bool:
        """Whether ``resume(path)`` has something to continue from. A collective."""
        return checkpoint.has_checkpoint(Path(path), self.exchange)

    @override
    def export(self, path: str | os.PathLike[str], *, delta: float, allow_not_private: bool = False) -> None:
        """Write the weights for release: rank 0 to ``path``, rows of sharded tables by their owners to files beside it.
        Refused for a run that is not private, unless that is acknowledged. A collective."""
        checkpoint.export(self, Path(path), delta=delta, allow_not_private=allow_not_private)


def seed_of_rank(seed: int, rank: int, step: int = 0) -> int:
    """A seed for each process, and for each step from which a seeded run is resumed."""
    text = f"sparsedp seed {seed} rank {rank} step {step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
