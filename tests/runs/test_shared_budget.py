"""One budget for all periods of a stream that protects users: the composition, from public numbers alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.visits import ROWS_PER_USER, prepare_visits, visits_config

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.users import user_step_event
from sparsedp.audit import AuditResult, audit
from sparsedp.data import ClickData
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.runs import RunConfig
from sparsedp.runs.shared_budget import SharedBudget, shared_budget
from sparsedp.runs.sources import split_periods


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> ClickData:
    return ClickData.open(prepare_visits(tmp_path_factory.mktemp("visits")))


def budget(config: RunConfig, data: ClickData, counts: int = 0) -> SharedBudget:
    found = shared_budget(config, split_periods(config, data)[0], [GaussianDpEvent(2.0)] * counts)
    assert found is not None
    return found


def composed(data: ClickData, sigma: float, sample: str, rows: int) -> list[tuple[DpEvent, int]]:
    """The steps of the days that train, from the users and the rows of each: 15 are drawn a step, for one epoch."""
    events: list[tuple[DpEvent, int]] = []
    for day in range(3):
        sizes = np.unique(data.user[data.time == day], return_counts=True)[1]
        drawn_from = sizes.size if sample == "users" else int(np.minimum(sizes, rows).sum())
        rate = 15 / drawn_from
        step: DpEvent = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
        events.append(
            (step if sample == "users" else user_step_event(sigma, rate, rows), math.ceil(drawn_from / 15))
        )
    return events


@pytest.mark.parametrize("counts", [0, 3])
@pytest.mark.parametrize(
    ("sample", "changes"),
    [("users", {}), ("rows", {}), ("rows", {"rows_per_user": 2}), ("users", {"delta": 1e-5})],
)
def test_all_periods_together_cost_epsilon(
    sample: str, changes: dict[str, Any], counts: int, visits: ClickData
) -> None:
    """The composition computed here is within epsilon, and close to it."""
    config = visits_config(Path("visits"), user_sampling=sample, **changes)
    found = budget(config, visits, counts)
    users = np.unique(visits.user[visits.time < 3]).size
    assert found.delta == (config.delta or 1 / (10 * users))
    expected = composed(visits, found.noise_multiplier, sample, config.rows_per_user or ROWS_PER_USER)
    assert list(found.steps) == expected
    spent = epsilon_of([*expected, *[(GaussianDpEvent(2.0), 1)] * counts], found.delta)
    assert 0.98 * 4.0 < spent <= 4.0


def test_examples_and_runs_without_privacy_share_nothing(visits: ClickData) -> None:
    periods = split_periods(visits_config(Path("visits")), visits)[0]
    assert shared_budget(visits_config(Path("visits"), unit="example"), periods, []) is None
    assert shared_budget(visits_config(Path("visits"), "non-private"), periods, []) is None


STEP, OTHER = (PoissonSampledDpEvent(rate, GaussianDpEvent(2.0)) for rate in (0.25, 0.5))


def test_steps_that_cost_the_same_are_counted_together() -> None:
    """As the ledger does: a period must know which of them are not its own."""
    shared = SharedBudget(4.0, 1e-5, 2.0, ((STEP, 10), (OTHER, 5), (STEP, 10), (STEP, 20)))
    found = [shared.share(period, [11, 5, 9, 0][:period]) for period in range(4)]
    assert [share.steps for share in found] == [10, 5, 10, 20]
    assert [share.cap.planned_steps for share in found] == [10, 5, 20, 40]
    assert [share.charged_earlier for share in found] == [0, 0, 11, 20]
    assert {(share.cap.target_epsilon, share.cap.target_delta) for share in found} == {(4.0, 1e-5)}


def distinguished(found: SharedBudget, claimed: float, delta: float) -> AuditResult:
    """Tell a user with rows in every period, whose gradients all point one way, from nobody.

    The others are known, and their part is taken away: a step releases noise, and the user's clipped gradient where it
    is drawn. The statistic is the sum over all steps of all periods. Errs with probability at most 1e-9.
    """

    def released(user: int, stream: Stream, runs: int) -> Any:
        rng = np.random.default_rng(stream.uint64(1))
        total = np.zeros(runs)
        for event, steps in found.steps:
            assert isinstance(event, PoissonSampledDpEvent)
            drawn = rng.binomial(steps, event.sampling_probability, runs)
            noise = found.noise_multiplier * math.sqrt(steps)
            total += user * drawn + noise * rng.standard_normal(runs)
        return total

    return audit(released, (1, 0), runs=2_000_000, delta=delta, claimed=claimed, stream=NoiseSource(3).noise)


def test_the_price_of_the_costliest_period_is_refuted(visits: ClickData) -> None:
    """What examples of disjoint periods cost is too little for a user: an audit tells more than that, not more than all."""
    config = visits_config(Path("visits"), delta=0.01, expected_batch_size=35, epsilon=2.0)
    found = budget(config, visits)
    together = epsilon_of(found.steps, found.delta)
    costliest = max(epsilon_of([period], found.delta) for period in found.steps)
    assert costliest < 0.7 * together <= 0.7 * 2.0
    assert distinguished(found, costliest, found.delta).refuted
    assert not distinguished(found, together, found.delta).refuted
