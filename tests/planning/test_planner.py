import importlib
import json
import math

import numpy as np
import pytest
from scipy.stats import binom

from sparsedp.accounting.calibration import epsilon
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.accounting.merge import merge_sigmas
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import thresholded_counts
from sparsedp.planning.planner import plan
from sparsedp.planning.tables import criteo_tables
from sparsedp.randomness import NoiseSource
from sparsedp.selection import AdaFEST

TABLES = (
    TableShape("items", 50_000, 16),
    TableShape("tags", 200_000, 8, values=3),
    TableShape("", 300, 4),
)
RUN = {"epsilon": 1.0, "examples": 1_000_000, "expected_batch_size": 8192, "epochs": 1.0}


@pytest.fixture(scope="module")
def criteo():
    return plan(epsilon=1.0, examples=45_000_000, expected_batch_size=2048, epochs=1, tables=criteo_tables())


@pytest.fixture(scope="module")
def small():
    return plan(**RUN, tables=TABLES)


def test_the_noise_is_calibrated_for_the_run_and_split(small):
    assert small.sampling_rate == 8192 / 1_000_000
    assert small.steps == 123  # rounded up: the last batch of an epoch counts as well
    assert small.statement.delta == 1e-7
    assert small.statement.epsilon == 1.0
    assert merge_sigmas(small.map_noise_multiplier, small.gradient_noise_multiplier) == pytest.approx(
        small.noise_multiplier
    )
    assert small.map_noise_multiplier / small.gradient_noise_multiplier == pytest.approx(5.0)
    spent = epsilon(
        noise_multiplier=small.noise_multiplier,
        sampling_rate=small.sampling_rate,
        steps=small.steps,
        delta=1e-7,
    )
    assert 0.99 < spent <= 1.0
    assert small.dpsgd.noise_multiplier == small.noise_multiplier


def test_threshold_and_false_positives_are_two_names_for_one_choice(small):
    assert small.false_positives == pytest.approx(50)
    assert small.contribution_norm == pytest.approx(math.sqrt(2))  # two tables chosen in
    again = plan(**RUN, tables=TABLES, threshold=small.threshold)
    assert again.false_positives == pytest.approx(50)
    more = plan(**RUN, tables=TABLES, false_positives=5000)
    assert more.threshold < small.threshold
    assert more.false_positives == pytest.approx(5000)


@pytest.mark.parametrize("size", [2_000, 30_000, 1_100_000])
def test_a_wanted_gradient_size_is_planned_exactly(size):
    made = plan(**RUN, tables=TABLES, gradient_size=size)
    assert made.gradient_size == pytest.approx(size, rel=1e-6)
    parts = made.always_on_size + made.false_positive_size + made.touched_size_bound
    assert parts == pytest.approx(size, rel=1e-6)
    assert made.reduction == pytest.approx((50_000 * 16 + 200_000 * 8 + 300 * 4) / size, rel=1e-6)


def test_small_tables_are_always_on(small):
    assert [table.always_on for table in small.tables] == [False, False, True]
    assert small.always_on_size == 1200
    all_selectable = plan(**RUN, tables=TABLES, always_on_rows=0)
    assert all_selectable.always_on_size == 0
    assert all_selectable.contribution_norm == pytest.approx(math.sqrt(3))
    assert all_selectable.false_positives == pytest.approx(50)


def test_a_table_of_just_so_many_rows_is_always_on():
    made = plan(**RUN, tables=[*TABLES, TableShape("", 1000, 4), TableShape("", 1001, 4)])
    assert [table.always_on for table in made.tables] == [False, False, True, True, False]


def simulated(made, tables, steps, ids=(), counts=(), std=None):
    """Surviving rows of each selectable table in each step, from the mechanism itself."""
    rows = [table.rows for table in tables if table.rows > 1000]
    edges = np.cumsum([0, *rows])
    source = NoiseSource(seed=7).selection
    survivors = np.zeros((steps, len(rows)), dtype=np.int64)
    touched = np.zeros(steps, dtype=np.int64)
    for step in range(steps):
        found = thresholded_counts(
            ids,
            counts,
            int(edges[-1]),
            std=std or made.map_noise_multiplier * made.contribution_norm,
            threshold=made.threshold,
            stream=source,
        )
        known = np.isin(found, ids)
        touched[step] = known.sum()
        survivors[step] = np.histogram(found[~known], edges)[0]
    return survivors, touched


def two_sided(count, trials, chance):
    """The probability of a binomial count at least as far out as this one."""
    return 2 * min(binom.cdf(count, trials, chance), binom.sf(count - 1, trials, chance))


def test_false_positives_are_those_of_the_mechanism_in_all_26_criteo_tables(criteo):
    """False alarm: 16 exact binomial tests at 1e-10 each."""
    steps = 2000
    survivors, _ = simulated(criteo, criteo_tables(), steps)
    assert criteo.false_positives == pytest.approx(50)
    rows = sum(planned.table.rows for planned in criteo.tables if not planned.always_on)
    assert two_sided(survivors.sum(), steps * rows, criteo.false_positives / rows) > 1e-10
    selectable = [table for table in criteo.tables if not table.always_on]
    assert len(selectable) == 15
    for found, planned in zip(survivors.sum(axis=0), selectable, strict=True):
        rate = planned.false_positives / planned.table.rows
        assert two_sided(found, steps * planned.table.rows, rate) > 1e-10
    # The test can fail: noise that is off by 1% is noticed.
    wrong, _ = simulated(
        criteo, criteo_tables(), steps, std=1.01 * criteo.map_noise_multiplier * criteo.contribution_norm
    )
    assert two_sided(wrong.sum(), steps * rows, criteo.false_positives / rows) < 1e-10


def test_with_data_the_gradient_stays_within_the_plan(criteo):
    """Touched rows with Zipf counts: false positives on the other rows, survivors below the bound."""
    rng = np.random.default_rng(1)
    tables = [table for table in criteo_tables() if table.rows > 1000]
    ids, counts, start = [], [], 0
    for table in tables:
        weights = 1 / np.arange(1, table.rows + 1) ** 1.1
        touched, times = np.unique(
            rng.choice(table.rows, size=2048, p=weights / weights.sum()), return_counts=True
        )
        ids.append(start + touched)
        counts.append(times)
        start += table.rows
    ids, counts = np.concatenate(ids), np.concatenate(counts).astype(float)
    steps = 500
    survivors, touched = simulated(criteo, criteo_tables(), steps, ids, counts)
    chance = criteo.false_positive_probability
    assert two_sided(survivors.sum(), steps * (start - ids.size), chance) > 1e-10
    bound = sum(table.touched_bound for table in criteo.tables if not table.always_on)
    assert touched.mean() < bound
    assert touched.mean() > bound / 100  # a bound that says something


def test_no_data_can_beat_the_bound_on_touched_rows(small):
    """Give all touches of a table to rows touched m times, for each m: the bound is met at the best m."""
    std = small.map_noise_multiplier * small.contribution_norm
    touches = np.arange(1, 2000)
    survive = 0.5 * np.array([math.erfc((small.threshold - m) / std / math.sqrt(2)) for m in touches])
    items, tags = small.tables[0], small.tables[1]
    for table, read in ((items, 1), (tags, 3)):
        expected = 8192 * read / touches * survive
        assert expected.max() <= table.touched_bound * (1 + 1e-5)
        assert expected.max() > 0.999 * table.touched_bound


def test_counts_of_survival_have_their_probabilities(small):
    std = small.map_noise_multiplier * small.contribution_norm

    weight = math.sqrt(2) / 2  # an example reads one item and three tags, and is clipped to C1

    def survives(examples):
        return 0.5 * math.erfc((small.threshold - weight * examples) / std / math.sqrt(2))

    assert survives(small.count_half) == pytest.approx(0.5)
    assert survives(small.count_95) == pytest.approx(0.95)


def test_clipped_contributions_need_more_examples():
    made = plan(**RUN, tables=TABLES, contribution_norm=1.0)  # half of the longest v_i: each weighs 1/2
    assert made.count_half == pytest.approx(2 * made.threshold)
    assert plan(**RUN, tables=TABLES, contribution_norm=4.0).count_half > made.count_half / 2


def test_noise_on_a_surviving_row(small):
    assert small.tables[0].row_noise == pytest.approx(4 * small.gradient_noise_multiplier)


def test_fest_pays_little_for_choosing_its_rows(criteo):
    fest = criteo.fest
    assert fest.mu == 0.05
    assert 0.0005 < fest.price < 0.002
    assert fest.noise_multiplier == pytest.approx(criteo.noise_multiplier * (1 + fest.price))
    assert fest.histogram_std == pytest.approx(math.sqrt(15) / 0.05)
    assert fest.gradient_size <= criteo.gradient_size < fest.gradient_size + 33


@pytest.mark.parametrize("mu", [None, 0.15])
def test_both_runs_are_calibrated_for_what_they_release(mu, monkeypatch):
    module = importlib.import_module("sparsedp.planning.budget")
    asked = []

    def spy(**arguments):
        asked.append(arguments)
        return 2.0 + len(asked) / 10

    monkeypatch.setattr(module, "calibrate", spy)
    made = plan(**{**RUN, "epochs": 1.5}, tables=TABLES, fest_mu=mu)
    same = {
        "target_epsilon": 1.0,
        "target_delta": 1e-7,
        "sampling_rate": 0.008192,
        "steps": 185,
        "step_event": None,
    }
    # The histogram's noise is C1 / mu on counts of sensitivity C1, hence a noise multiplier of 1 / mu.
    choice = GaussianDpEvent(1 / (mu or 0.05))
    assert asked == [{**same, "extra_events": ()}, {**same, "extra_events": (choice,)}]
    assert made.fest.histogram_std == pytest.approx(math.sqrt(2) * choice.noise_multiplier)
    assert (made.noise_multiplier, made.dpsgd.noise_multiplier, made.fest.noise_multiplier) == (2.1, 2.1, 2.2)
    assert made.fest.price == pytest.approx(0.1 / 2.1)
    assert made.gradient_noise_multiplier == pytest.approx(2.1 * math.sqrt(1 + 1 / 25))
    assert made.map_noise_multiplier == pytest.approx(5 * made.gradient_noise_multiplier)


def test_fest_of_a_given_size():
    made = plan(**RUN, tables=TABLES, fest_rows=60_000, fest_mu=0.2)
    assert made.fest.gradient_size == 1200 + 50_000 * 16 + 10_000 * 8  # the widest rows first: an upper bound
    assert made.fest.price > 0.01
    assert plan(**{**RUN, "examples": 100_000, "expected_batch_size": 1000}, tables=TABLES).fest.mu == 0.02
    with pytest.raises(ValueError, match="fest_rows must be at most the 250000"):
        plan(**RUN, tables=TABLES, fest_rows=250_001)


def test_the_plan_reads_its_numbers_off_the_selection_that_trains():
    """Also where examples have several values in a table: C1, tau and both sigmas are the engine's."""
    made = plan(**RUN, tables=TABLES, false_positives=70, noise_ratio=3.0)
    selection = AdaFEST(noise_ratio=3.0, false_positives=70)
    model = [TableShape(table.name or "table-3", table.rows, table.dim) for table in TABLES]
    rule = selection.rule(
        selection.partition_tables(model),
        noise_multiplier=made.noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=float(made.expected_batch_size),
    )
    assert (made.contribution_norm, made.threshold) == (rule.contribution_norm, rule.threshold)
    assert (made.map_noise_multiplier, made.gradient_noise_multiplier) == (
        rule.map_noise_multiplier,
        rule.gradient_noise_multiplier,
    )


@pytest.mark.parametrize("size", [1_199, 2_000_000])
def test_a_gradient_size_that_no_threshold_gives_is_refused(size):
    with pytest.raises(ValueError, match="gradient_size must lie between 1200"):
        plan(**RUN, tables=TABLES, gradient_size=size)


def test_the_bias_variance_comparison_is_equation_2(small):
    size, dense = small.gradient_size + 1000, small.dpsgd.gradient_size + 1000
    made = plan(**RUN, tables=TABLES, dense_parameters=1000)
    cut, batch = made.largest_truncation, made.expected_batch_size
    assert 0 < cut < 1
    left = math.sqrt((1 + cut) ** 2 + size * (made.gradient_noise_multiplier / batch) ** 2) + cut * math.sqrt(
        made.steps
    )
    right = math.sqrt(1 + dense * (made.noise_multiplier / batch) ** 2)
    assert left == pytest.approx(right)


def test_where_dpsgd_is_better_nothing_may_be_cut():
    tables = [TableShape("", 2000, 1)]
    made = plan(
        **RUN, tables=tables, threshold=1e-9, noise_ratio=0.05
    )  # half of it survives, and sigma2 > 20 sigma
    assert made.reduction < 2.0
    assert made.largest_truncation == 0.0


def test_the_plan_is_plain_data(small):
    data = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    assert data["map_noise_multiplier"] == small.map_noise_multiplier
    assert data["statement"]["adjacency"] == "add-or-remove-one"
    assert data["fest"]["price"] == small.fest.price
    assert [table["name"] for table in data["tables"]] == ["items", "tags", "table-3"]
    with pytest.raises(AttributeError):
        small.map_noise_multiplier = 0.0


NAN = float("nan")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": NAN}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 1}, "delta"),
        ({"delta": 0}, "delta"),
        ({"delta": NAN}, "delta"),
        ({"examples": 0}, "examples"),
        ({"examples": NAN}, "examples"),
        ({"examples": 10.5}, "examples"),
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"expected_batch_size": 1_000_001}, "expected_batch_size must be at most examples"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": NAN}, "epochs"),
        ({"tables": []}, "tables must not be empty"),
        ({"tables": [(10, 4)]}, "tables"),
        ({"threshold": 3.0, "false_positives": 5}, "false_positives and threshold"),
        ({"gradient_size": 10**4, "false_positives": 5}, "gradient_size and false_positives"),
        ({"gradient_size": 10**4, "threshold": 5}, "gradient_size and threshold"),
        ({"threshold": NAN}, "threshold"),
        ({"threshold": math.inf}, "threshold"),
        ({"false_positives": NAN}, "false_positives"),
        ({"noise_ratio": 0}, "noise_ratio"),
        ({"noise_ratio": NAN}, "noise_ratio"),
        ({"contribution_norm": -1}, "contribution_norm"),
        ({"always_on_rows": -1}, "always_on_rows"),
        ({"always_on_rows": 10**6}, "always_on_rows"),
        ({"fest_rows": 0}, "fest_rows"),
        ({"fest_mu": 0}, "fest_mu"),
        ({"dense_parameters": -1}, "dense_parameters"),
        ({"examples": 1e30}, "examples must be at most"),
        ({"expected_batch_size": 1e30}, "expected_batch_size must be at most"),
        ({"epochs": 1e300}, "epochs of 1e.300 are too many"),
        ({"delta": 1e-320, "epochs": 1e12}, "epochs of 1e.12 are too many"),
        ({"noise_ratio": 1e200}, "noise_ratio"),
        ({"noise_ratio": 1e-200}, "noise_ratio"),
        ({"contribution_norm": 1e300}, "contribution_norm"),
        ({"threshold": -1e300}, "threshold"),
        ({"gradient_size": 1e300}, "gradient_size"),
        ({"fest_mu": 1e300}, "fest_mu"),
        ({"fest_mu": 3.0}, "fest_mu of 3 leaves nothing for training: it costs"),
        ({"fest_mu": 0.22}, "fest_mu of 0.22 leaves nothing for training: it costs 1.0"),
        ({"dense_parameters": 10**30}, "dense_parameters"),
        ({"fest_rows": 10**30}, "fest_rows"),
        ({"always_on_rows": 10**30}, "always_on_rows"),
    ],
    ids=str,
)
def test_bad_input_is_named_before_any_work(wrong, named, monkeypatch):
    def no_work(**_):
        raise AssertionError("the accountant was asked")

    monkeypatch.setattr(importlib.import_module("sparsedp.planning.budget"), "calibrate", no_work)
    with pytest.raises(ValueError, match=named):
        plan(**{**RUN, "tables": TABLES, **wrong})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"false_positives": 0}, "false_positives must lie between 0 and the 250000"),
        ({"false_positives": 250_000}, "false_positives"),
        ({"gradient_size": 1200}, "gradient_size must lie between 1200"),
        ({"gradient_size": 2_401_200}, r"gradient_size must lie between .* 2401200"),
        ({"gradient_size": -5}, "gradient_size"),
        ({"epsilon": 1e9}, "epsilon of 1e.09 is so large"),
        ({"epsilon": 1e-9}, "epsilon of 1e-09 is too small"),
        ({"threshold": 1e9, "tables": [TableShape("", 2000, 1)]}, "threshold of 1e.09 is out of reach"),
    ],
    ids=str,
)
def test_wishes_that_no_threshold_fulfils(wrong, named):
    with pytest.raises(ValueError, match=named):
        plan(**{**RUN, "tables": TABLES, **wrong})
