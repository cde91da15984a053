"""The plan of a search: its settings, the noise of its runs and one price for all of it, before anything is spent."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsedp.accounting import analytic_gaussian_sigma, epsilon_of
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import ComposedDpEvent, DpEvent, SelfComposedDpEvent, WorstOfDpEvent
from sparsedp.accounting.renyi import has_renyi, renyi_epsilon
from sparsedp.data import ClickData
from sparsedp.mechanisms import repetition_event
from sparsedp.mechanisms.repetition import Law
from sparsedp.runs.config import RunConfig
from sparsedp.runs.cost import RunCost, cost_on
from sparsedp.runs.data_location import fit_to_data
from sparsedp.runs.score import score_event
from sparsedp.runs.setup import complete
from sparsedp.runs.sources import data_of, split
from sparsedp.runs.text_config import TextConfig
from sparsedp.runs.trainer import check_ledger

_OF_PERIODS = ("period", "train_periods", "frequencies")
FIXED = ("data", "epsilon", "delta", "holdout", "holdout_by", "seed", "ledger", "unit", *_OF_PERIODS)
"""Settings that all runs of a search share."""
_SCORE_SHARE = 0.5
"""The epsilon of a score over that of a run: no example pays for both, and held-out rows are many."""
_RUN_SHARE = 0.5
"""The epsilon of a run over that of the search, about: what settings that are left open are chosen for."""
_CLOSE = 0.98
_MOST_TRIALS = 25


@dataclass(frozen=True)
class SearchPlan:
    """Everything public about a search: its settings, their costs, the law of the number of runs."""

    base: RunConfig
    settings: tuple[dict[str, Any], ...]
    """The points of the grid."""
    configs: tuple[RunConfig, ...]
    """A run for each, at an epsilon that makes the whole search cost that of ``base``."""
    costs: tuple[RunCost, ...]
    score_noise_multiplier: float
    mean: float
    law: Law
    delta: float

    @property
    def event(self) -> DpEvent:
        """What the whole search costs."""
        return repetition_event(
            _run_event(self.costs, self.score_noise_multiplier), mean=self.mean, law=self.law
        )

    @property
    def epsilon(self) -> float:
        """What the whole search costs at its delta."""
        return epsilon_of([(self.event, 1)], self.delta)


def plan_search(
    base: RunConfig, grid: Mapping[str, Sequence[Any]], *, runs: float | None = None, law: Law = "geometric"
) -> SearchPlan:
    """The settings of a search and the noise of its runs, before anything is spent."""
    settings = _points(grid)
    base, _ = fit_to_data(base)
    for problem, is_one in (
        (f"algorithm: {base.algorithm} is not private; sweep it instead", not base.is_private),
        ("period: a search has no periods", base.period is not None),
        ("unit: a search protects examples; train users without one", base.unit != "example"),
        ("task: a search is for click data", isinstance(base, TextConfig)),
    ):
        if is_one:
            raise ValueError(problem)
    given = base.model_dump(exclude_unset=True)
    configs = [RunConfig.parse({**given, **point, "ledger": None}) for point in settings]
    for config in configs:
        if not config.is_private:
            raise ValueError(f"grid: algorithm {config.algorithm} is not private")
    data = data_of(base)
    assert isinstance(data, ClickData)
    configs = [_at_the_epsilon_of_a_run(config, data) for config in configs]
    check_ledger(base)
    training, _ = split(base, data)
    return _calibrated(base, settings, configs, len(training), float(runs or len(settings)), law)


def _at_the_epsilon_of_a_run(config: RunConfig, data: ClickData) -> RunConfig:
    """The config without gaps, chosen for about what a run may spend; one that cannot be trained is refused."""
    assert config.epsilon is not None
    made, _ = complete(config.model_copy(update={"epsilon": _RUN_SHARE * config.epsilon}), data)
    return made


def _points(grid: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], ...]:
    for name, values in grid.items():
        if name in FIXED:
            raise ValueError(f"grid: {name} is the same for all runs of a search")
        if not values:
            raise ValueError(f"grid: {name} has no values")
    points = tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    if len(points) < 2:
        raise ValueError("grid: there is nothing to choose from; give a setting with two values or more")
    return points


def _calibrated(
    base: RunConfig,
    settings: tuple[dict[str, Any], ...],
    configs: Sequence[RunConfig],
    examples: int,
    mean: float,
    law: Law,
) -> SearchPlan:
    """The plan whose runs have the largest epsilon with which the search stays within that of ``base``."""
    assert base.epsilon is not None
    delta, target = base.delta_for(examples), base.epsilon

    def planned(run_epsilon: float) -> SearchPlan:
        scaled = [config.model_copy(update={"epsilon": run_epsilon, "delta": delta}) for config in configs]
        costs = tuple(cost_on(config, examples, delta) for config in scaled)
        noise = analytic_gaussian_sigma(_SCORE_SHARE * run_epsilon, delta)
        return SearchPlan(base, settings, tuple(scaled), costs, noise, mean, law, delta)

    run_epsilon = _RUN_SHARE * target
    for _ in range(_MOST_TRIALS):
        plan = planned(run_epsilon)
        for cost in plan.costs:
            if not all(has_renyi(event) for event, _ in cost.events):
                kind = type(cost.selection).__name__
                raise ValueError(f"algorithm: {kind} cannot be searched: its Renyi divergences are not known")
        spent = renyi_epsilon([(plan.event, 1)], delta)
        if _CLOSE * target <= spent <= target and plan.epsilon <= target:
            return plan
        run_epsilon *= (1 + _CLOSE) / 2 * target / spent
    raise ValueError(f"epsilon of {target:g} is too small for a search of {mean:g} runs at delta {delta:g}")


def _run_event(costs: Sequence[RunCost], score_noise_multiplier: float) -> DpEvent:
    """A run with its score: the settings are drawn without a look at the data, and no example is in both parts."""
    trained = {
        event_key(event): event
        for cost in costs
        for event in [
            ComposedDpEvent(tuple(SelfComposedDpEvent(event, count) for event, count in cost.events))
        ]
    }
    return WorstOfDpEvent((*trained.values(), score_event(score_noise_multiplier)))
