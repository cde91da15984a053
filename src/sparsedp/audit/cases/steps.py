"""Audits of one step of every selection, through the engine, and of the classic faults of a step.

The pair is the worst one: an empty batch against one canary that alone reads row 7 and whose gradient is clipped. The
statistic is the log-likelihood ratio of what the step releases, or grows with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr
from torch import Tensor, nn

from sparsedp.accounting import analytic_gaussian_epsilon, epsilon_of, split_sigma
from sparsedp.audit.case import Case, Claim, new_seed
from sparsedp.audit.eana import EANA
from sparsedp.audit.faulty import (
    ClippedApart,
    DividedByRealised,
    FaultyEngine,
    QuietDense,
    QuietMap,
    QuietRows,
    RememberedReads,
)
from sparsedp.randomness import Stream
from sparsedp.selection import (
    DPSGD,
    FEST,
    AdaFEST,
    ExponentialSelection,
    RandomSelection,
    Selection,
    SparseVectorSelection,
)
from sparsedp.training import PrivacyEngine
from sparsedp.training.step import PrivateStep

ROWS, READ = 30, 7
SIGMA, DELTA = 0.5, 0.3
"""At a small delta so few runs do not tell half of the noise from all of it: the bound of either is below the claim."""
RUNS = 2_400
IDLE = 30
"""Dense coordinates whose gradient is always zero: their noise shows its scale."""


class CanaryModel(nn.Module):
    """Row 7 and a dense weight get 100 times these shares as gradients, which are clipped to norm 1."""

    def __init__(self, row: float = 1.0, dense: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1, sparse=True)
        self.dense = nn.Linear(1, 1, bias=False)
        self.idle = nn.Linear(1, IDLE, bias=False)
        self.row_share, self.dense_share = row, dense
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        """100 times the row and the weight."""
        ones = torch.ones(len(ids), 1)
        read = self.row_share * self.table(ids).squeeze(1) + self.dense_share * self.dense(ones).squeeze(1)
        total: Tensor = 100 * read + self.idle(0 * ones).sum(dim=1)
        return total


@dataclass(frozen=True)
class Outcomes:
    """What so many steps released: one entry a step."""

    survives: NDArray[np.bool_]
    row: NDArray[np.float64]
    """The gradient of row 7; 0 where it did not survive."""
    dense: NDArray[np.float64]
    spread: NDArray[np.float64]
    """The mean square of the idle gradients."""


Score = Callable[[Outcomes], NDArray[np.float64]]


@dataclass(frozen=True)
class Steps:
    """So many private steps on batches of canaries: the ``statistics`` of a case."""

    selection: Selection
    score: Score
    fault: type[PrivateStep] | None = None
    sigma: float = SIGMA
    model: dict[str, float] = field(default_factory=dict)
    is_flushed: bool = True
    """Of lazy noise: whether the table is read with its pending noise, as every release is."""

    def __call__(self, canaries: int, stream: Stream, runs: int) -> NDArray[np.float64]:
        """One score a step."""
        model, seed = CanaryModel(**self.model), new_seed(stream)
        engine = (
            PrivacyEngine(secure=False, seed=seed) if self.fault is None else FaultyEngine(self.fault, seed)
        )
        private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0 if self.selection.lazy else 0.0),
            data_loader=[torch.full((canaries,), READ)],
            noise_multiplier=self.sigma,
            max_grad_norm=1.0,
            selection=self.selection,
            expected_batch_size=1,
            poisson=False,
            loss_reduction="sum",
        )
        found = np.empty((runs, 4))
        read = _Moves(engine, self.is_flushed).read if self.selection.lazy else partial(_released, model)
        for run in range(runs):
            for ids in private.data_loader:
                private.optimizer.zero_grad()
                private.module(ids).sum().backward()
                private.optimizer.step()
            found[run] = read()
        engine.detach()
        return self.score(Outcomes(found[:, 0] > 0, *found[:, 1:].T))


def _released(model: CanaryModel) -> tuple[float, float, float, float]:
    table, dense, idle = model.table.weight.grad, model.dense.weight.grad, model.idle.weight.grad
    assert table is not None
    assert dense is not None
    assert idle is not None
    if table.is_sparse:
        place = torch.nonzero(table.indices()[0] == READ).flatten()
        survives, row = len(place) > 0, float(table.values()[place].sum())
    else:
        survives, row = True, float(table[READ])
    return float(survives), row, float(dense), float(idle.square().mean())


class _Moves:
    """How far lazy SGD moved the model since it was last read. ``survives``: row 7 moved and its neighbour did not."""

    def __init__(self, engine: PrivacyEngine, is_flushed: bool) -> None:
        self._engine, self._is_flushed = engine, is_flushed
        self._before = self._weights()

    def read(self) -> tuple[float, float, float, float]:
        before, self._before = self._before, self._weights()
        table, dense = before[0] - self._before[0], before[1] - self._before[1]
        alone = bool(table[READ] != 0) and bool(table[READ + 1] == 0)
        return float(alone), float(table[READ]), float(dense), 0.0

    def _weights(self) -> tuple[Tensor, Tensor]:
        module = self._engine.session.module
        assert isinstance(module, CanaryModel)
        if self._is_flushed:
            state = module.state_dict()
            return state["table.weight"].clone(), state["dense.weight"].clone()
        with self._engine.session.without_pending_noise():
            return module.table.weight.detach().clone(), module.dense.weight.detach().clone()


def gradients(found: Outcomes) -> NDArray[np.float64]:
    """The released gradient in the canary's direction."""
    return found.row + found.dense


def row_gradient(found: Outcomes) -> NDArray[np.float64]:
    """The gradient of row 7 alone."""
    return found.row


def dense_gradient(found: Outcomes) -> NDArray[np.float64]:
    """The gradient of the dense weight alone."""
    return found.dense


def likelihood_ratio(noise_ratio: float, threshold: float, found: Outcomes) -> NDArray[np.float64]:
    """Of AdaFEST: log P(output | canary) / P(output | nobody)."""
    sigma1, sigma2 = split_sigma(SIGMA, noise_ratio)
    passes = log_ndtr((1 - threshold) / sigma1) - log_ndtr(-threshold / sigma1)
    fails = log_ndtr((threshold - 1) / sigma1) - log_ndtr(threshold / sigma1)
    moved = np.where(found.survives, (found.row + found.dense) / np.sqrt(2), found.dense)
    return np.where(found.survives, passes, fails) + (moved - 0.5) / sigma2**2


def bit_and_gradients(found: Outcomes) -> NDArray[np.float64]:
    """The gradient, and a bonus where the row was chosen."""
    return found.survives + gradients(found)


def surviving(found: Outcomes) -> NDArray[np.float64]:
    """Whether row 7 was chosen."""
    return found.survives.astype(np.float64)


def spread(found: Outcomes) -> NDArray[np.float64]:
    """The scale of the noise."""
    return found.spread


def alone_or_gradients(found: Outcomes) -> NDArray[np.float64]:
    """The gradient; a row that moved alone shows by itself."""
    return gradients(found) + 100.0 * found.survives


def cases() -> list[Case]:
    """Every selection, the parts of a step one by one, then the faults."""
    return [*_selections(), *_parts(), *_faults()]


def _claim(selection: Selection, sigma: float, delta: float, released: str = "the step's gradient") -> Claim:
    return Claim(epsilon_of([(selection.step_event(sigma), 1)], delta), delta, released)


def _selections() -> list[Case]:
    every = FEST({"table": range(ROWS)})
    scored: dict[str, Any] = {"rows": 1, "selection_epsilon": 2.0, "score_cap": 1.0, "always_on_rows": 0}
    map_: dict[str, Any] = {
        "noise_ratio": 1.0,
        "threshold": 1.0,
        "always_on_rows": 0,
        "contribution_norm": 1.0,
    }
    ratio = partial(likelihood_ratio, 1.0, 1.0)
    half = FEST({"table": range(ROWS // 2)})
    turns = [1 if row == READ else 3 for row in range(ROWS)]
    listed: list[tuple[str, Selection, Score]] = [
        ("DP-SGD", DPSGD(), gradients),
        ("DP-SGD, lazy noise", DPSGD(lazy=True), alone_or_gradients),
        ("DP-FEST", every, gradients),
        ("DP-FEST, lazy noise", FEST({"table": range(ROWS)}, lazy=True), alone_or_gradients),
        ("DP-FEST, rows in turns", FEST({"table": range(ROWS)}, update_every={"table": turns}), gradients),
        ("DP-AdaFEST", AdaFEST(**map_), ratio),
        ("DP-AdaFEST+", AdaFEST(**(map_ | {"always_on_rows": 1000}), within=half), ratio),
        (
            "DP-AdaFEST with memory",
            AdaFEST(**map_, **_ONE_STEP),
            bit_and_gradients,
        ),
        ("random selection", RandomSelection(rows=ROWS // 2, always_on_rows=0), gradients),
        ("exponential selection", ExponentialSelection(**scored), bit_and_gradients),
        ("sparse-vector selection", SparseVectorSelection(**scored, threshold=0.5), bit_and_gradients),
    ]
    attack = "the likelihood of row 7 and of the gradient, nobody against one example"
    return [_right(f"{name}, one step", Steps(selection, score), attack) for name, selection, score in listed]


def _right(name: str, steps: Steps, what: str) -> Case:
    released = "the final model" if steps.selection.lazy else "the step's gradient"
    claim = partial(_claim, steps.selection, SIGMA, DELTA, released)
    return Case(name, "step", claim, steps, (0, 1), RUNS, what)


_MAP: dict[str, Any] = {
    "noise_ratio": 0.5,
    "threshold": 0.5,
    "always_on_rows": 0,
    "contribution_norm": 1.0,
}
"""Nearly all of the claim is the map's."""
_ONE_STEP: dict[str, Any] = {"memory_steps": 1, "memory_every": 1}
"""A memory of this step alone, so that the runs are independent: what passes is trained."""
_SELDOM: dict[str, Any] = {**_MAP, **_ONE_STEP, "threshold": 1.0}
"""A row that one example reads passes in half of the steps; one that is remembered without noise always does."""
_ROWS, _DENSE = {"row": 1.0, "dense": 0.0}, {"row": 0.0, "dense": 1.0}


def _parts() -> list[Case]:
    """Each source of noise by itself, where the attack would refute half of it: beside others it hides such a fault."""
    every, lazy = FEST({"table": range(ROWS)}), FEST({"table": range(ROWS)}, lazy=True)
    between, survives = {**_MAP, "threshold": 0.6}, "whether row 7 survives"
    listed: list[tuple[str, Steps, str]] = [
        ("DP-FEST, rows alone", Steps(every, row_gradient, model=_ROWS), "the gradient of row 7"),
        ("DP-FEST, dense layers alone", Steps(every, dense_gradient, model=_DENSE), "the dense gradient"),
        (
            "DP-FEST, lazy noise, pending noise alone",
            Steps(lazy, row_gradient, model=_ROWS),
            "how far row 7 moved, whose noise is pending where nobody reads it",
        ),
        ("DP-AdaFEST, the map alone", Steps(AdaFEST(**between), surviving), survives),
        (
            "DP-AdaFEST with memory, the map alone",
            Steps(AdaFEST(**between, **_ONE_STEP), surviving),
            survives,
        ),
        (
            "DP-AdaFEST with memory, its rows alone",
            Steps(AdaFEST(**_SELDOM), surviving),
            survives,
        ),
    ]
    return [_right(name, steps, what) for name, steps, what in listed]


def _faults() -> list[Case]:
    every = FEST({"table": range(ROWS)})
    gradient = "the gradient in the canary's direction"
    listed: list[tuple[str, Steps, tuple[int, int], int, str]] = [
        (
            "EANA: noise on touched rows only",
            Steps(EANA(), surviving),
            (0, 1),
            200,
            "whether row 7 has a gradient",
        ),
        (
            "lazy noise that is not flushed",
            Steps(FEST({"table": range(ROWS)}, lazy=True), alone_or_gradients, is_flushed=False),
            (0, 1),
            200,
            "whether row 7 alone moved",
        ),
        (
            "tables and dense layers clipped apart",
            Steps(every, gradients, ClippedApart),
            (0, 1),
            2_400,
            gradient,
        ),
        (
            "division by the realised batch size",
            Steps(every, spread, DividedByRealised),
            (1, 2),
            800,
            "the scale of the noise on idle coordinates, one example against two",
        ),
        ("half the noise on rows", Steps(every, row_gradient, QuietRows, model=_ROWS), (0, 1), 800, gradient),
        (
            "half the noise on dense layers",
            Steps(every, dense_gradient, QuietDense, model=_DENSE),
            (0, 1),
            400,
            gradient,
        ),
        *(
            (name, Steps(selection, surviving), (0, 1), 800, "whether row 7 survives")
            for name, selection in (
                ("half the noise on the map", QuietMap(**_MAP)),
                ("half the noise on the map of a memory", QuietMap(**_MAP, **_ONE_STEP)),
                ("a memory of the rows that were read", RememberedReads(**_SELDOM)),
            )
        ),
    ]
    return [_control(name, steps, pair, runs, what) for name, steps, pair, runs, what in listed]


_CONTROL_DELTA = 0.5
"""Of controls that a moderate number of runs must refute: where the claim is small and the fault's epsilon is not."""


def _control(name: str, steps: Steps, pair: tuple[int, int], runs: int, what: str) -> Case:
    """All are broken copies of steps whose event is one Gaussian of ``SIGMA``."""

    def claim() -> Claim:
        epsilon = analytic_gaussian_epsilon(_CONTROL_DELTA, 1 / SIGMA)
        return Claim(epsilon, _CONTROL_DELTA, "the step's gradient")

    return Case(name, "step", claim, steps, pair, runs, what, is_control=True)
