import math
import sys

import numpy as np
import pytest
from scipy import sparse, stats
from support.spies import spy

from sparsedp.accounting import GaussianDpEvent, epsilon_of
from sparsedp.cli import scripts
from sparsedp.convex import noise as noise_module
from sparsedp.convex import private_sparse_mean
from sparsedp.convex.clip import clip_rows, exact_mean
from sparsedp.convex.mean import recovery as recovery_mean
from sparsedp.convex.mean import sparse_mean as mean_module
from sparsedp.convex.mean.measurement import GaussianMeasurement
from sparsedp.convex.mean.projection import mean_noise, project
from sparsedp.convex.mean.recovery import few_enough, measurement_count
from sparsedp.core.extras import MissingExtra
from sparsedp.randomness import NoiseSource

METHODS = ("auto", "projection", "recovery", "gaussian")


rows_of = scripts.load("benchmarks", "mean").rows_of


def seeded(rows, seed=0, **arguments):
    return private_sparse_mean(rows, source=NoiseSource(seed=seed), **arguments)


def test_the_statement():
    rows = rows_of("popular", 50, 100, 3)
    result = private_sparse_mean(rows, epsilon=0.7, l2_bound=1.0, sparsity=3)
    statement = result.statement
    assert (statement.epsilon, statement.delta) == (0.7, 1 / 500)
    assert statement.adjacency == "replace-one"
    assert statement.private
    assert "50 rows" in statement.released
    assert "NOT PRIVATE" in str(seeded(rows, epsilon=1.0, l2_bound=1.0, sparsity=3).statement)
    assert private_sparse_mean(rows, epsilon=1.0, delta=0, l2_bound=1.0, sparsity=3).statement.delta == 0.0


def test_the_noise_is_what_the_mechanism_says():
    rows = rows_of("popular", 400, 20_000, 4)
    result = seeded(rows, epsilon=0.5, delta=1e-6, l2_bound=1.0, sparsity=4, method="gaussian")
    noise = mean_noise(400, epsilon=0.5, delta=1e-6, l2_bound=1.0, sparsity=4)
    assert result.noise_scale == noise.scale
    drawn = (result.estimate - np.asarray(rows.mean(axis=0))) / noise.scale
    assert stats.kstest(drawn, stats.norm.cdf).pvalue > 1e-9
    assert stats.kstest(1.1 * drawn, stats.norm.cdf).pvalue < 1e-9


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_projection_is_algorithm_1_line_by_line(delta):
    rows = rows_of("popular", 300, 1000, 9)
    result = seeded(rows, seed=5, epsilon=1.0, delta=delta, l2_bound=1.0, sparsity=9, method="projection")
    clipped = clip_rows(rows, l2=1.0, l1=3.0 if delta == 0.0 else math.inf)
    noise = mean_noise(300, epsilon=1.0, delta=delta, l2_bound=1.0, sparsity=9)
    noisy = noise.add(exact_mean(clipped, l2=1.0), NoiseSource(seed=5).noise)
    assert np.array_equal(result.estimate, project(noisy, 3.0).point)
    assert result.method == "projection"
    assert np.abs(result.estimate).sum() <= 3.0 * (1 + 1e-12)


def test_dense_and_sparse_input_agree():
    rows = rows_of("popular", 60, 80, 4)
    arguments = {"epsilon": 1.0, "delta": 1e-5, "l2_bound": 1.0, "sparsity": 4, "seed": 2}
    from_sparse = seeded(rows, **arguments).estimate
    for other in (
        rows.toarray(),
        sparse.csc_array(rows),
        sparse.coo_matrix(rows.toarray()),
        rows.toarray().tolist(),
    ):
        assert np.array_equal(seeded(other, **arguments).estimate, from_sparse)


def test_long_and_dense_rows_are_clipped_and_counted():
    """Privacy needs the norm alone; a row with more non-zeros than s is a matter of utility, but in pure DP."""
    rows = np.zeros((40, 30))
    rows[0] = 100.0
    rows[1, :9] = 0.1
    result = seeded(rows, epsilon=1.0, delta=1e-5, l2_bound=1.0, sparsity=4)
    assert (result.diagnostics.clipped_rows, result.diagnostics.dense_rows) == (1, 2)
    assert "diagnostics" not in repr(result)
    pure = seeded(rows * 0.7, epsilon=1.0, delta=0.0, l2_bound=3.9, sparsity=1)
    assert pure.diagnostics.clipped_rows == 1


def test_recovery_falls_back_to_plain_noise_where_measurements_are_many():
    few = rows_of("popular", 60, 4000, 2)
    assert few_enough(measurement_count(60, 4000, 2, 1.0, 1e-3), 4000)
    assert (
        seeded(few, epsilon=1.0, delta=1e-3, l2_bound=1.0, sparsity=2, method="recovery").method == "recovery"
    )
    many = rows_of("popular", 600, 400, 2)
    assert (
        seeded(many, epsilon=1.0, delta=1e-3, l2_bound=1.0, sparsity=2, method="recovery").method
        == "gaussian"
    )


@pytest.mark.parametrize("kind", ["cancelling", "popular", "alike", "blocks"])
@pytest.mark.parametrize(
    ("n", "d", "s", "epsilon"),
    [(100, 3000, 3, 1.0), (400, 20_000, 4, 0.5), (3000, 2000, 10, 1.0), (20_000, 300, 5, 1.0)],
)
def test_errors_stay_below_their_bounds_and_auto_is_as_good_as_any(kind, n, d, s, epsilon):
    """Never worse than the best single method by more than 10%: means over 6 draws, seeds fixed."""
    rows = rows_of(kind, n, d, s)
    truth = np.asarray(rows.mean(axis=0))
    error = {}
    for method in METHODS:
        results = [
            seeded(rows, seed, epsilon=epsilon, delta=1e-5, l2_bound=1.0, sparsity=s, method=method)
            for seed in range(3 if method == "recovery" else 6)
        ]
        errors = [float(np.linalg.norm(r.estimate - truth)) for r in results]
        assert all(e <= r.error_bound for e, r in zip(errors, results, strict=True))
        error[method] = np.mean(errors)
    assert error["auto"] <= 1.1 * min(error[m] for m in METHODS[1:])


@pytest.mark.parametrize("kind", ["cancelling", "popular", "alike", "blocks"])
@pytest.mark.parametrize(("n", "d", "s"), [(400, 3000, 4), (20_000, 300, 5)])
def test_the_same_for_pure_dp(kind, n, d, s):
    rows = rows_of(kind, n, d, s)
    truth = np.asarray(rows.mean(axis=0))
    error = {}
    for method in ("auto", "projection"):
        results = [
            seeded(rows, seed, epsilon=2.0, delta=0.0, l2_bound=1.0, sparsity=s, method=method)
            for seed in range(25)
        ]
        errors = [float(np.linalg.norm(r.estimate - truth)) for r in results]
        assert all(e <= r.error_bound for e, r in zip(errors, results, strict=True))
        error[method] = np.mean(errors)
    assert error["auto"] <= 1.1 * error["projection"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "d", "s", "epsilon", "delta", "bar"),
    [
        ("alike", 64, 256, 1, 1.0, 1e-6, 1.15),
        ("alike", 100, 3000, 3, 0.5, 1e-6, 1.15),
        ("cancelling", 100, 3000, 3, 0.5, 1e-6, 1.15),
        ("alike", 20_000, 1000, 5, 0.5, 1e-6, 1.15),
        # Equal rows whose coordinates are as long as the largest of pure noise: no test can tell, and answering
        # zero is a third farther off than the projection, which in turn is seven times worse on pure noise.
        ("alike", 64, 256, 8, 1.0, 1e-6, 1.25),
        ("alike", 100, 3000, 3, 0.5, 0.0, 1.4),
        ("blocks", 100, 3000, 3, 2.0, 0.0, 1.3),
    ],
)
def test_auto_beside_the_best_where_choosing_is_hardest(kind, n, d, s, epsilon, delta, bar):
    """Where the mean lies on the surface of its ball, or drowns in noise: the worst cells of the old grids.

    Errors are paired by their noise, so `auto - bar * best` has a mean of zero or less if the bar is kept, and
    six standard errors above zero is a false alarm with probability 1e-9, for each of seven cells.
    """
    rows = rows_of(kind, n, d, s)
    truth = np.asarray(rows.mean(axis=0))
    draws = 600
    errors = {}
    for method in METHODS if delta else METHODS[:2]:
        arguments = {"epsilon": epsilon, "delta": delta, "l2_bound": 1.0, "sparsity": s, "method": method}
        answers = (seeded(rows, seed, **arguments) for seed in range(2 if method == "recovery" else draws))
        errors[method] = np.array([np.linalg.norm(answer.estimate - truth) for answer in answers])
    best = min((errors[method] for method in errors if method != "auto"), key=np.mean)
    apart = errors["auto"] - bar * (best if best.size == draws else best.mean())
    assert apart.mean() < 6 * apart.std() / math.sqrt(draws)


@pytest.mark.slow
def test_auto_over_a_fresh_grid():
    """The first cells of the grid that judged the rule, which was drawn after it was fixed: worst of 60 was 1.07.

    Seeds are fixed: no false alarm. `python benchmarks/mean.py --fresh SEED` draws another.
    """
    benchmark = scripts.load("benchmarks", "mean")
    for cell in benchmark.fresh_cells(517666, 12):
        found = benchmark.judged(cell, most_draws=150)
        assert found["auto / best"] <= 1.15 + 3 * found["+-"], found
        if found["zero"] < 0.5 * found["noise"]:
            assert found["kept"] <= 0.05


def test_projection_beats_the_gaussian_mechanism_in_high_dimension():
    rows = rows_of("popular", 2000, 20_000, 5)
    truth = np.asarray(rows.mean(axis=0))
    arguments = {"epsilon": 1.0, "delta": 1e-6, "l2_bound": 1.0, "sparsity": 5}
    error = {m: np.linalg.norm(seeded(rows, method=m, **arguments).estimate - truth) for m in METHODS}
    assert error["projection"] < 0.2 * error["gaussian"]
    assert error["auto"] <= error["projection"]


GOOD = {"epsilon": 1.0, "delta": 1e-5, "l2_bound": 1.0, "sparsity": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsity": 0}, "sparsity must be at least 1"),
        ({"sparsity": 6}, "sparsity must be at most the dimension"),
        ({"sparsity": 1.5}, "sparsity must be a whole number"),
        ({"l2_bound": math.inf}, "l2_bound must be finite"),
        ({"l2_bound": 0.0}, "l2_bound must be positive"),
        ({"l2_bound": math.nan}, "l2_bound must be a number"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"epsilon": "much"}, "epsilon must be a number"),
        ({"delta": 1.0}, "delta must lie strictly between"),
        ({"delta": -1e-5}, "delta must lie strictly between"),
        ({"beta": 0.0}, "beta must lie strictly between"),
        ({"method": "median"}, "method must be one of auto"),
        ({"method": "recovery", "delta": 0.0}, "method 'recovery' needs delta"),
        ({"method": "gaussian", "delta": 0.0}, "method 'gaussian' needs delta"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        private_sparse_mean(np.ones((3, 5)), **{**GOOD, **changes})


@pytest.mark.parametrize("delta", [1e-5, 0.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_counts_as_zero(value, delta):
    """To refuse it would tell that it is there, and a mean with it would not hide it either."""
    rows = rows_of("popular", 40, 30, 3).toarray()
    zeroed, spoiled = rows.copy(), rows.copy()
    zeroed[7] = 0.0
    spoiled[7, 3] = value
    arguments = {"epsilon": 1.0, "delta": delta, "l2_bound": 1.0, "sparsity": 3}
    for method in METHODS if delta else METHODS[:2]:
        expected = seeded(zeroed, method=method, **arguments)
        for form in (spoiled, sparse.csr_array(spoiled)):
            found = seeded(form, method=method, **arguments)
            assert np.array_equal(found.estimate, expected.estimate)
            assert (found.diagnostics.broken_rows, expected.diagnostics.broken_rows) == (1, 0)


@pytest.mark.parametrize("rows", [np.zeros((0, 5)), np.array([["a"]]), np.ones(5)])
def test_bad_rows(rows):
    with pytest.raises(ValueError, match=r"^Z must"):
        private_sparse_mean(rows, **GOOD)


def price(scale, sensitivity, delta):
    """The epsilon of noise of this scale at this sensitivity, by the accountant."""
    return epsilon_of([(GaussianDpEvent(scale / sensitivity), 1)], delta) if delta else sensitivity / scale


@pytest.mark.parametrize(
    ("method", "delta"),
    [(m, 1e-6) for m in ("auto", "projection", "gaussian")] + [("auto", 0.0), ("projection", 0.0)],
)
def test_the_noise_that_is_drawn_is_the_noise_that_was_accounted_for(monkeypatch, method, delta):
    """The scale that reaches the sampler, the move that the sampler's input really makes, and the statement."""
    n, d, s, bound = 50, 40, 4, 0.7
    calls = spy(monkeypatch, noise_module, "gaussian" if delta else "laplace")
    rows = np.zeros((n, d))
    rows[0] = 100.0  # more non-zeros than s: in pure DP its l1 norm has to be cut as well
    pair = [rows, -rows]
    results = [
        private_sparse_mean(
            each, epsilon=0.6, delta=delta, l2_bound=bound, sparsity=s, method=method, source=NoiseSource(1)
        )
        for each in pair
    ]
    first, second = calls  # one release for each: nothing else is drawn
    moved = np.linalg.norm(first["values"] - second["values"], 2 if delta else 1)
    for call, result in zip(calls, results, strict=True):
        scale = call["std" if delta else "scale"]
        assert scale == result.noise_scale
        assert price(scale, moved, delta) == pytest.approx(result.statement.epsilon, rel=1e-5)
        assert call["values"].size == d
        assert result.statement.delta == delta


def test_the_noise_on_measurements_is_the_noise_that_was_accounted_for(monkeypatch):
    n, d, s, epsilon, delta = 60, 4000, 2, 0.8, 1e-3
    calls = spy(monkeypatch, noise_module, "gaussian")
    measured = spy(monkeypatch, mean_module, "measured_mean")
    clipped = spy(monkeypatch, recovery_mean, "clip_rows")
    result = seeded(
        rows_of("popular", n, d, s), epsilon=epsilon, delta=delta, l2_bound=0.5, sparsity=s, method="recovery"
    )
    (call,), (measurement,) = calls, measured
    m = call["values"].size
    bound = 0.5 * (1 + 2 / math.sqrt(2 * m))
    assert measurement["bound"] == pytest.approx(bound, rel=1e-12)
    assert all(each["l2"] == measurement["bound"] for each in clipped)
    assert price(call["std"], 2 * measurement["bound"] / n, delta) == pytest.approx(epsilon, rel=1e-5)
    assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)
    assert result.noise_scale == call["std"]


def test_a_measured_row_moves_the_mean_by_no_more_than_its_bound():
    """The sensitivity of recovery, by the vector that gets the noise: opposite rows, the longest columns."""
    n, d, m = 5, 300, 40
    measurement = GaussianMeasurement(m, d, NoiseSource(2).sampling)
    longest = int(np.argmax(np.linalg.norm(measurement.columns(np.arange(d)), axis=1)))
    rows = np.zeros((n, d))
    rows[0, longest] = 1.0
    bound = recovery_mean.measurement_bound(m, 1.0)
    means = [recovery_mean.measured_mean(sparse.csr_array(x), measurement, bound) for x in (rows, -rows)]
    moved = np.linalg.norm(means[0] - means[1])
    assert 0.999 * 2 * bound / n < moved <= 2 * bound / n


def test_recovery_without_its_solver_is_refused_before_any_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("privacy was spent")

    monkeypatch.setitem(sys.modules, "spgl1", None)
    monkeypatch.setattr("sparsedp.convex.noise.GaussianNoise.add", never)
    rows = np.zeros((4, 100_000))
    with pytest.raises(MissingExtra, match=r"sparsedp\[convex\]"):
        private_sparse_mean(rows, epsilon=1.0, delta=1e-6, l2_bound=1.0, sparsity=2, method="recovery")
