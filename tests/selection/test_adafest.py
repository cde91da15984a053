"""AdaFEST's threshold, its false positives, and AdaFEST+."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from support.batches import GivenBatch, counts_of, one_table

import sparsedp as sdp
from sparsedp.accounting import merge_sigmas, split_sigma
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection.adafest import ContributionMap

SIGMA = 1.3


def rule_of(selection: sdp.AdaFEST, space: RowSpace, sigma: float = SIGMA) -> ContributionMap:
    rule = selection.rule(space, noise_multiplier=sigma, max_grad_norm=1.0, expected_batch_size=64)
    assert isinstance(rule, ContributionMap)
    return rule


@pytest.mark.parametrize(("false_positives", "rows"), [(50.0, 10_000), (0.5, 10**7), (2.0, 3000)])
def test_the_threshold_follows_from_the_false_positives(false_positives: float, rows: int) -> None:
    """tau = sigma1 C1 Psi^-1(f / rows), Psi the normal's upper tail."""
    tables = (TableShape("a", rows - 1500, 2), TableShape("b", 1500, 2))
    selection = sdp.AdaFEST(noise_ratio=4.0, false_positives=false_positives)
    rule = rule_of(selection, RowSpace(selectable=tables))
    sigma1, sigma2 = split_sigma(SIGMA, 4.0)
    assert rule.contribution_norm == math.sqrt(2)
    assert rule.map_std == pytest.approx(sigma1 * math.sqrt(2))
    assert rule.threshold == pytest.approx(rule.map_std * stats.norm.isf(false_positives / rows))
    assert rule.gradient_noise_multiplier == sigma2
    assert merge_sigmas(sigma1, sigma2) == pytest.approx(SIGMA)


def test_the_measured_false_positives_are_those_asked_for() -> None:
    """An untouched table of 10^6 rows, 400 steps: a Poisson-like total, two-sided at 1e-8."""
    wanted, steps, space = 30.0, 400, one_table(10**6)
    rule = rule_of(sdp.AdaFEST(false_positives=wanted), space)
    stream = NoiseSource(5).selection
    total = sum(rule.select(GivenBatch(space), stream).rows.size for _ in range(steps))
    law = stats.binom(10**6 * steps, wanted / 10**6)
    assert law.ppf(5e-9) <= total <= law.isf(5e-9)
    wrong = stats.binom(10**6 * steps, stats.norm.sf(rule.threshold / (1.05 * rule.map_std)))
    assert not wrong.ppf(5e-9) <= total <= wrong.isf(5e-9)  # a noise 5% larger would be noticed


def test_touched_rows_survive_with_the_probability_of_their_count() -> None:
    """Row 7 has the count 3; binomial test at 1e-8."""
    space, steps = one_table(5000), 4000
    rule = rule_of(sdp.AdaFEST(threshold=4.0, contribution_norm=1.0), space)
    stream = NoiseSource(6).selection
    batch = GivenBatch(space, counts_of(r7=3.0))
    found = sum(7 in rule.select(batch, stream).rows for _ in range(steps))
    p = stats.norm.sf((4.0 - 3.0) / rule.map_std)
    assert stats.binomtest(found, steps, p).pvalue > 1e-8
    assert stats.binomtest(found, steps, stats.norm.sf(4.0 / rule.map_std)).pvalue < 1e-8
    assert batch.asked[0] == (1.0, None)


def test_half_of_the_rows_at_most_are_false_positives() -> None:
    rule = rule_of(sdp.AdaFEST(false_positives=900.0), one_table(1001))
    assert rule.threshold == 0.0


def test_an_explicit_threshold_is_kept() -> None:
    assert rule_of(sdp.AdaFEST(threshold=12.5), one_table(2000)).threshold == 12.5


def test_without_noise_only_touched_rows_survive() -> None:
    space = one_table(2000)
    rule = rule_of(sdp.AdaFEST(threshold=2.0), space, sigma=0.0)
    batch = GivenBatch(space, counts_of(r1=1.0, r5=2.0, r9=3.0))
    assert rule.select(batch, NoiseSource(1).selection).rows.tolist() == [5, 9]


def test_without_noise_a_row_that_no_finite_example_touched_does_not_survive() -> None:
    space = one_table(2000)
    rule = rule_of(sdp.AdaFEST(), space, sigma=0.0)
    assert rule.threshold == 0.0
    batch = GivenBatch(space, counts_of(r1=0.0, r5=0.5))
    assert rule.select(batch, NoiseSource(1).selection).rows.tolist() == [5]


def test_adafest_plus_stays_within_its_rows() -> None:
    chosen = np.arange(0, 2000, 10)
    selection = sdp.AdaFEST(false_positives=20.0, within=sdp.FEST({"table": chosen}))
    space = selection.partition_tables(one_table(2000).tables)
    rule = rule_of(selection, space)
    assert rule.threshold == pytest.approx(rule.map_std * stats.norm.isf(20 / 200))
    stream, total = NoiseSource(7).selection, 0
    batch = GivenBatch(space, counts_of(r10=1e6, r11=1e6))
    for _ in range(200):
        rows = rule.select(batch, stream).rows
        assert np.isin(rows, chosen).all()
        assert 10 in rows
        assert 11 not in rows
        total += rows.size - 1
    law = stats.binom(199 * 200, 0.1)
    assert law.ppf(5e-9) <= total <= law.isf(5e-9)
    assert batch.asked[0][1] is not None
    assert batch.asked[0][1].tolist() == chosen.tolist()


def test_adafest_plus_pays_for_its_private_rows() -> None:
    within = sdp.FEST.private_top_k({"table": np.arange(2000.0)}, 50, mu=0.2)
    selection = sdp.AdaFEST(within=within)
    assert selection.one_off_events() == (GaussianDpEvent(5.0),)
    with pytest.raises(ValueError, match="resolved"):
        rule_of(selection, one_table(2000))
    resolved = selection.resolve(one_table(2000).tables, lambda *_: {}, NoiseSource(1).selection)
    assert isinstance(resolved.within, sdp.FEST)
    assert resolved.one_off_events() == (GaussianDpEvent(5.0),)
    assert resolved.within.sorted_rows["table"].size == 50
