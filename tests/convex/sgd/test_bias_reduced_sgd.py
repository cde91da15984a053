from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import sparse
from support.losses import FixedGradients
from support.schedules import handmade_schedule
from support.spies import spy

from sparsedp.accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    analytic_gaussian_epsilon,
    epsilon_of,
)
from sparsedp.audit.distinguishing import audit
from sparsedp.convex.erm.losses import LogisticLoss
from sparsedp.convex.sgd import bias_reduced_sgd
from sparsedp.convex.sgd.batch_schedule import (
    BatchSchedule,
    draw_levels,
    filter_schedule,
    level_probabilities,
    pld_schedule,
)
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD, Minimised
from sparsedp.convex.sgd.gradient_sums import SAFE
from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.core.counts import SparseCounts
from sparsedp.randomness import NoiseSource, Stream


def _schedule(levels: list[int], size: int, noise: float) -> BatchSchedule:
    return handmade_schedule(size, noise, levels)


def _means(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SparseCounts, float, float]]:
    """What goes into each projection mechanism, with noise and radius, in the order of Algorithm 5."""
    seen: list[tuple[SparseCounts, float, float]] = []

    def record(vector: SparseCounts, *, std: float, radius: float, stream: Stream) -> SparseCounts:
        seen.append((vector, std, radius))
        return vector

    monkeypatch.setattr(bias_reduced_sgd, "project_noisy", record)
    return seen


def test_noise_and_divisors_are_those_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _means(monkeypatch)
    size, level, kappa, bound, s = 64, 3, 5.0, 2.0, 9
    loss = FixedGradients(sparse.csr_array(np.tile([1.0, 0.0] + [0.0] * 8, (size, 1))))
    sgd = BiasReducedSGD(l2_bound=bound, sparsity=s, step_size=0.1)
    estimate = sgd.gradient(
        loss, np.zeros(10), level, schedule=_schedule([level], size, kappa), source=NoiseSource(1)
    )
    (both, b, r), (odds, o, _), (evens, e, _), (first, f, _) = seen
    half = 2**level
    assert (b, o, e, f) == (
        kappa * bound / (2 * half),
        kappa * bound / half,
        kappa * bound / half,
        kappa * bound,
    )
    assert r == bound * math.sqrt(s)
    (asked,) = loss.asked
    assert both.dense()[0] * 2 * half + first.dense()[0] == pytest.approx(asked.size)
    assert asked.size > 0
    # O and E are a partition of B, so without noise the correction vanishes.
    assert both.dense() == pytest.approx((odds.dense() + evens.dense()) / 2)
    assert estimate.dense() == pytest.approx(first.dense())


def test_batches_are_poisson_and_split_by_fair_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _means(monkeypatch)
    size, level, runs = 64, 3, 1000
    loss = FixedGradients(sparse.csr_array(np.ones((size, 1)) / 2))
    sgd, source = BiasReducedSGD(l2_bound=1.0, sparsity=1, step_size=0.1), NoiseSource(2)
    for _ in range(runs):
        sgd.gradient(loss, np.zeros(1), level, schedule=_schedule([level], size, 1.0), source=source)
    batches = np.array([vector.dense()[0] * 2 * 2 ** (level + 1) for vector, _, _ in seen[::4]])
    singles = np.array([vector.dense()[0] * 2 for vector, _, _ in seen[3::4]])
    assert [rows.size for rows in loss.asked] == pytest.approx(batches + singles)
    odds = np.array([vector.dense()[0] * 2 * 2**level for vector, _, _ in seen[1::4]])
    rate = 2 ** (level + 1) / size
    # Six standard errors: an alarm of probability 2e-9.
    assert batches.mean() == pytest.approx(size * rate, abs=6 * math.sqrt(size * rate / runs))
    assert batches.var() == pytest.approx(size * rate * (1 - rate), rel=0.25)
    assert singles.mean() == pytest.approx(1.0, abs=6 / math.sqrt(runs))
    assert (odds - batches / 2).mean() == pytest.approx(0.0, abs=6 * math.sqrt(size * rate / 4 / runs))
    assert (odds - batches / 2).var() == pytest.approx(size * rate / 4, rel=0.25)


def test_one_more_example_moves_each_mean_by_at_most_l_over_m(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adversarial rows: huge, duplicate coordinates, NaN; everybody is in the batch, so the pair differs by one."""
    size, level, bound = 16, 3, 1.5
    rng = np.random.default_rng(3)
    base = sparse.random_array((size, 30), density=0.4, rng=rng, format="csr") * 100.0
    sgd = BiasReducedSGD(l2_bound=bound, sparsity=4, step_size=0.1)
    extras = [
        sparse.csr_array(np.full((1, 30), 1e30)),
        sparse.csr_array((np.array([5.0, 5.0, -1.0]), np.array([2, 2, 7]), np.array([0, 3])), shape=(1, 30)),
        sparse.csr_array((np.array([math.nan, 1.0]), np.array([2, 3]), np.array([0, 2])), shape=(1, 30)),
    ]
    for extra in extras:
        seen = _means(monkeypatch)
        for data in (base, sparse.csr_array(sparse.vstack([base, extra], format="csr"))):
            sgd.gradient(
                FixedGradients(data),
                np.zeros(30),
                level,
                schedule=_schedule([level], size, 1.0),
                source=NoiseSource(9),
            )
        moves = [np.linalg.norm(a[0].dense() - b[0].dense()) for a, b in zip(seen[:4], seen[4:], strict=True)]
        half = 2**level
        for move, divisor in zip(moves, (2 * half, half, half, 1), strict=True):
            assert move <= bound / divisor
        assert min(moves[1], moves[2]) == 0.0


def test_the_estimate_telescopes_to_the_largest_batch() -> None:
    """E over levels equals the mean of the mechanism over all the data, bias and all (Lemma 6.4).

    The gradients sit on a corner of the ball, where the projection is biased. Six standard errors: 2e-9 an alarm.
    """
    size, kappa, runs = 8, 1.0, 1500
    rows = np.tile([0.8, 0.6, 0.0], (size, 1))
    loss = FixedGradients(sparse.csr_array(rows))
    sgd, source = BiasReducedSGD(l2_bound=1.0, sparsity=1, step_size=0.1), NoiseSource(5)
    schedule = _schedule([0], size, kappa)
    levels = draw_levels(runs, size=size, stream=source.sampling)
    estimates, unweighted = [], []
    for level in levels:
        estimate = sgd.gradient(loss, np.zeros(3), int(level), schedule=schedule, source=source).dense()
        estimates.append(estimate)
        unweighted.append(estimate * level_probabilities(size)[level])
    target = np.mean(
        [
            sgd._mechanism(
                SparseCounts(np.arange(2), rows[:, :2].sum(axis=0) * 1023 / 1024, 3), 8.0, kappa, source.noise
            ).dense()
            for _ in range(runs)
        ],
        axis=0,
    )

    def far(values: list[np.ndarray]) -> float:
        errors = np.std(values, axis=0) / math.sqrt(runs)
        return float(np.max(np.abs(np.mean(values, axis=0) - target) / errors))

    assert far(estimates) < 6.5
    assert far(unweighted) > 6.5


def test_audit_of_one_step() -> None:
    """Everybody sampled, one example more along e1: the releases that carry it, against Gaussian(kappa/sqrt 2)."""
    size, kappa, delta, runs = 4, 4.0, 1e-2, 800
    claimed = analytic_gaussian_epsilon(delta, math.sqrt(2) / kappa)
    quiet = sparse.csr_array((size, 3))
    loud = sparse.csr_array(np.vstack([np.zeros((size, 3)), [1e9, 0.0, 0.0]]))

    def statistics(noise: float):  # type: ignore[no-untyped-def]
        sgd = BiasReducedSGD(l2_bound=1.0, sparsity=10**6, step_size=0.1)

        def run(data: sparse.csr_array, stream: Stream, count: int) -> np.ndarray:
            coins = (np.frombuffer(stream.bytes(count), dtype=np.uint8) & 1).astype(bool)
            total = SparseCounts(np.arange(1), np.array([min(data.sum(), 1.0)]), 3)
            nothing = SparseCounts(np.arange(1), np.zeros(1), 3)
            found = np.empty(count)
            for at, odd in enumerate(coins):
                both = sgd._mechanism(total, 4.0, noise, stream).dense()[0] * 4.0
                odds = sgd._mechanism(total if odd else nothing, 2.0, noise, stream).dense()[0] * 2.0
                evens = sgd._mechanism(nothing if odd else total, 2.0, noise, stream).dense()[0] * 2.0
                found[at] = both + max(odds, evens)
            return found

        return run

    stream = NoiseSource(6).noise
    right = audit(statistics(kappa), (loud, quiet), runs=runs, delta=delta, claimed=claimed, stream=stream)
    assert not right.refuted, right
    wrong = audit(
        statistics(kappa / 8), (loud, quiet), runs=runs, delta=delta, claimed=claimed, stream=stream
    )
    assert wrong.refuted, wrong


def _logistic(size: int, d: int, s: int, seed: int) -> LinearModelLoss:
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.uniform(size=(size, d)), axis=1)[:, :s]
    features = sparse.csr_array(
        (np.full(size * s, 1 / math.sqrt(s)), ids.ravel(), np.arange(0, size * s + 1, s)), shape=(size, d)
    )
    targets = np.sign(features @ rng.standard_normal(d) + 1e-12)
    return LinearModelLoss(features, targets, LogisticLoss(1.0))


@pytest.mark.parametrize("convex", [True, False])
def test_it_minimises_when_noise_is_small(convex: bool) -> None:
    loss, source = _logistic(256, 30, 3, seed=7), NoiseSource(8)
    schedule = _schedule(list(draw_levels(600, size=256, stream=source.sampling)), 256, 1e-3)
    sgd = BiasReducedSGD(l2_bound=1.0, sparsity=3, step_size=0.3, convex=convex, radius=20.0)
    result = sgd.minimise(loss, np.zeros(30), schedule=schedule, source=source)
    everybody = np.arange(256)
    before, after = (loss.value(x, everybody).mean() for x in (np.zeros(30), result.x))
    assert after < 0.75 * before or (not convex and result.steps < 100)
    assert np.linalg.norm(result.x) <= 20.0 * (1 + 1e-9)
    assert result.statement.released == ("the average iterate" if convex else "a random iterate")
    assert not result.statement.private
    assert "NOT PRIVATE" in str(result.statement)


def test_a_private_source_gives_a_private_statement() -> None:
    schedule = _schedule([0], 4, 1.0)
    sgd = BiasReducedSGD(l2_bound=1.0, sparsity=1, step_size=0.1)
    loss = FixedGradients(sparse.csr_array(np.eye(4)))
    result = sgd.minimise(loss, np.zeros(4), schedule=schedule, source=NoiseSource())
    assert result.statement.private
    assert (result.statement.epsilon, result.statement.delta) == (1.0, 1e-6)
    assert result.statement.adjacency == "add-or-remove-one"


def test_the_random_iterate_is_uniform() -> None:
    """Steps 0 .. T are equally likely; nothing after the chosen one is run."""
    schedule = _schedule([0, 0, 0], 4, 1.0)
    sgd = BiasReducedSGD(l2_bound=1.0, sparsity=1, step_size=0.1, convex=False)
    loss, source = FixedGradients(sparse.csr_array(np.eye(4))), NoiseSource(9)
    steps = [sgd.minimise(loss, np.zeros(4), schedule=schedule, source=source).steps for _ in range(400)]
    counts = np.bincount(steps, minlength=4)
    assert counts.size == 4
    assert np.abs(counts - 100).max() < 6 * math.sqrt(75)


def test_the_convex_room_stands_without_torch() -> None:
    code = "import sys, sparsedp.convex.sgd.boosting, sparsedp.convex.sgd.partitioned_erm; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_bad_input() -> None:
    for arguments, message in (
        ({"l2_bound": math.inf}, "l2_bound must"),
        ({"l2_bound": math.nan}, "l2_bound must"),
        ({"sparsity": 0}, "sparsity must"),
        ({"step_size": 0.0}, "step_size must"),
        ({"radius": 0.0}, "radius must"),
        ({"radius": math.nan}, "radius must"),
    ):
        with pytest.raises(ValueError, match=message):
            BiasReducedSGD(**{"l2_bound": 1.0, "sparsity": 1, "step_size": 0.1, **arguments})  # type: ignore[arg-type]
    loss, source = FixedGradients(sparse.csr_array(np.eye(4))), NoiseSource(0)
    sgd = BiasReducedSGD(l2_bound=1.0, sparsity=5, step_size=0.1)
    with pytest.raises(ValueError, match="sparsity must be at most the dimension"):
        sgd.minimise(loss, np.zeros(4), schedule=_schedule([0], 4, 1.0), source=source)
    with pytest.raises(ValueError, match="schedule must hold"):
        BiasReducedSGD(l2_bound=1.0, sparsity=1, step_size=0.1).minimise(
            loss, np.zeros(4), schedule=_schedule([], 4, 1.0), source=source
        )


@dataclass(frozen=True)
class Release:
    """One step as it was drawn: rates, and for each mechanism the move of a clipped example over its noise."""

    rate: float
    single_rate: float
    batch: float
    half: float
    single: float


def _releases(
    monkeypatch: pytest.MonkeyPatch, schedule: BatchSchedule, *, convex: bool = True
) -> tuple[list[Release], Minimised]:
    """A run on one example with a huge gradient that is in every batch, and the numbers that reach the samplers."""
    rates: list[float] = []

    def everyone(stream: Stream, size: int, rate: float) -> np.ndarray:
        rates.append(rate)
        return np.arange(size)

    monkeypatch.setattr(bias_reduced_sgd, "bernoulli_positions", everyone)
    drawn = spy(monkeypatch, bias_reduced_sgd, "project_noisy")
    method = BiasReducedSGD(l2_bound=0.7, sparsity=2, step_size=0.1, convex=convex)
    loss = FixedGradients(sparse.csr_array(np.array([[1e9, 0.0, 0.0]])))
    result = method.minimise(loss, np.zeros(3), schedule=schedule, source=NoiseSource(5))
    moves = [float(np.linalg.norm(call["vector"].values)) / SAFE / call["std"] for call in drawn]
    assert all(call["radius"] == 0.7 * math.sqrt(2) for call in drawn)
    steps = [
        Release(rate, single_rate, both, max(odd, even), single)
        for (rate, single_rate), (both, odd, even, single) in zip(
            batched(rates, 2), batched(moves, 4), strict=True
        )
    ]
    return steps, result


def batched(values: list[float], size: int) -> list[list[float]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def test_rates_and_noise_that_are_drawn_are_those_that_were_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events made from what reached the samplers, priced anew: within the statement, and next to it."""
    schedule = pld_schedule(size=64, epsilon=1.0, delta=1e-5, noise=30.0, stream=NoiseSource(4).sampling)
    steps, result = _releases(monkeypatch, schedule)
    assert len(steps) == schedule.steps == result.steps
    events = Counter[tuple[float, float]]()
    for step, level in zip(steps, schedule.levels, strict=True):
        assert step.rate == 2.0 ** (level + 1) / 64
        assert step.single_rate == 1 / 64
        # The move of the batch's mean and that of its half, each over its own noise, add up as one Gaussian.
        events[step.rate, round(1 / math.hypot(step.batch, step.half), 9)] += 1
        events[step.single_rate, round(1 / step.single, 9)] += 1
    expected = {False: schedule.noise / math.sqrt(2), True: schedule.noise}
    assert all(m == pytest.approx(expected[rate == 1 / 64], rel=1e-7) for rate, m in events)
    spent = epsilon_of(
        [
            (PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count)
            for (rate, multiplier), count in events.items()
        ],
        schedule.delta,
    )
    assert 0.975 < spent <= 1.0
    assert (result.statement.epsilon, result.statement.delta) == (1.0, 1e-5)


def test_the_papers_filter_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """(epsilon/32, delta/16) for each release when an example is replaced; the filter's sums, over its own steps."""
    epsilon, delta, size = 1.0, 1e-6, 128
    schedule = filter_schedule(size=size, epsilon=epsilon, delta=delta, stream=NoiseSource(6).sampling)
    steps, result = _releases(monkeypatch, schedule)
    assert len(steps) == schedule.steps
    for step in steps:
        for move in (step.batch, step.half, step.single):
            assert analytic_gaussian_epsilon(delta / 16, 2 * move) == pytest.approx(epsilon / 32, rel=1e-6)
    shares = np.array([(3 * step.rate + step.single_rate) / 16 for step in steps])
    squares = float((epsilon * shares) @ (epsilon * shares))
    assert math.sqrt(2 * math.log(2 / delta) * squares) + squares / 2 <= epsilon
    assert delta * shares.sum() <= delta / 2
    assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)
    assert result.statement.adjacency == "replace-one"


def test_a_random_iterate_takes_no_step_that_was_not_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = handmade_schedule(16, 1.0, [0, 1, 2, 0])
    for _ in range(3):
        with monkeypatch.context() as patch:
            steps, result = _releases(patch, schedule, convex=False)
        assert len(steps) == result.steps <= schedule.steps
