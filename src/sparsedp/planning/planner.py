"""The planner: every noise and threshold of a training run, and what to expect of it, before data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_epsilon
from sparsedp.accounting.calibration import calibrate
from sparsedp.accounting.events import DpEvent, GaussianDpEvent
from sparsedp.accounting.pld.pairs import LARGEST_SHIFT
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.tables import TableShape
from sparsedp.core.validation import (
    LARGEST_SCALE,
    MOST_RELEASES,
    check_count,
    check_delta,
    check_epsilon,
    check_finite,
    check_positive,
    check_scale,
)
from sparsedp.planning.comparison import (
    DPSGDPlan,
    FESTPlan,
    largest_truncation,
    rows_within,
    widest_rows,
)
from sparsedp.planning.selection_plan import ThresholdedRows
from sparsedp.planning.tables import check_tables
from sparsedp.rows import RowSpace
from sparsedp.selection import AdaFEST
from sparsedp.selection.adafest import DEFAULT_FALSE_POSITIVES, ContributionMap


@dataclass(frozen=True)
class TablePlan:
    """What a step does to one table, in expectation.

    `touched_bound` bounds the touched rows that survive; `row_noise` is the norm of a row's noise over C2/B.
    """

    name: str
    rows: int
    dim: int
    values: int
    always_on: bool
    false_positives: float
    touched_bound: float
    row_noise: float


@dataclass(frozen=True)
class Plan:
    """A training run with DP-AdaFEST, and the same run with DP-FEST and DP-SGD for comparison.

    Guarantee: `statement` holds for each of the three if it runs with true Poisson sampling at
    `sampling_rate`, for at most `steps` steps, with the noise multipliers given here. AdaFEST releases per
    step the surviving rows (noise `sigma1 * contribution_norm` on the counts) and the gradient (noise `sigma2
    * C2`): one Gaussian of multiplier `sigma_eff = (sigma1^-2 + sigma2^-2)^-1/2`.

    `false_positives` are the rows that survive by chance in a step that touches no row; a touched row draws a
    bit of its own instead. `count_half` and `count_95` are the examples of a batch that must touch a row for
    it to survive with these probabilities. `row_noise_std` is the noise on each coordinate of a surviving
    row, over C2/B. `largest_truncation` is the fraction of the gradient that may be lost before DP-SGD is
    better by FEST equation (2).

    Gradient sizes count embedding coordinates with noise in one step. `gradient_size` is an upper bound in
    expectation, whatever the data: always-on tables + false positives + what touched rows can add at most.
    """

    statement: PrivacyStatement
    examples: int
    batch: int
    epochs: float
    sampling_rate: float
    steps: int
    sigma_eff: float
    noise_ratio: float
    sigma1: float
    sigma2: float
    contribution_norm: float
    threshold: float
    false_positive_probability: float
    false_positives: float
    always_on_size: int
    false_positive_size: float
    touched_size_bound: float
    gradient_size: float
    reduction: float
    count_half: float
    count_95: float
    row_noise_std: float
    largest_truncation: float
    dpsgd: DPSGDPlan
    fest: FESTPlan
    tables: tuple[TablePlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        return {
            **asdict(self),
            "statement": self.statement.to_dict(),
            "tables": [asdict(t) for t in self.tables],
        }


def plan(
    *,
    epsilon: float,
    delta: float | None = None,
    examples: int,
    batch: int,
    epochs: float = 1.0,
    tables: Sequence[TableShape],
    gradient_size: float | None = None,
    false_positives: float | None = None,
    threshold: float | None = None,
    noise_ratio: float = 5.0,
    contribution_norm: float | None = None,
    always_on_rows: int = 1000,
    fest_rows: int | None = None,
    fest_mu: float | None = None,
    dense_parameters: int = 0,
) -> Plan:
    """Plan a run from a privacy budget, the size of the data, the tables and one wish about the gradient.

    Parameters
    ----------
    epsilon, delta
        The budget; delta defaults to `1 / (10 examples)`.
    examples, batch, epochs
        Their number in the data set, the expected number in a Poisson batch, and how often the data is gone
        through.
    tables
        Shapes of the embedding tables and how many rows of each an example reads at most.
    gradient_size, false_positives, threshold
        At most one: the expected embedding coordinates with noise in a step (not to be exceeded whatever the
        data), the expected number of untouched rows that survive by chance (default 50), or tau itself.
    noise_ratio, contribution_norm
        sigma1 / sigma2, and C1, as in `AdaFEST`.
    always_on_rows
        Tables of at most so many rows are not selected from: all their rows get noise in every step.
    fest_rows, fest_mu
        DP-FEST in comparison: how many rows it keeps (default: as many as fit the same gradient size), and
        the Gaussian-DP parameter of their choice (default 0.05; 0.02 for up to 1e5 examples).
    dense_parameters
        Coordinates outside the tables; they get noise under every method and only enter the bias-variance
        comparison.
    """
    run = _checked_run(epsilon, delta, examples, batch, epochs)
    specs = check_tables(tables)
    wish, value = _one_wish(gradient_size, false_positives, threshold)
    selection = AdaFEST(
        noise_ratio=check_scale("noise_ratio", noise_ratio),
        contribution_norm=contribution_norm and check_scale("contribution_norm", contribution_norm),
        always_on_rows=check_count("always_on_rows", always_on_rows, minimum=0),
    )
    space = selection.partition_tables(specs)
    if not space.selectable:
        raise ValueError(
            f"always_on_rows of {always_on_rows} leaves no table to select rows from: AdaFEST would be DP-SGD"
        )
    dense_parameters = check_count("dense_parameters", dense_parameters, minimum=0)
    mu = _fest_mu(run, fest_mu)
    kept = None if fest_rows is None else check_count("fest_rows", fest_rows)

    sigma_eff = run.calibrate()
    rule = _step_rule(selection, space, sigma_eff, run)
    rows = ThresholdedRows(space.selectable, space.always_on, rule.map_std, run.batch)
    if wish == "false_positives" and not 0 < value < rows.rows:
        raise ValueError(
            f"false_positives must lie between 0 and the {rows.rows} selectable rows, got {value}"
        )
    if wish == "false_positives":
        selection = replace(selection, false_positives=value)
    else:
        tau = value if wish == "threshold" else rows.threshold_for_gradient_size(value)
        selection = replace(selection, threshold=tau)
    rule = _step_rule(selection, space, sigma_eff, run)
    tau, norm, sigma2 = rule.threshold, rule.contribution_norm, rule.gradient_noise_multiplier
    if not math.isfinite(tau):
        raise ValueError(f"{wish} of {value:g} puts the threshold out of reach: no row would ever be trained")
    size = rows.gradient_size(tau)
    if size == 0:
        raise ValueError(f"threshold of {tau:g} is out of reach: no row would ever be trained")
    chance = rows.false_positive_probability(tau)
    false_positive_size = chance * sum(table.size for table in space.selectable)
    dense_noise = _noise_norm(rows.dense_size + dense_parameters, sigma_eff, run)
    # v_i is binary over the rows an example touches, so it is never longer than this.
    weight = min(1.0, norm / math.sqrt(sum(table.values for table in space.selectable)))

    def cut(coordinates: float, sigma: float) -> float:
        noise = _noise_norm(coordinates + dense_parameters, sigma, run)
        return largest_truncation(noise, dense_noise, run.steps)

    return Plan(
        statement=run.statement(),
        examples=run.examples,
        batch=run.batch,
        epochs=run.epochs,
        sampling_rate=run.sampling_rate,
        steps=run.steps,
        sigma_eff=sigma_eff,
        noise_ratio=noise_ratio,
        sigma1=rule.map_noise_multiplier,
        sigma2=sigma2,
        contribution_norm=norm,
        threshold=tau,
        false_positive_probability=chance,
        false_positives=chance * rows.rows,
        always_on_size=rows.always_on_size,
        false_positive_size=false_positive_size,
        touched_size_bound=max(0.0, size - rows.always_on_size - false_positive_size),
        gradient_size=size,
        reduction=rows.dense_size / size,
        count_half=rows.count_for_survival(tau, 0.5, weight),
        count_95=rows.count_for_survival(tau, 0.95, weight),
        row_noise_std=sigma2,
        largest_truncation=cut(size, sigma2),
        dpsgd=DPSGDPlan(sigma_eff, rows.dense_size),
        fest=_fest(run, rows, mu, kept, norm, sigma_eff, size, cut),
        tables=tuple(_table_plan(table, table in space.selectable, rows, tau, sigma2) for table in specs),
    )


@dataclass(frozen=True)
class _Run:
    """The part of a plan that does not depend on the method."""

    epsilon: float
    delta: float
    examples: int
    batch: int
    epochs: float

    @property
    def sampling_rate(self) -> float:
        return self.batch / self.examples

    @property
    def steps(self) -> int:
        return math.ceil(self.epochs * math.ceil(self.examples / self.batch))

    def calibrate(self, *extra_events: DpEvent) -> float:
        return calibrate(
            target_epsilon=self.epsilon,
            target_delta=self.delta,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            extra_events=extra_events,
        )

    def statement(self) -> PrivacyStatement:
        return PrivacyStatement(
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=ADD_OR_REMOVE_ONE,
            unit="example",
            released=f"the model after each of {self.steps} steps, and which rows each step changed",
            notes=("planned for Poisson batches; true once a run has kept to the plan",),
        )


def _checked_run(epsilon: float, delta: float | None, examples: int, batch: int, epochs: float) -> _Run:
    epsilon = check_epsilon(epsilon)
    examples, batch = check_count("examples", examples), check_count("batch", batch)
    if batch > examples:
        raise ValueError(
            f"batch must be at most examples: {batch} of {examples} would be a sampling rate above 1"
        )
    delta = check_delta(1 / (10 * examples) if delta is None else delta)
    epochs = check_positive("epochs", epochs)
    if epochs * (examples / batch) > MOST_RELEASES:
        raise ValueError(f"epochs of {epochs:g} are too many: more than {MOST_RELEASES:g} steps")
    return _Run(epsilon, delta, examples, batch, epochs)


def _fest_mu(run: _Run, wanted: float | None) -> float:
    """The Gaussian-DP parameter of FEST's choice; it must leave some of the budget for training."""
    mu = check_scale("fest_mu", (0.05 if run.examples > 100_000 else 0.02) if wanted is None else wanted)
    cost = analytic_gaussian_epsilon(run.delta, min(mu, LARGEST_SHIFT))
    if wanted is not None and cost >= run.epsilon:
        raise ValueError(
            f"fest_mu of {mu:g} leaves nothing for training: it costs {cost:.4g} of epsilon {run.epsilon:g}"
        )
    return mu


def _one_wish(
    gradient_size: float | None, false_positives: float | None, threshold: float | None
) -> tuple[str, float]:
    """The one thing that was asked for, by name; 50 false positives if nothing was."""
    wishes = {"gradient_size": gradient_size, "false_positives": false_positives, "threshold": threshold}
    given = {name: check_finite(name, value) for name, value in wishes.items() if value is not None}
    for name, value in given.items():
        if abs(value) > LARGEST_SCALE:
            raise ValueError(f"{name} must be at most {LARGEST_SCALE:g}, got {value:g}")
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other: each of them decides the threshold")
    return next(iter(given.items()), ("false_positives", DEFAULT_FALSE_POSITIVES))


def _step_rule(selection: AdaFEST, space: RowSpace, sigma_eff: float, run: _Run) -> ContributionMap:
    """What a step of this selection does; the gradient is clipped to C2 = 1."""
    return selection.rule(
        space, noise_multiplier=sigma_eff, max_grad_norm=1.0, expected_batch_size=float(run.batch)
    )


def _noise_norm(coordinates: float, sigma: float, run: _Run) -> float:
    """The expected norm of the noise in the mean gradient, over C2."""
    return math.sqrt(coordinates) * sigma / run.batch


def _fest(
    run: _Run,
    rows: ThresholdedRows,
    mu: float,
    kept: int | None,
    norm: float,
    sigma_eff: float,
    size: float,
    cut: Callable[[float, float], float],
) -> FESTPlan:
    """DP-FEST at the same budget: a Gaussian on the histogram of all rows, then training on `kept` rows."""
    if kept is None:
        kept = rows_within(rows.selectable, size - rows.always_on_size)
    if kept > rows.rows:
        raise ValueError(f"fest_rows must be at most the {rows.rows} selectable rows, got {kept}")
    sigma = run.calibrate(GaussianDpEvent(1 / mu))
    coordinates = rows.always_on_size + widest_rows(rows.selectable, kept)
    return FESTPlan(
        mu=mu,
        sigma=sigma,
        price=sigma / sigma_eff - 1,
        rows=kept,
        gradient_size=coordinates,
        reduction=rows.dense_size / coordinates,
        histogram_std=norm / mu,
        largest_truncation=cut(coordinates, sigma),
    )


def _table_plan(
    table: TableShape, selectable: bool, rows: ThresholdedRows, tau: float, sigma2: float
) -> TablePlan:
    return TablePlan(
        name=table.name,
        rows=table.rows,
        dim=table.dim,
        values=table.values,
        always_on=not selectable,
        false_positives=table.rows * rows.false_positive_probability(tau) if selectable else 0.0,
        touched_bound=rows.touched_bound(table, tau) if selectable else float(table.rows),
        row_noise=sigma2 * math.sqrt(table.dim),
    )
