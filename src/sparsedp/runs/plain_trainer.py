"""The trainer without privacy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.steps import steps_in
from sparsedp.data import ClickData, TextData
from sparsedp.randomness import NoiseSource
from sparsedp.rows import Units
from sparsedp.runs.config import RunConfig
from sparsedp.runs.optimizers import optimizers_of
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.trainer import STATS, Trainer
from sparsedp.runs.users import batch_size, loader_of, population, user_sampler
from sparsedp.selection import Rule
from sparsedp.training import LastStep, PoissonLoader
from sparsedp.training.checkpoint import load_file, whole_state, write_state
from sparsedp.training.loader import BatchReceiver


class _CurrentPiece(BatchReceiver):
    """Which piece of a logical batch the loader has handed out; ``batch``: the expected size, where it has pieces."""

    def __init__(self, batch: int | None) -> None:
        self._batch = batch
        self.is_first = self.is_last = True
        self.weight = 1.0

    @override
    def begin_epoch(self) -> None:
        return

    @override
    def end_epoch(self) -> None:
        return

    @override
    def hand_out(
        self,
        contents: Any,
        examples: int | None,
        *,
        first: bool,
        last: bool,
        batch: Sequence[Any],
        units: Sequence[Units] = (),
    ) -> None:
        """The pieces' gradients are added up, so that each counts by its share of the batch."""
        self.is_first, self.is_last = first, last
        if self._batch is not None:
            self.weight = (examples or 0) / self._batch


class PlainTrainer(Trainer):
    """Training without privacy on the same Poisson batches, for comparison."""

    ranks = 1

    def __init__(self, config: RunConfig, model: nn.Module, data: ClickData | TextData) -> None:
        self.stopped: str | None = None
        sampler = user_sampler(config, data)
        batch = batch_size(config, population(data, sampler))
        rate = batch / population(data, sampler)
        examples = batch if sampler is None else round(rate * len(sampler))
        self._piece = _CurrentPiece(examples if config.physical_batch_size is not None else None)
        self._loader = PoissonLoader(
            loader_of(config, data, sampler),
            sampling_rate=rate,
            stream=NoiseSource(config.seed).sampling,
            physical_batch_size=config.physical_batch_size,
            owner=self._piece,
        )
        self._model = model
        self._optimizers: list[Optimizer] = optimizers_of(config, model)
        self.total_steps = steps_in(config.choices.epochs, self._loader.steps_per_epoch)

    @property
    @override
    def steps_taken(self) -> int:
        return self._loader.position

    @override
    def batches(self) -> Iterator[Any]:
        return iter(self._loader)

    @override
    def zero_grad(self) -> None:
        if self._piece.is_first:
            for optimizer in self._optimizers:
                optimizer.zero_grad()

    @override
    def weight(self) -> float:
        return self._piece.weight

    @override
    def step(self) -> None:
        if self._piece.is_last:
            checks = torch.sparse.check_sparse_tensor_invariants  # torch's Adagrad warns unless they are set
            with checks(enable=checks.is_enabled()):  # type: ignore[no-untyped-call]
                for optimizer in self._optimizers:
                    optimizer.step()

    @property
    @override
    def is_mid_batch(self) -> bool:
        return not self._piece.is_last

    @override
    def last_step(self) -> LastStep | None:
        return None

    @override
    def flush(self) -> LastStep | None:
        return None

    @override
    def spent(self) -> PrivacyStatement | None:
        return None

    @override
    def statement(self) -> PrivacyStatement | None:
        return None

    @override
    def lost_steps(self) -> int:
        return 0

    @override
    def choose_once(self, saved: Path | None = None) -> bool:
        return False

    @override
    def lower_rates(self, config: RunConfig, data: ClickData | TextData, saved: Path) -> bool:
        return False

    @override
    def calibrate(self, config: RunConfig, data: ClickData | TextData) -> bool:
        return False

    @override
    def save(self, path: Path, run_stats: RunStats) -> None:
        state = {
            STATS: run_stats.to_record(),
            "module": self._model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "position": self._loader.position,
            "torch_rng": torch.get_rng_state(),
        }
        write_state(state, path)

    @override
    def resume(self, path: Path) -> RunStats:
        state = load_file(path)
        with whole_state(path):
            self._model.load_state_dict(state["module"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self._loader.position = state["position"]
            torch.set_rng_state(state["torch_rng"])
            return RunStats.from_record(state[STATS])

    @override
    def withheld(self) -> list[str]:
        return []

    @override
    def rule_state(self) -> dict[str, Any]:
        return {}

    @override
    def load_rule_state(self, state: Mapping[str, Any]) -> None:
        return

    @property
    @override
    def rule(self) -> Rule | None:
        return None

    @override
    def take_over_rule(self, other: Rule) -> None:
        return

    @override
    def close(self) -> None:
        return
