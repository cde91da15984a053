"""The algorithm registry: one entry for each algorithm that a run can train with.

The config's checks, the command line's help, the sweep, the reports and the figures all read it. A new
algorithm is one ``register`` call here, or anywhere before the config is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparsedp.core.defaults import DEFAULT_FALSE_POSITIVES

if TYPE_CHECKING:
    from sparsedp.runs.config import RunConfig
    from sparsedp.selection import FEST, PrivateTopK, Selection

    RowSet = FEST | PrivateTopK


@dataclass(frozen=True)
class Algorithm:
    """What a run needs to know of an algorithm."""

    name: str
    """On the command line and in settings files."""
    label: str
    """In reports and figures."""
    colour: str
    """In figures."""
    build: Callable[[RunConfig, RowSet | None], Selection] | None
    """Makes the selection rule, given the row set if ``row_set``; None trains without privacy."""
    options: tuple[str, ...] = ()
    """The fields of ``RunConfig`` that are for some algorithms only, and that this one reads."""
    required: tuple[str, ...] = ()
    """Those of them that have no default."""
    row_set: bool = False
    """Trains on rows chosen before training, by a DP top-k of ``rows`` rows at the price ``fest_mu``."""
    lazy_noise: bool = False
    """Adds a row's noise when the row is next read: only for plain SGD, and only the final model is released."""
    one_process: bool = False
    """Cannot be trained on several processes."""
    dense: bool = False
    """Adds noise to whole tables: the baseline for the others' gradient sizes."""
    one_period: bool = False
    """Cannot be trained period by period."""

    def __post_init__(self) -> None:
        if not set(self.required) <= set(self.options):
            raise ValueError(f"required: {', '.join(self.required)} must be among the options of {self.name}")
        if self.row_set and "rows" not in self.required:
            raise ValueError(f"required: {self.name} chooses a row set, so it needs rows")

    @property
    def private(self) -> bool:
        """Whether it trains under differential privacy."""
        return self.build is not None


ALGORITHMS: dict[str, Algorithm] = {}
"""By name, in the order in which help, reports and figures list them."""


def register(algorithm: Algorithm) -> None:
    """Add an algorithm; a name that is taken is refused."""
    if algorithm.name in ALGORITHMS:
        raise ValueError(f"name: there is already an algorithm {algorithm.name}")
    ALGORITHMS[algorithm.name] = algorithm


def selection_of(config: RunConfig, row_set: RowSet | None) -> Selection:
    """The selection rule of a private run; ``row_set`` is given where the algorithm trains on one."""
    build = config.method.build
    if build is None:
        raise ValueError(f"algorithm: {config.algorithm} has no selection rule")
    return build(config, row_set)


def _dp_sgd(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import DPSGD

    return DPSGD()


def _lazy(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import DPSGD

    return DPSGD(lazy=True)


def _fest(config: RunConfig, row_set: RowSet | None) -> Selection:
    assert row_set is not None
    return row_set


def _fest_turns(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import PrivateTopK

    if not isinstance(row_set, PrivateTopK):
        raise ValueError(
            "algorithm fest-turns: how often a row is updated follows from private counts of one training"
        )
    return replace(row_set, update_every=config.update_every)


def _fest_lazy(config: RunConfig, row_set: RowSet | None) -> Selection:
    assert row_set is not None
    return replace(row_set, lazy=True)


def _adafest(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import AdaFEST

    return AdaFEST(
        noise_ratio=config.noise_ratio,
        threshold=config.threshold,
        false_positives=config.false_positives or DEFAULT_FALSE_POSITIVES,
        contribution_norm=config.contribution_norm,
        always_on_rows=config.always_on_rows,
        within=row_set,
    )


def _adafest_memory(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import AdaFEST

    plain = _adafest(config, row_set)
    assert isinstance(plain, AdaFEST)
    return replace(plain, memory_steps=config.memory_steps, memory_every=config.memory_every)


def _exponential(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import ExponentialSelection

    assert config.rows is not None
    return ExponentialSelection(
        rows=config.rows,
        selection_epsilon=config.selection_epsilon,
        score_cap=config.score_cap,
        always_on_rows=config.always_on_rows,
    )


def _sparse_vector(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import SparseVectorSelection

    assert config.rows is not None
    return SparseVectorSelection(
        rows=config.rows,
        selection_epsilon=config.selection_epsilon,
        score_cap=config.score_cap,
        threshold=config.score_threshold,
        always_on_rows=config.always_on_rows,
    )


def _random(config: RunConfig, row_set: RowSet | None) -> Selection:
    from sparsedp.selection import RandomSelection

    assert config.rows is not None
    return RandomSelection(rows=config.rows, always_on_rows=config.always_on_rows)


_TOP_K = ("rows", "fest_mu")
_MAP = ("noise_ratio", "threshold", "false_positives", "contribution_norm", "always_on_rows")
_MEMORY = ("memory_steps", "memory_every")
_SCORES = ("rows", "selection_epsilon", "score_cap")

register(Algorithm("non-private", "without privacy", "#475569", None))
register(Algorithm("dp-sgd", "DP-SGD", "#b91c1c", _dp_sgd, dense=True))
register(Algorithm("lazy", "DP-SGD, lazy noise", "#f97316", _lazy, lazy_noise=True, dense=True))
register(
    Algorithm(
        "fest", "DP-FEST", "#0b6e99", _fest, (*_TOP_K, "always_on_rows"), required=("rows",), row_set=True
    )
)
register(
    Algorithm(
        "fest-lazy",
        "DP-FEST, lazy noise",
        "#0891b2",
        _fest_lazy,
        (*_TOP_K, "always_on_rows"),
        required=("rows",),
        row_set=True,
        lazy_noise=True,
    )
)
register(
    Algorithm(
        "fest-turns",
        "DP-FEST, rows in turns",
        "#1d4ed8",
        _fest_turns,
        (*_TOP_K, "update_every", "always_on_rows"),
        required=("rows",),
        row_set=True,
        one_process=True,
        one_period=True,
    )
)
register(Algorithm("adafest", "DP-AdaFEST", "#15803d", _adafest, _MAP))
register(
    Algorithm(
        "adafest-memory",
        "DP-AdaFEST with memory",
        "#65a30d",
        _adafest_memory,
        (*_MAP, *_MEMORY),
        one_process=True,
    )
)
register(
    Algorithm(
        "adafest+", "DP-AdaFEST+", "#7c3aed", _adafest, (*_TOP_K, *_MAP), required=("rows",), row_set=True
    )
)
register(
    Algorithm(
        "exponential",
        "exponential selection",
        "#a16207",
        _exponential,
        (*_SCORES, "always_on_rows"),
        required=("rows",),
    )
)
register(
    Algorithm(
        "sparse-vector",
        "sparse-vector selection",
        "#be185d",
        _sparse_vector,
        (*_SCORES, "score_threshold", "always_on_rows"),
        required=("rows",),
    )
)
register(
    Algorithm(
        "random", "random selection", "#64748b", _random, ("rows", "always_on_rows"), required=("rows",)
    )
)
