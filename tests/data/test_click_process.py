import numpy as np
import pytest
from scipy.stats import chi2

from sparsedp.data import ClickProcess

PROCESS = ClickProcess(seed=7)


def test_rows_depend_on_seed_and_position_alone():
    whole = PROCESS.log(0, 3000, rows_per_day=1000)
    part = PROCESS.log(1500, 1700, rows_per_day=1000)
    for name in ("label", "counts", "present", "ids", "day"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[1500:1700])
    assert not np.array_equal(ClickProcess(seed=8).log(0, 50, rows_per_day=1000).ids, whole.ids[:50])


def test_the_numbers_of_a_row_never_change():
    """Experiments name a seed: what it means must not move between versions."""
    row = ClickProcess(seed=1).log(10**9, 10**9 + 1, rows_per_day=10**8)
    assert row.day.tolist() == [10]
    assert row.ids[0, :6].tolist() == GOLDEN_IDS
    assert row.counts[0, :6].tolist() == GOLDEN_COUNTS


GOLDEN_IDS = [19, 79, 7299, 12985, 287, 12]
GOLDEN_COUNTS = [2, 1, -1, 2, 0, -2]


def test_ids_stay_in_their_tables_with_some_missing():
    logged = PROCESS.log(0, 20_000, rows_per_day=20_000)
    assert (logged.ids.min(axis=0) >= 0).all()
    assert (logged.ids.max(axis=0) < PROCESS.vocabulary_sizes).all()
    missing = (logged.ids == 0).mean(axis=0)
    assert (missing[::5] == 0).all()
    assert missing[4] == pytest.approx(0.12, abs=0.02)
    assert (logged.counts < 0).any()
    assert not logged.present.all()
    assert 0.15 < logged.label.mean() < 0.35


def test_popularity_is_zipf():
    process = ClickProcess(vocabulary_sizes=(1001, 2), zipf=1.2)
    ids = process.log(0, 200_000, rows_per_day=10**6).ids[:, 0]
    found = np.sort(np.bincount(ids, minlength=1001))[::-1][:30]
    edges = np.arange(1, 32.0) ** -0.2
    expected = 200_000 * (edges[:-1] - edges[1:]) / (1 - 1001.0**-0.2)
    statistic = ((found - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, 29) > 1e-9
    assert chi2.sf(((found - expected * 1.05) ** 2 / expected).sum(), 29) < 1e-9


def shift(process, day):
    """How far the popularity on a day is from that on day 0, in total variation, for a table of 1472 rows."""
    first, later = (
        process.log(at * 10_000, (at + 1) * 10_000, rows_per_day=10_000).ids[:, 0] for at in (0, day)
    )
    return np.abs(np.bincount(first, minlength=1472) - np.bincount(later, minlength=1472)).sum() / 20_000


def test_popularity_drifts_from_day_to_day():
    still = ClickProcess(turnover=0.0)
    assert shift(still, 20) < 0.15
    assert shift(PROCESS, 1) < shift(PROCESS, 20)
    assert shift(PROCESS, 20) > 2 * shift(still, 20)


def test_latent_vectors_turn():
    ids = np.full((1, 26), 5)
    for rotation, moves in ((0.0, False), (0.1, True)):
        process = ClickProcess(rotation=rotation)
        weights = [np.ones(1)] * 26
        first, later = (process._interactions(ids, np.array([day]), weights)[0] for day in (0, 10))
        assert (first != later) == moves


def test_interactions_average_out_over_either_value():
    """What a linear model could see of a pair: the mean over the partner's values, small beside the whole."""
    process = ClickProcess(vocabulary_sizes=(2001, 2001))
    left, right = np.meshgrid(np.arange(1, 2001, 20), np.arange(1, 2001, 20), indexing="ij")
    ids = np.stack([left.ravel(), right.ravel()], axis=1)
    part = process._interactions(ids, np.zeros(len(ids)), [np.ones(len(ids))] * 2).reshape(100, 100)
    assert part.mean(axis=1).std() < 0.3 * part.std()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocabulary_sizes": (10,)}, "vocabulary_sizes"),
        ({"vocabulary_sizes": (10, 1)}, "vocabulary_sizes"),
        ({"zipf": 1.0}, "zipf"),
        ({"zipf": -1.0}, "zipf"),
        ({"turnover": -0.1}, "turnover"),
        ({"main": float("nan")}, "main"),
        ({"interaction": float("inf")}, "interaction"),
    ],
)
def test_bad_parameters_are_named(change, said):
    with pytest.raises(ValueError, match=rf"^{said}"):
        ClickProcess(**change)
