"""Known-bad forms of a step, for audits that must catch them. None of them is private.

Each is a subclass that puts its fault in place of one method. They run by ``FaultyEngine`` alone, which takes a seed and
says in every statement that the run is not private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from typing_extensions import override

from sparsedp.accounting.events import DpEvent, NonPrivateDpEvent
from sparsedp.clipping import Captured
from sparsedp.core.arrays import F32, I64
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowGradient, RowSpace
from sparsedp.selection import AdaFEST, Batch, Selected
from sparsedp.selection.adafest import ContributionMap
from sparsedp.training import PrivacyEngine
from sparsedp.training.account import Account
from sparsedp.training.batch import LogicalBatch, clip_share
from sparsedp.training.session import TrainingSession
from sparsedp.training.step import PrivateStep, StepGradient, StepSums, merged_rows


class FaultyEngine(PrivacyEngine):
    """The engine with a faulty step. No guarantee; its statement says so."""

    def __init__(self, step: type[PrivateStep], seed: int) -> None:
        super().__init__(secure=False, seed=seed)
        self._step = step

    @override
    def _new_session(self, *args: Any, **kwargs: Any) -> TrainingSession:
        return _FaultySession(self._step, self.source, self.ledger, *args, **kwargs)

    @override
    def account(self) -> Account:
        known = super().account()
        return replace(known, faults=(*known.faults, f"{self._step.__name__} is a known-bad form of a step"))


class _FaultySession(TrainingSession):
    def __init__(self, step: type[PrivateStep], *args: Any, **kwargs: Any) -> None:
        self._step = step
        super().__init__(*args, **kwargs)

    @override
    def _new_step(self, *args: Any, **kwargs: Any) -> PrivateStep:
        return self._step(*args, **kwargs)


class ClippedApart(PrivateStep):
    """Clips dense layers and tables to C each: together an example moves by 1.41 C."""

    @override
    def _new_sums(self, selected: Selected) -> StepSums:
        return _SumsApart(self._rule, selected, self._dense, lazy=self._lazy)


class _SumsApart(StepSums):
    @override
    def add(self, batch: LogicalBatch, survivors: I64, weights: F32) -> None:
        clip = self._rule.max_grad_norm * clip_share(self._rule.expected_batch_size)
        of_rows = batch.squared_norms(survivors) - batch.dense_squared_norms
        row_weights = batch.clip_weights(of_rows, clip)
        dense_weights = batch.clip_weights(batch.dense_squared_norms, clip)
        for name, out in self._of_dense.items():
            batch.accumulate_dense(name, out, dense_weights)
        batch.accumulate_rows(survivors, row_weights, self._targets)
        first = 0 if self._lazy else len(self._rule.space.selectable)
        for table_index, rows, sums in batch.row_sums(survivors, row_weights, first):
            self._touched[table_index] = merged_rows(self._touched[table_index], (rows, sums))


class DividedByRealised(PrivateStep):
    """Divides by the number of examples in the batch: the scale of the noise shows it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples = 0

    @override
    def add(self, piece: Captured) -> None:
        self._examples += piece.batch_size
        super().add(piece)

    @override
    def release(self) -> StepGradient:
        factor = self._rule.expected_batch_size / max(self._examples, 1)
        gradient = super().release()
        return gradient._replace(
            dense={name: factor * value for name, value in gradient.dense.items()},
            tables={
                name: RowGradient(value.ids, factor * value.values)
                if isinstance(value, RowGradient)
                else factor * value
                for name, value in gradient.tables.items()
            },
        )


class QuietDense(PrivateStep):
    """Half the noise on the dense layers."""

    @override
    def _new_sums(self, selected: Selected) -> StepSums:
        return _QuietSums(self._rule, selected, self._dense, lazy=self._lazy, quiet=("dense",))


class QuietRows(PrivateStep):
    """Half the noise on the tables."""

    @override
    def _new_sums(self, selected: Selected) -> StepSums:
        return _QuietSums(self._rule, selected, self._dense, lazy=self._lazy, quiet=("tables",))


class _QuietSums(StepSums):
    def __init__(self, *args: Any, quiet: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._quiet = quiet

    @override
    def release(self, source: NoiseSource) -> StepGradient:
        whole, rule = super().release(source), self._rule
        self._rule = replace(rule, gradient_noise_multiplier=rule.gradient_noise_multiplier / 2)
        try:
            half = super().release(source)
        finally:
            self._rule = rule
        return whole._replace(**{part: getattr(half, part) for part in self._quiet})


class _FaultyRule(AdaFEST):
    """AdaFEST with a faulty rule: no event bounds it."""

    @override
    def step_event(self, noise_multiplier: float) -> DpEvent:
        return NonPrivateDpEvent()

    @override
    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> ContributionMap:
        """The right rule, but for the fault."""
        right = super().rule(
            space,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
        )
        return self._with_fault(right)

    def _with_fault(self, right: ContributionMap) -> ContributionMap:
        raise NotImplementedError


class QuietMap(_FaultyRule):
    """AdaFEST with half the noise on the contribution map. Not private; a control."""

    @override
    def _with_fault(self, right: ContributionMap) -> ContributionMap:
        return replace(right, map_noise_multiplier=right.map_noise_multiplier / 2)


class RememberedReads(_FaultyRule):
    """AdaFEST whose memory holds the rows that were read, not those that were released. Not private; a control."""

    @override
    def _with_fault(self, right: ContributionMap) -> ContributionMap:
        return _ReadMap(**{each.name: getattr(right, each.name) for each in fields(right)})


@dataclass(frozen=True)
class _ReadMap(ContributionMap):
    reads: list[I64] = field(default_factory=list)
    """The rows that each step read."""

    @override
    def select(self, batch: Batch, stream: Stream) -> Selected:
        assert self.memory is not None
        self.reads.append(batch.contributions(self.contribution_norm).ids)
        return Selected(np.unique(np.concatenate(self.reads[-self.memory.steps :])))
