from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from scipy import stats
from support.schedules import handmade_schedule

from sparsedp.accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    analytic_gaussian_epsilon,
    analytic_gaussian_sigma,
    epsilon_of,
)
from sparsedp.accounting.renyi import renyi_epsilon
from sparsedp.convex.sgd.batch_schedule import (
    BatchSchedule,
    draw_levels,
    filter_schedule,
    level_probabilities,
    pld_schedule,
    repetition_schedule,
    step_events,
)
from sparsedp.randomness import NoiseSource

FALSE_ALARM = 1e-9


@pytest.mark.parametrize("size", [2, 3, 4, 1000, 4096, 10**6])
def test_truncated_geometric_law(size: int) -> None:
    """Definition 6.1: p_k = 2^-k / (2 (1 - 2^-(M+1))), k = 0 .. M, M = floor(log2 n) - 1."""
    top = math.floor(math.log2(size)) - 1
    expected = [2.0**-k / (2 * (1 - 2.0 ** -(top + 1))) for k in range(top + 1)]
    assert level_probabilities(size) == pytest.approx(expected)
    assert level_probabilities(size).sum() == pytest.approx(1.0)
    assert handmade_schedule(size, 1.0, [top]).rate(top) <= 1.0


def test_levels_follow_it_and_a_plain_geometric_is_noticed() -> None:
    levels = draw_levels(200_000, size=16, stream=NoiseSource(1).sampling)
    counts = np.bincount(levels, minlength=4)
    assert stats.chisquare(counts, 200_000 * level_probabilities(16)).pvalue > FALSE_ALARM
    untruncated = np.array([0.5, 0.25, 0.125, 0.125])
    assert stats.chisquare(counts, 200_000 * untruncated).pvalue < FALSE_ALARM


def test_a_step_over_everybody_costs_one_gaussian() -> None:
    """Level M of a power of two samples at rate 1: kappa/sqrt(2) for B and a half, kappa for the singleton."""
    size, kappa, delta = 256, 4.0, 1e-5
    (batch, one), (single, other) = step_events(np.array([7]), size=size, noise=kappa)
    assert (one, other) == (1, 1)
    assert batch.sampling_probability == 1.0
    assert batch.event.noise_multiplier == pytest.approx(kappa / math.sqrt(2))
    assert single.sampling_probability == 1 / size
    assert single.event.noise_multiplier == kappa
    whole = epsilon_of([(batch, 1)], delta)
    assert whole == pytest.approx(analytic_gaussian_epsilon(delta, math.sqrt(2) / kappa), rel=1e-2)


def test_schedule_fills_its_budget() -> None:
    size, epsilon, delta = 1024, 1.0, 1e-5
    schedule = pld_schedule(size=size, epsilon=epsilon, delta=delta, stream=NoiseSource(2).sampling)
    assert schedule.adjacency == "add-or-remove-one"
    assert epsilon_of(step_events(schedule.levels, size=size, noise=schedule.noise), delta) <= epsilon
    # The levels go on beyond the cut: one part in fifty more does not fit.
    levels = draw_levels(100_000, size=size, stream=NoiseSource(2).sampling)
    assert np.array_equal(levels[: schedule.steps], schedule.levels)
    more = levels[: int(1.02 * schedule.steps) + 2]
    assert epsilon_of(step_events(more, size=size, noise=schedule.noise), delta) > epsilon


def test_a_thousand_steps_where_the_filter_has_half() -> None:
    """n = 4096, epsilon = 1, kappa = 8: 1000 steps cost well below 1, at a fiftieth of the filter's noise."""
    size, delta = 4096, 1 / 40960
    costs = []
    for seed in range(5):
        levels = draw_levels(1000, size=size, stream=NoiseSource(seed).sampling)
        costs.append(epsilon_of(step_events(levels, size=size, noise=8.0), delta))
    assert max(costs) < 1.0
    assert np.median(costs) < 0.7
    filtered = [
        filter_schedule(size=size, epsilon=1.0, delta=delta, stream=NoiseSource(i).sampling)
        for i in range(99)
    ]
    assert 700 < np.median([each.steps for each in filtered]) < 1200
    assert filtered[0].noise > 20 * 8.0
    # At the paper's half budget, spent one step late, the number is the paper's.
    halves = [
        _printed_steps(size, delta, draw_levels(5000, size=size, stream=NoiseSource(i).sampling))
        for i in range(99)
    ]
    assert 400 < np.median(halves) < 560


def _printed_steps(size: int, delta: float, levels: np.ndarray) -> int:
    shares = (3.0 * 2.0 ** (levels + 1) + 1.0) / (16.0 * size)
    squares = np.cumsum(shares**2)
    go_on = (np.sqrt(2 * math.log(4 / delta) * squares) + squares / 2 <= 0.5) & (np.cumsum(shares) <= 0.25)
    return int(np.argmin(go_on))


def test_filter_stops_before_the_step_that_passes() -> None:
    epsilon, delta, size = 0.8, 1e-6, 512
    for seed in range(20):
        schedule = filter_schedule(size=size, epsilon=epsilon, delta=delta, stream=NoiseSource(seed).sampling)
        levels = draw_levels(100_000, size=size, stream=NoiseSource(seed).sampling)
        for steps, inside in ((schedule.steps, True), (schedule.steps + 1, False)):
            shares = (3 * 2.0 ** (levels[:steps] + 1) + 1) / (16 * size)
            squares = ((epsilon * shares) ** 2).sum()
            spent = math.sqrt(2 * math.log(2 / delta) * squares) + squares / 2
            assert bool(spent <= epsilon and shares.sum() <= 0.5) is inside
    assert schedule.adjacency == "replace-one"
    assert schedule.noise == pytest.approx(2 * analytic_gaussian_sigma(epsilon / 32, delta / 16))


def test_the_printed_sum_over_the_last_level_overspends() -> None:
    """Positive control: with N_t inside the sums, as printed, a run of small batches forgets the large ones."""
    size, epsilon, delta = 512, 1.0, 1e-6
    levels = np.array([8] * 40 + [0] * 40)
    share = (3 * 2.0 ** (levels + 1) + 1) / (16 * size)
    true_squares = np.cumsum((epsilon * share) ** 2)
    printed_squares = np.arange(1, 81) * (epsilon * share) ** 2
    spent = [np.sqrt(2 * math.log(2 / delta) * each) + each / 2 for each in (true_squares, printed_squares)]
    assert spent[1][-1] < epsilon < spent[0][-1]


def test_per_step_price_of_the_filter_covers_the_mechanisms() -> None:
    """Sampled at rate q, three (x, d) releases cost at most ln(1 + q (e^3x - 1)) <= 6 q x, as Lemma 6.3 uses."""
    for epsilon in (0.1, 1.0, 8.0):
        for rate in (1e-3, 0.1, 1.0):
            assert math.log1p(rate * math.expm1(3 * epsilon / 32)) <= rate * 3 * epsilon / 16


def _made() -> BatchSchedule:
    return filter_schedule(size=512, epsilon=1.0, delta=1e-6, stream=NoiseSource(0).sampling)


def test_a_part_and_another_order_cost_no_more() -> None:
    schedule = _made()
    assert schedule.shortened(3).levels.tolist() == schedule.levels[:3].tolist()
    shuffled = schedule.shuffled(NoiseSource(1).sampling)
    assert sorted(shuffled.levels) == sorted(schedule.levels)
    assert not np.array_equal(shuffled.levels, schedule.levels)
    for other in (
        schedule.shortened(3),
        shuffled,
        copy.deepcopy(schedule),
        pickle.loads(pickle.dumps(schedule)),
    ):
        assert (other.size, other.noise, other.adjacency) == (
            schedule.size,
            schedule.noise,
            schedule.adjacency,
        )
        assert (other.epsilon, other.delta) == (schedule.epsilon, schedule.delta)
    with pytest.raises(ValueError, match="steps must"):
        schedule.shortened(0)


def test_no_schedule_is_made_or_changed_by_hand() -> None:
    """Such a schedule would state an epsilon that its steps do not cost: a thousand dear ones, stated as 1."""
    dear = np.full(1000, 7)
    with pytest.raises(TypeError, match="must come from pld_schedule or filter_schedule"):
        BatchSchedule(512, 0.1, dear, 1.0, 1e-6, "replace-one")
    with pytest.raises(TypeError, match="must come from"):
        BatchSchedule(size=512, noise=0.1, levels=dear, epsilon=1.0, delta=1e-6, adjacency="replace-one")
    schedule = _made()
    for change in ({"levels": dear}, {"noise": 0.1}, {"epsilon": 0.1}):
        with pytest.raises(TypeError, match="must come from"):
            replace(schedule, **change)
        with pytest.raises(FrozenInstanceError):
            setattr(schedule, *next(iter(change.items())))
    with pytest.raises(ValueError, match="read-only"):
        schedule.levels[:] = 7


def test_a_repeated_run_spends_what_it_states() -> None:
    """The events of its own steps and score, repeated and priced anew: within epsilon, and close to it."""
    terms = {"epsilon": 1.0, "delta": 1e-5, "rho": 0.01, "score_multiplier": 20.0, "mean": 6.0}
    schedule = repetition_schedule(size=512, stream=NoiseSource(2).sampling, **terms)
    events = step_events(schedule.levels, size=512, noise=schedule.noise)
    run = [SelfComposedDpEvent(event, count) for event, count in events]
    repeated = RepeatAndSelectDpEvent(ComposedDpEvent([*run, GaussianDpEvent(20.0)]), 6.0, math.inf)
    assert 0.9 < renyi_epsilon([(repeated, 1)], 1e-5) <= 1.0
    assert (schedule.epsilon, schedule.delta, schedule.noise) == (1.0, 1e-5, 20.0)


def test_bad_input() -> None:
    stream = NoiseSource(0).sampling
    with pytest.raises(ValueError, match="size must"):
        pld_schedule(size=1, epsilon=1.0, delta=1e-6, stream=stream)
    with pytest.raises(ValueError, match="epsilon must"):
        pld_schedule(size=64, epsilon=-1.0, delta=1e-6, stream=stream)
    with pytest.raises(ValueError, match="delta must"):
        pld_schedule(size=64, epsilon=1.0, delta=0.0, stream=stream)
    with pytest.raises(ValueError, match="noise must"):
        pld_schedule(size=64, epsilon=1.0, delta=1e-6, noise=math.nan, stream=stream)
    with pytest.raises(ValueError, match="noise must be larger"):
        pld_schedule(size=64, epsilon=0.01, delta=1e-6, noise=0.5, stream=stream)
    with pytest.raises(ValueError, match="epsilon must be at most 8"):
        filter_schedule(size=64, epsilon=9.0, delta=1e-6, stream=stream)
