"""The trainer of a run on several processes."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from typing_extensions import override

from sparsedp.accounting import Ledger, PrivacyStatement
from sparsedp.data import ClickData, TextData
from sparsedp.distributed import DistributedEngine, Exchange
from sparsedp.distributed import checkpoint as shared_checkpoint
from sparsedp.runs.config import RunConfig
from sparsedp.runs.row_counts import private_rows
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.trainer import STATS, PrivateTrainer
from sparsedp.selection import FEST, PrivateTopK
from sparsedp.training import PrivacyEngine


class DistributedTrainer(PrivateTrainer):
    """Training with all processes of a run; rank 0 has the ledger, and alone knows epsilon."""

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        data: ClickData | TextData,
        ledger: Ledger | None,
        exchange: Exchange,
    ) -> None:
        self._exchange = exchange
        self.ranks = exchange.size
        super().__init__(config, model, data, ledger)

    @override
    def _new_engine(self, config: RunConfig) -> PrivacyEngine:
        has_ledger = self._exchange.from_root("ledger", lambda: self.ledger is not None)
        return DistributedEngine(
            secure=config.seed is None,
            seed=config.seed,
            ledger=self.ledger if self._exchange.is_root or not has_ledger else "at rank 0",
            exchange=self._exchange,
        )

    @override
    def _private_rows(
        self, config: RunConfig, model: nn.Module, data: ClickData | TextData
    ) -> FEST | PrivateTopK | None:
        return private_rows(config, model, data, self._exchange)

    @override
    def spent(self) -> PrivacyStatement | None:
        return super().spent() if self._exchange.is_root else None

    @override
    def statement(self) -> PrivacyStatement | None:
        return super().statement() if self._exchange.is_root else None

    @override
    def save(self, path: Path, run_stats: RunStats) -> None:
        assert isinstance(self.engine, DistributedEngine)
        shared_checkpoint.save(self.engine, path, {STATS: run_stats.to_record()})

    @override
    def resume(self, path: Path) -> RunStats:
        assert isinstance(self.engine, DistributedEngine)
        return RunStats.from_record(shared_checkpoint.resume(self.engine, path)[STATS])
