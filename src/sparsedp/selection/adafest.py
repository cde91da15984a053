"""DP-AdaFEST: each step chooses its rows by a noisy, thresholded contribution map."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from sparsedp.accounting import split_sigma
from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.defaults import (
    DEFAULT_ALWAYS_ON_ROWS,
    DEFAULT_FALSE_POSITIVES,
    DEFAULT_MEMORY_EVERY,
    DEFAULT_MEMORY_LEAST,
    DEFAULT_MEMORY_MOST,
    DEFAULT_NOISE_RATIO,
    LEAST_MEMORY_SHARE,
    MEMORY_OVER_CHANCE,
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
from sparsedp.selection.vocabulary import noisy_counts_above


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

    With memory (``memory_false_positives`` given) a step also trains rows that do not survive it, if their noisy counts
    passed a second, lower threshold repeatedly: in a larger part of the steps than ``memory_share`` (default: half as
    often again as by chance, 0.02 at least), and ``memory_least`` times more (``RowMemory``). Such rows take turns: each
    is trained in one of ``memory_every`` steps. ``memory_false_positives`` untouched rows a step pass that threshold by
    chance; they rarely repeat. The same event, for everything that is released: the noisy counts above the lower
    threshold, and the gradient on the trained rows. Proof: both thresholds are post-processing of the one noisy map of
    a step, and its trained rows are a function of what passed in this step and in those before, and of the number of
    the step: of outputs of the mechanism, so the gradient's query stays adaptive in released values alone.
    """

    noise_ratio: float = DEFAULT_NOISE_RATIO
    threshold: float | None = None
    false_positives: float = DEFAULT_FALSE_POSITIVES
    contribution_norm: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    within: FEST | PrivateTopK | None = None
    memory_false_positives: float | None = None
    memory_share: float | None = None
    memory_least: float = DEFAULT_MEMORY_LEAST
    memory_most: float = DEFAULT_MEMORY_MOST
    memory_every: int = DEFAULT_MEMORY_EVERY

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        for name in ("noise_ratio", "false_positives", "contribution_norm", "memory_false_positives"):
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

        if self.memory_share is not None and not 0.0 < self.memory_share < 1.0:
            raise ValueError(f"memory_share must lie between 0 and 1, got {self.memory_share}")
        check_count("memory_every", self.memory_every)
        if not 0.0 < self.memory_least <= self.memory_most < math.inf:
            raise ValueError(
                f"memory_least must be positive and at most memory_most, got {self.memory_least} and {self.memory_most}"
            )

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
            **self._memory(space.selectable_size, rows, threshold, sigma1 * contribution_norm),
        )

    def _memory(self, size: int, rows: int, threshold: float, std: float) -> dict[str, Any]:
        """The memory of a rule, and the threshold from which it remembers."""
        if self.memory_false_positives is None:
            return {}
        lower = min(threshold_for_false_positives(self.memory_false_positives, rows, std), threshold)
        by_chance = float(ndtr(-lower / std)) if std else 0.0
        share = self.memory_share or max(LEAST_MEMORY_SHARE, MEMORY_OVER_CHANCE * by_chance)
        if by_chance >= share:
            warnings.warn(
                f"memory_share: {by_chance:.2g} of the rows pass the memory's threshold by chance in a step, as often as "
                f"a row must to be trained ({share:g}): in time nearly all rows will be. Give fewer "
                f"memory_false_positives or false_positives for {rows:,} rows, or a larger memory_share",
                stacklevel=2,
            )
        memory = RowMemory(
            size, share=share, least=self.memory_least, most=self.memory_most, every=self.memory_every
        )
        return {"memory": memory, "memory_threshold": lower}


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
    """What was released earlier, where that chooses rows too."""
    memory_threshold: float = 0.0

    @property
    def map_std(self) -> float:
        """The standard deviation of the noise on the map."""
        return self.map_noise_multiplier * self.contribution_norm

    def select(self, batch: Batch, stream: Stream) -> Selected:
        """Draw the surviving rows; with memory, add those that passed the lower threshold repeatedly."""
        counts = batch.contributions(self.contribution_norm, self.domain)
        if self.memory is None:
            return Selected(self.survivors(counts, self.domain, stream))
        passed = self.passing(counts, stream)
        repeated = self.memory.observe(passed.ids)
        return Selected(np.union1d(repeated, passed.ids[passed.values >= self.threshold]))

    def passing(self, counts: SparseCounts, stream: Stream) -> SparseCounts:
        """The noisy counts that are at least ``memory_threshold``, of all rows or of those in ``domain``."""
        if self.map_std == 0:  # no noise: no untouched row passes
            passed = (counts.values > 0) & (counts.values >= self.memory_threshold)
            return SparseCounts(counts.ids[passed], counts.values[passed], counts.size)
        inside = counts if self.domain is None else counts.within(self.domain)
        if not inside.size:
            return SparseCounts.zeros(counts.size)
        noisy = noisy_counts_above(inside, self.map_std, self.memory_threshold, stream)
        return noisy if self.domain is None else replace(noisy, ids=self.domain[noisy.ids], size=counts.size)

    def state_dict(self) -> dict[str, Any]:
        """The memory, if there is one."""
        return {} if self.memory is None else self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        if self.memory is None:
            super().load_state_dict(state)
        else:
            self.memory.load_state_dict(state)

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
