"""The planner: every noise and threshold of a training run, and what to expect of it, before data is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from sparsedp.accounting.statement import PrivacyStatement
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS, DEFAULT_FALSE_POSITIVES, DEFAULT_NOISE_RATIO
from sparsedp.core.tables import TableShape
from sparsedp.core.validation import LARGEST_SCALE, check_count, check_finite, check_scale
from sparsedp.planning.budget import RunBudget
from sparsedp.planning.comparison import AgainstDPSGD, DPSGDPlan, FESTPlan, rows_within, widest_rows
from sparsedp.planning.selection_plan import ThresholdedRows
from sparsedp.planning.tables import check_tables
from sparsedp.rows import RowSpace
from sparsedp.selection import AdaFEST, PrivateTopK
from sparsedp.selection.adafest import ContributionMap


class PlannedTable(NamedTuple):
    """A table, and what a step does to it in expectation."""

    table: TableShape
    always_on: bool
    false_positives: float
    touched_bound: float
    """At most so many touched rows survive."""
    row_noise: float
    """The norm of a row's noise over C2/B."""

    def to_dict(self) -> dict[str, Any]:
        """The table's shape and the rest, side by side."""
        fields = self._asdict()
        return {**asdict(fields.pop("table")), **fields}


@dataclass(frozen=True)
class Plan:
    """A training run with DP-AdaFEST, and the same run with DP-FEST and DP-SGD for comparison.

    Guarantee: `statement` holds for each of the three if it runs with true Poisson sampling at
    `sampling_rate`, for at most `steps` steps, with the noise multipliers stated here. AdaFEST releases per
    step the surviving rows (noise `map_noise_multiplier * contribution_norm` on the counts) and the gradient
    (noise `gradient_noise_multiplier * C2`, on each coordinate of a surviving row too): together one Gaussian of
    `noise_multiplier = (map_noise_multiplier^-2 + gradient_noise_multiplier^-2)^-1/2`.

    `false_positives` are the rows that survive by chance in a step that touches no row; a touched row draws a
    bit of its own instead. `count_half` and `count_95` are the examples of a batch that must touch a row for
    it to survive with these probabilities. `largest_truncation` is the fraction of the gradient that may be
    lost before DP-SGD is better by FEST equation (2).

    Gradient sizes count embedding coordinates with noise in one step. `gradient_size` is an upper bound in
    expectation, whatever the data: always-on tables + false positives + what touched rows can add at most.
    """

    statement: PrivacyStatement
    examples: int
    expected_batch_size: int
    epochs: float
    sampling_rate: float
    steps: int
    noise_multiplier: float
    noise_ratio: float
    map_noise_multiplier: float
    gradient_noise_multiplier: float
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
    largest_truncation: float
    dpsgd: DPSGDPlan
    fest: FESTPlan
    tables: tuple[PlannedTable, ...]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        return {
            **asdict(self),
            "statement": self.statement.to_dict(),
            "tables": [table.to_dict() for table in self.tables],
        }


def plan(
    *,
    epsilon: float,
    delta: float | None = None,
    examples: int,
    expected_batch_size: int,
    epochs: float = 1.0,
    tables: Sequence[TableShape],
    gradient_size: float | None = None,
    false_positives: float | None = None,
    threshold: float | None = None,
    noise_ratio: float = DEFAULT_NOISE_RATIO,
    contribution_norm: float | None = None,
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS,
    fest_rows: int | None = None,
    fest_mu: float | None = None,
    dense_parameters: int = 0,
) -> Plan:
    """Plan a run from a privacy budget, the size of the data, the tables and at most one target for the threshold.

    Parameters
    ----------
    epsilon, delta
        The budget; delta defaults to `1 / (10 examples)`.
    examples, expected_batch_size, epochs
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
        DP-FEST in comparison: how many rows it trains (default: as many as fit the same gradient size), and
        the Gaussian-DP parameter of their choice (default 0.05; 0.02 for up to 1e5 examples).
    dense_parameters
        Coordinates outside the tables; they get noise under every method and only enter the bias-variance
        comparison.
    """
    budget = RunBudget.checked(epsilon, delta, examples, expected_batch_size, epochs)
    shapes = check_tables(tables)
    target = _one_target(gradient_size, false_positives, threshold)
    selection = AdaFEST(
        noise_ratio=check_scale("noise_ratio", noise_ratio),
        contribution_norm=contribution_norm and check_scale("contribution_norm", contribution_norm),
        always_on_rows=check_count("always_on_rows", always_on_rows, minimum=0),
    )
    fest_rows = None if fest_rows is None else check_count("fest_rows", fest_rows)
    space = _checked_space(selection, shapes, target, fest_rows)
    dense_parameters = check_count("dense_parameters", dense_parameters, minimum=0)
    mu = budget.top_k_mu(fest_mu)

    noise_multiplier = budget.calibrate()
    rule = _rule_for(target, selection, space, noise_multiplier, budget)
    rows = _thresholded_rows(rule, budget)
    dpsgd = DPSGDPlan(noise_multiplier, rows.dense_size)
    against = AgainstDPSGD(dpsgd, dense_parameters, budget.expected_batch_size, budget.steps)
    fest_rows = fest_rows or rows_within(
        space.selectable, rows.gradient_size(rule.threshold) - rows.always_on_size
    )
    top_k = PrivateTopK({}, fest_rows, mu, selection.contribution_norm, selection.always_on_rows)
    fest = _fest_plan(budget, top_k, rows, space, against)
    return _adafest_plan(budget, selection, rule, rows, against, fest, shapes)


class _Target(NamedTuple):
    """What decides the threshold."""

    name: str
    value: float


def _one_target(
    gradient_size: float | None, false_positives: float | None, threshold: float | None
) -> _Target:
    """The one thing that was asked for; the default false positives if nothing was."""
    targets = {"gradient_size": gradient_size, "false_positives": false_positives, "threshold": threshold}
    requested = [
        _Target(name, check_finite(name, value)) for name, value in targets.items() if value is not None
    ]
    for target in requested:
        if abs(target.value) > LARGEST_SCALE:
            raise ValueError(f"{target.name} must be at most {LARGEST_SCALE:g}, got {target.value:g}")
    if len(requested) > 1:
        names = " and ".join(target.name for target in requested)
        raise ValueError(f"{names} exclude each other: each of them decides the threshold")
    return requested[0] if requested else _Target("false_positives", DEFAULT_FALSE_POSITIVES)


def _checked_space(
    selection: AdaFEST, tables: Sequence[TableShape], target: _Target, fest_rows: int | None
) -> RowSpace:
    """The rows that AdaFEST and FEST select from; refuses to ask for more than there are."""
    space = selection.partition_tables(tables)
    if not space.selectable:
        raise ValueError(
            f"always_on_rows of {selection.always_on_rows} leaves no table to select rows from: AdaFEST would be DP-SGD"
        )
    rows = space.selectable_size
    if target.name == "false_positives" and not 0 < target.value < rows:
        raise ValueError(
            f"false_positives must lie between 0 and the {rows} selectable rows, got {target.value}"
        )
    if fest_rows is not None and fest_rows > rows:
        raise ValueError(f"fest_rows must be at most the {rows} selectable rows, got {fest_rows}")
    return space


def _rule_for(
    target: _Target, selection: AdaFEST, space: RowSpace, noise_multiplier: float, budget: RunBudget
) -> ContributionMap:
    """What a step of AdaFEST does where its threshold meets the target; the gradient is clipped to C2 = 1."""

    def rule_of(chosen: AdaFEST) -> ContributionMap:
        return chosen.rule(
            space,
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            expected_batch_size=float(budget.expected_batch_size),
        )

    if target.name == "false_positives":
        rule = rule_of(replace(selection, false_positives=target.value))
    elif target.name == "threshold":
        rule = rule_of(replace(selection, threshold=target.value))
    else:
        rows = _thresholded_rows(rule_of(selection), budget)
        rule = rule_of(replace(selection, threshold=rows.threshold_for_gradient_size(target.value)))
    if not math.isfinite(rule.threshold):
        raise ValueError(
            f"{target.name} of {target.value:g} puts the threshold out of reach: no row would ever be trained"
        )
    if _thresholded_rows(rule, budget).gradient_size(rule.threshold) == 0:
        raise ValueError(f"threshold of {rule.threshold:g} is out of reach: no row would ever be trained")
    return rule


def _thresholded_rows(rule: ContributionMap, budget: RunBudget) -> ThresholdedRows:
    return ThresholdedRows(
        rule.space.selectable, rule.space.always_on, rule.map_std, budget.expected_batch_size
    )


def _fest_plan(
    budget: RunBudget, top_k: PrivateTopK, rows: ThresholdedRows, space: RowSpace, against: AgainstDPSGD
) -> FESTPlan:
    """DP-FEST at the same budget: a Gaussian on the histogram of all rows, then training on its top k."""
    noise_multiplier = budget.calibrate(*top_k.one_off_events())
    gradient_size = rows.always_on_size + widest_rows(space.selectable, top_k.k)
    return FESTPlan(
        mu=top_k.mu,
        noise_multiplier=noise_multiplier,
        price=noise_multiplier / against.dpsgd.noise_multiplier - 1,
        rows=top_k.k,
        gradient_size=gradient_size,
        reduction=rows.dense_size / gradient_size,
        histogram_std=top_k.std(space),
        largest_truncation=against.largest_truncation(gradient_size, noise_multiplier),
    )


def _adafest_plan(
    budget: RunBudget,
    selection: AdaFEST,
    rule: ContributionMap,
    rows: ThresholdedRows,
    against: AgainstDPSGD,
    fest: FESTPlan,
    shapes: Sequence[TableShape],
) -> Plan:
    """Everything that follows from the rule of a step."""
    tau, space = rule.threshold, rule.space
    chance, size = rows.false_positive_probability(tau), rows.gradient_size(tau)
    false_positive_size = chance * sum(table.size for table in space.selectable)
    # v_i is binary over the rows an example touches, so it is never longer than this.
    weight = min(1.0, rule.contribution_norm / math.sqrt(sum(table.values for table in space.selectable)))
    return Plan(
        statement=budget.statement(),
        examples=budget.examples,
        expected_batch_size=budget.expected_batch_size,
        epochs=budget.epochs,
        sampling_rate=budget.sampling_rate,
        steps=budget.steps,
        noise_multiplier=against.dpsgd.noise_multiplier,
        noise_ratio=selection.noise_ratio,
        map_noise_multiplier=rule.map_noise_multiplier,
        gradient_noise_multiplier=rule.gradient_noise_multiplier,
        contribution_norm=rule.contribution_norm,
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
        largest_truncation=against.largest_truncation(size, rule.gradient_noise_multiplier),
        dpsgd=against.dpsgd,
        fest=fest,
        tables=tuple(_planned_table(table, rule, rows) for table in shapes),
    )


def _planned_table(table: TableShape, rule: ContributionMap, rows: ThresholdedRows) -> PlannedTable:
    selectable = table in rule.space.selectable
    return PlannedTable(
        table=table,
        always_on=not selectable,
        false_positives=rows.false_positives(table, rule.threshold) if selectable else 0.0,
        touched_bound=rows.touched_bound(table, rule.threshold) if selectable else float(table.rows),
        row_noise=rule.gradient_noise_multiplier * math.sqrt(table.dim),
    )
