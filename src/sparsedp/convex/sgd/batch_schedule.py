"""The batch size of every step of bias-reduced SGD, and the cost of the whole sequence.

The sizes are powers of two with truncated geometric law and look at no data. So the sequence is drawn
before the first gradient and cut where the budget ends: by one privacy loss distribution over all steps
(`pld_schedule`, and `repetition_schedule` for a run that is repeated), or by the fully adaptive filter of
the paper (`filter_schedule`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting import (
    ComposedDpEvent,
    DpEvent,
    Events,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    analytic_gaussian_sigma,
    epsilon_of,
)
from sparsedp.accounting.filters import AdaptiveFilter
from sparsedp.accounting.renyi import renyi_epsilon
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE
from sparsedp.core.arrays import F64, I64
from sparsedp.core.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.mechanisms import gaussian_event
from sparsedp.randomness import Stream

_SEARCH_PRECISION = 0.01
"""The cut is found to one part in a hundred, always on the side of fewer steps."""


@dataclass(frozen=True, init=False)
class BatchSchedule:
    """Levels N_t of the steps to come: step t draws batches at rate `2^(N_t + 1) / size`.

    `noise` is kappa: a mean over an expected m examples of norm L gets noise of standard deviation `kappa L
    / m`. The whole schedule is (`epsilon`, `delta`)-DP under `adjacency`, for gradients clipped to L.
    `size` is a public constant, the number of examples that the rates and divisors are made for.

    A schedule is made by `pld_schedule`, `filter_schedule` or `repetition_schedule`, which price it, and by
    `shortened` and `shuffled`, which cost no more. It cannot be made or changed by hand, so the numbers that
    it states are those of the steps that it holds.
    """

    size: int
    noise: float
    levels: I64
    epsilon: float
    delta: float
    adjacency: str

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "BatchSchedule must come from pld_schedule or filter_schedule, which find out what its steps cost"
        )

    @property
    def steps(self) -> int:
        """How many steps fit into the budget."""
        return int(self.levels.size)

    def probability(self, level: int) -> float:
        """p_k, by which the estimator divides."""
        return float(level_probabilities(self.size)[level])

    def rate(self, level: int) -> float:
        """q_k, the rate of the batch of this level."""
        return float(2.0 ** (level + 1) / self.size)

    def shortened(self, steps: int) -> BatchSchedule:
        """The first `steps`; the whole budget is still stated."""
        return self._with(self.levels[: check_count("steps", steps)])

    def shuffled(self, stream: Stream) -> BatchSchedule:
        """The same steps in a random order; their cost does not depend on it."""
        return self._with(self.levels[stream.permutation(self.steps)])

    def _with(self, levels: I64) -> BatchSchedule:
        return _priced(self.size, self.noise, levels, self.epsilon, self.delta, self.adjacency)


def _priced(
    size: int, noise: float, levels: I64, epsilon: float, delta: float, adjacency: str
) -> BatchSchedule:
    """A schedule whose steps are known to stay within (epsilon, delta)."""
    level_array = np.array(levels, dtype=np.int64)
    level_array.setflags(write=False)
    schedule = object.__new__(BatchSchedule)
    fields = {
        "size": size,
        "noise": check_positive("noise", noise),
        "levels": level_array,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
    }
    for name, value in fields.items():
        object.__setattr__(schedule, name, value)
    return schedule


def level_probabilities(size: int) -> F64:
    """The truncated geometric law TGeom(M) of Definition 6.1, with M = floor(log2 size) - 1."""
    size = check_count("size", size, minimum=2)
    weights = 0.5 ** np.arange(size.bit_length() - 1)
    return np.asarray(weights / weights.sum())


def draw_levels(steps: int, *, size: int, stream: Stream) -> I64:
    """`steps` independent draws of TGeom(M)."""
    edges = np.cumsum(level_probabilities(size))
    levels = np.searchsorted(edges, stream.uniform(steps), side="right")
    return np.minimum(levels, edges.size - 1).astype(np.int64)


def step_events(levels: I64, *, size: int, noise: float) -> Events:
    """The events of these steps, add-or-remove-one.

    Proof: an example is in the batch B with probability q_k and then in exactly one half, O or E. Given
    which, it moves the mean over B by `L/2^(k+1)` against noise `kappa L/2^(k+1)` and the mean over its
    half by `L/2^k` against `kappa L/2^k`: one Gaussian of multiplier kappa / sqrt(2). Which half is a fair
    coin that no other part depends on, and the hockey-stick divergence is jointly convex, so the mixture
    costs no more. The singleton batch is drawn on its own, at rate 1/n: `Poisson(1/n, Gaussian(kappa))`.
    """
    counts = np.bincount(levels, minlength=1)
    events = [
        (
            PoissonSampledDpEvent(
                2.0 ** (level + 1) / size, gaussian_event(std=noise, sensitivity=math.sqrt(2.0))
            ),
            int(count),
        )
        for level, count in enumerate(counts)
        if count
    ]
    return [
        *events,
        (PoissonSampledDpEvent(1.0 / size, gaussian_event(std=noise, sensitivity=1.0)), int(levels.size)),
    ]


def default_noise(epsilon: float, delta: float) -> float:
    """A kappa at which one step over all the data spends a quarter of the (zero-concentrated) budget."""
    return 2.0 * math.sqrt(2.0) * analytic_gaussian_sigma(epsilon, delta)


def pld_schedule(
    *,
    size: int,
    epsilon: float,
    delta: float,
    stream: Stream,
    noise: float | None = None,
    max_steps: int = 100_000,
) -> BatchSchedule:
    """As many steps as one privacy loss distribution over all of them allows, at most `max_steps`.

    Guarantee: the schedule's steps together are (epsilon, delta)-DP, add-or-remove-one, unit: example, for
    every intermediate iterate. Proof: `step_events`; the levels and the cut depend on no data.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    return _schedule_within(
        lambda events: epsilon_of(events, delta),
        size=size,
        epsilon=epsilon,
        delta=delta,
        noise=default_noise(epsilon, delta) if noise is None else noise,
        guess=analytic_gaussian_sigma(epsilon, delta) ** -2,
        stream=stream,
        max_steps=max_steps,
    )


def repetition_schedule(
    *,
    size: int,
    epsilon: float,
    delta: float,
    rho: float,
    score_multiplier: float,
    mean: float,
    stream: Stream,
    max_steps: int = 100_000,
) -> BatchSchedule:
    """The steps of a run that is repeated a Poisson(`mean`) number of times, the best one released.

    Guarantee: all runs, each with a score under Gaussian noise of `score_multiplier`, and the choice of the
    best are together (epsilon, delta)-DP, add-or-remove-one (Papernot and Steinke 2022, theorem 6). A single
    run costs less than that. `rho` is about what the steps of one run may spend in zCDP; it sets their noise.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    score = gaussian_event(std=check_positive("score_multiplier", score_multiplier), sensitivity=1.0)
    rho = check_positive("rho", rho)

    def cost(events: Events) -> float:
        steps: list[DpEvent] = [SelfComposedDpEvent(event, count) for event, count in events]
        repeated = RepeatAndSelectDpEvent(ComposedDpEvent([*steps, score]), mean, math.inf)
        return renyi_epsilon([(repeated, 1)], delta)

    return _schedule_within(
        cost,
        size=size,
        epsilon=epsilon,
        delta=delta,
        noise=2.0 / math.sqrt(rho),
        guess=2.0 * rho,
        stream=stream,
        max_steps=max_steps,
    )


def _schedule_within(
    cost: Callable[[Events], float],
    *,
    size: int,
    epsilon: float,
    delta: float,
    noise: float,
    guess: float,
    stream: Stream,
    max_steps: int,
) -> BatchSchedule:
    """The most steps with `cost(events of the steps)` within `epsilon`.

    `guess` starts the search: about which squared mean of one Gaussian (mu^2) the steps may add up to.
    """
    size, max_steps = check_count("size", size, minimum=2), check_count("max_steps", max_steps)
    noise = check_positive("noise", noise)
    levels = draw_levels(max_steps, size=size, stream=stream)

    def fits(steps: int) -> bool:
        return cost(step_events(levels[:steps], size=size, noise=noise)) <= epsilon

    likely = np.searchsorted(_squared_means(levels, size, noise), guess)
    steps = _largest(fits, max(1, int(likely)), max_steps)
    if steps == 0:
        raise ValueError(
            f"noise must be larger: with kappa = {noise:.4g} not one step fits into epsilon = {epsilon:.4g}"
        )
    return _priced(size, noise, levels[:steps], epsilon, delta, ADD_OR_REMOVE_ONE)


def filter_schedule(
    *, size: int, epsilon: float, delta: float, stream: Stream, max_steps: int = 100_000
) -> BatchSchedule:
    """The steps that the paper's filter admits at the paper's noise (Algorithm 6, Theorem A.4).

    Every release of a step is (epsilon/32, delta/16)-DP before sampling, so step t costs `eps_t = (3
    2^(N_t+1) + 1) epsilon / (16 n)` and `delta_t` likewise; it is taken while `sqrt(2 ln(2/delta) sum
    eps_s^2) + sum eps_s^2 / 2 <= epsilon` and `sum delta_s <= delta/2`, sums over its own N_s (the paper
    prints N_t) and *including* the current step (the paper stops one step late, at half the budget).

    Guarantee: (epsilon, delta)-DP, replace-one, unit: example. Proof: the noise covers a move of 2 L / m,
    hence both replacing and removing an example; for Poisson sampling at rate q, `(ln(1 + q (e^x - 1)), q
    delta)` then holds for replacing by advanced joint convexity, and is at most 2 q x for x <= 5/4;
    Whitehouse et al. 2023, theorem 1.
    """
    size, max_steps = check_count("size", size, minimum=2), check_count("max_steps", max_steps)
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if epsilon > 8.0:
        raise ValueError(f"epsilon must be at most 8 for the paper's amplification bound, got {epsilon}")
    levels = draw_levels(max_steps, size=size, stream=stream)
    shares = (3.0 * 2.0 ** (levels + 1) + 1.0) / (16.0 * size)
    budget, steps = AdaptiveFilter(epsilon, delta), 0
    while steps < max_steps and budget.admits(cost := (epsilon * shares[steps], delta * shares[steps])):
        budget.spend(cost)
        steps += 1
    noise = 2.0 * analytic_gaussian_sigma(epsilon / 32.0, delta / 16.0)
    return _priced(size, noise, levels[:steps], epsilon, delta, REPLACE_ONE)


def _squared_means(levels: I64, size: int, noise: float) -> F64:
    """What the steps add up to in the limit of many: each contributes q^2 (e^(1/sigma^2) - 1) to mu^2."""
    rates = 2.0 ** (levels + 1) / size
    return np.cumsum(rates**2 * math.expm1(2.0 / noise**2) + math.expm1(1.0 / noise**2) / size**2)


def _largest(fits: Callable[[int], bool], guess: int, limit: int) -> int:
    """Nearly the largest number up to `limit` that fits, searched outwards from a guess."""
    low, high = 0, limit + 1
    probe, stride = min(guess, limit), max(1, guess // 16)
    while high - low > max(1, int(_SEARCH_PRECISION * low)):
        if fits(probe):
            low, ahead = probe, probe + stride
            probe = ahead if ahead < high else (low + high) // 2
        else:
            high, behind = probe, probe - stride
            probe = behind if behind > low else (low + high) // 2
        stride *= 2
    return low
