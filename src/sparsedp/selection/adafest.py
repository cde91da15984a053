"""DP-AdaFEST: each step chooses its rows by a noisy, thresholded contribution map."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from sparsedp.accounting import split_sigma
from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.defaults import (
    DEFAULT_ALWAYS_ON_ROWS,
    DEFAULT_FALSE_POSITIVES,
    DEFAULT_MEMORY_EVERY,
    DEFAULT_NOISE_RATIO,
)
from sparsedp.core.tables import TableShape
from sparsedp.core.validation import check_count
from sparsedp.mechanisms import draw_survivors, threshold_for_false_positives
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import (
    Batch,
    CountRows,
    LooksAt,
    Rule,
    Selected,
    Selection,
    check_always_on,
    default_contribution_norm,
    free,
)
from sparsedp.selection.fest import FEST, PrivateTopK
from sparsedp.selection.row_memory import RowMemory


@dataclass(frozen=True)
class AdaFEST(Selection):
    """Adaptive filtering (FEST paper, Algorithm 1); with ``within=FEST(...)`` it is AdaFEST+.

    Guarantee: add-or-remove-one example. The map ``sum_i v_i min(1, C1/||v_i||)`` moves by at most C1 and
    gets noise ``sigma1 C1``; the masked, then jointly clipped sum moves by at most C2 and gets ``sigma2 C2``
    on every surviving row, touched or not. Event per step ``PoissonSampled(q, Gaussian(sigma))`` with
    ``sigma^-2 = sigma1^-2 + sigma2^-2``. Released: which rows survive, and the gradient on them.
    Proof: scaled by their noise, map and gradient are one vector query (adaptive in its second part) of
    sensitivity ``sqrt(sigma1^-2 + sigma2^-2)``; the threshold is post-processing. One Poisson batch, one event.

    Parameters: ``noise_ratio`` is ``sigma1 / sigma2``; give either ``threshold`` (tau) or
    ``false_positives``, the expected number per step of surviving rows that no example touched;
    ``contribution_norm`` is C1, by default the square root of the number of selectable tables, which clips
    nothing where examples have one value per feature; tables of at most ``always_on_rows`` rows are always on.

    With memory (``memory_steps`` given) a step trains the rows whose noisy counts, added up over the steps so far, stand
    out (``RowMemory``): the threshold of the sum over n steps is ``sqrt(n)`` times that of one step, so that rows which are
    read now and then are found in time, and as few untouched ones. After ``memory_steps`` steps new sums begin. Rows that are
    not far above the threshold take turns: each is trained in one of ``memory_every`` steps.
    The same event, for everything that is released: the rows, and the gradient on them. Proof: the rows of a step are a
    function of the noisy maps of this step and of those before, each released once (``NoisySums``), and of the number of
    the step; the gradient's query stays adaptive in released values alone.
    """

    noise_ratio: float = DEFAULT_NOISE_RATIO
    threshold: float | None = None
    false_positives: float = DEFAULT_FALSE_POSITIVES
    contribution_norm: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    within: FEST | PrivateTopK | None = None
    memory_steps: int | None = None
    memory_every: int = DEFAULT_MEMORY_EVERY

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        for name in ("noise_ratio", "false_positives", "contribution_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if self.threshold is not None:
            if not (math.isfinite(self.threshold) and self.threshold > 0):
                raise ValueError(f"threshold must be positive and finite, got {self.threshold}")
            if self.false_positives != DEFAULT_FALSE_POSITIVES:
                raise ValueError("threshold and false_positives exclude each other: give one of them")
        if self.within is not None and self.within.lazy:
            raise ValueError("within: the rows of AdaFEST+ change at every step; give FEST without lazy=True")
        if self.within is not None and self.within.update_every not in (None, 1):
            raise ValueError(
                "within: the rows of AdaFEST+ change at every step; give FEST without update_every"
            )
        if self.memory_steps is not None:
            check_count("memory_steps", self.memory_steps)
        check_count("memory_every", self.memory_every)

    def resolve(
        self,
        tables: Sequence[TableShape],
        count_rows: CountRows,
        stream: Stream,
        charge: Callable[[], None] = free,
    ) -> AdaFEST:
        """Choose the rows of AdaFEST+ once."""
        if isinstance(self.within, PrivateTopK):
            return replace(self, within=self.within.resolve(tables, count_rows, stream, charge))
        return self

    def stand_in(self, tables: Sequence[TableShape]) -> AdaFEST:
        """Among as many rows, chosen without data."""
        if isinstance(self.within, PrivateTopK):
            return replace(self, within=self.within.first_rows(tables, self.within.k))
        return self

    def one_off_events(self) -> tuple[DpEvent, ...]:
        """What choosing the rows of AdaFEST+ costs."""
        return () if self.within is None else self.within.one_off_events()

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Small tables are always on."""
        if self.within is not None:
            return self.within.partition_tables(tables)
        return partition_tables(tables, self.always_on_rows)

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> ContributionMap:
        """Split the noise between map and gradient and compute the threshold."""
        if isinstance(self.within, PrivateTopK):
            raise ValueError("the private top-k must be resolved before training; PrivacyEngine does so")
        domain = None if self.within is None else self.within.numbers(space)
        rows = space.selectable_size if domain is None else domain.size
        sigma1, sigma2 = split_sigma(noise_multiplier, self.noise_ratio) if noise_multiplier else (0.0, 0.0)
        contribution_norm = self.contribution_norm or default_contribution_norm(space)
        threshold = self.threshold
        if threshold is None:
            threshold = threshold_for_false_positives(self.false_positives, rows, sigma1 * contribution_norm)
        return ContributionMap(
            space,
            sigma2,
            max_grad_norm,
            expected_batch_size,
            contribution_norm=contribution_norm,
            map_noise_multiplier=sigma1,
            threshold=threshold,
            domain=domain,
            memory=self._memory(rows, threshold / (sigma1 * contribution_norm or 1.0)),
        )

    def _memory(self, rows: int, deviations: float) -> RowMemory | None:
        """The memory of a rule, if it has one and rows to choose."""
        if self.memory_steps is None or not rows:
            return None
        return RowMemory(rows, deviations=deviations, steps=self.memory_steps, every=self.memory_every)


@dataclass(frozen=True)
class ContributionMap(Rule):
    """Lines 5 to 8 of Algorithm 1: contribution map, noise, threshold."""

    looks_at: ClassVar[LooksAt] = "ids"
    contribution_norm: float = 1.0
    map_noise_multiplier: float = 0.0
    """The map's noise over the map's sensitivity (sigma1)."""
    threshold: float = 0.0
    domain: I64 | None = None
    memory: RowMemory | None = None
    """The sums of earlier maps, where they choose the rows."""

    @property
    def map_std(self) -> float:
        """The standard deviation of the noise on the map."""
        return self.map_noise_multiplier * self.contribution_norm

    def select(self, batch: Batch, stream: Stream) -> Selected:
        """Draw the surviving rows; with memory, the rows whose sums survive."""
        counts = batch.contributions(self.contribution_norm, self.domain)
        # Without noise a row that was read is told from the others at once.
        if self.memory is None or self.map_std == 0:
            return Selected(self.survivors(counts, self.domain, stream))
        if self.domain is None:
            return Selected(self.memory.observe(counts, self.map_std, stream))
        return Selected(self.domain[self.memory.observe(counts.within(self.domain), self.map_std, stream)])

    def state_dict(self) -> dict[str, Any]:
        """The memory, if there is one."""
        return {} if self.memory is None else self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        if self.memory is None:
            super().load_state_dict(state)
        else:
            self.memory.load_state_dict(state)

    @override
    def take_over(self, other: Rule) -> None:
        """With its sums, which no state holds; a memory of other rows begins anew."""
        if self.memory is None or not isinstance(other, ContributionMap) or other.memory is None:
            super().take_over(other)
        elif _are_same(self.domain, other.domain):
            self.memory.take_over(other.memory)

    def survivors(self, counts: SparseCounts, domain: I64 | None, stream: Stream) -> I64:
        """The surviving ones of the rows ``range(counts.size)``, or of those of them in ``domain``.

        A row survives independently of all others, so a part of the rows may be drawn by itself.
        """
        if self.map_std == 0:  # no noise: no untouched row survives
            return counts.ids[(counts.values > 0) & (counts.values >= self.threshold)]
        if domain is not None:
            counts = counts.within(domain)
        if not counts.size:
            return np.empty(0, dtype=np.int64)
        survivors = draw_survivors(
            counts.ids, counts.values, counts.size, self.map_std, self.threshold, stream
        )
        return survivors if domain is None else domain[survivors]


def _are_same(domain: I64 | None, other: I64 | None) -> bool:
    """Whether two domains have the same rows; None has all."""
    if domain is None or other is None:
        return domain is other
    return np.array_equal(domain, other)
