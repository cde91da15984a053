"""AdaFEST's memory: levels of released rows, against a slow one, and its law, audit and size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.accounting import analytic_gaussian_epsilon, split_sigma
from sparsedp.audit import AuditResult, audit
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowSpace
from sparsedp.selection import Batch, Selected, adafest
from sparsedp.selection.adafest import ContributionMap
from sparsedp.selection.row_memory import RowMemory


def ints(*rows: int) -> I64:
    return np.array(rows, dtype=np.int64)


def test_a_row_is_trained_once_it_has_passed_often_enough_and_until_it_has_not_for_long() -> None:
    memory = RowMemory(9, share=0.25, least=2.0, most=2.5)
    found = [memory.observe(rows).tolist() for rows in (ints(4), ints(4, 5), ints(4), ints(), ints(1))]
    assert found == [[], [], [4], [4], [4]]  # 1, 1.75, 2.5, 2.25, 2
    assert memory.ids.tolist() == [1, 4, 5]
    assert memory.levels.tolist() == [1.0, 2.0, 0.25]
    assert memory.observe(ints(4)).tolist() == [4]  # at most 2.5
    assert memory.ids.tolist() == [1, 4]  # 5 is forgotten
    assert memory.levels.tolist() == [0.75, 2.5]


class Slow:
    """The same, row by row."""

    def __init__(self, share: float, least: float, most: float, every: int = 1) -> None:
        self.share, self.least, self.most, self.every, self.steps = share, least, most, every, 0
        self.levels: dict[int, float] = {}

    def observe(self, survivors: list[int]) -> list[int]:
        self.steps += 1
        for row in list(self.levels):
            self.levels[row] -= self.share
        for row in survivors:
            self.levels[row] = self.levels[row] + 1.0 if row in self.levels else 1.0
        self.levels = {row: min(level, self.most) for row, level in self.levels.items() if level > 0}
        in_turn = (row for row in self.levels if (row + self.steps) % self.every == 0)
        return sorted(row for row in in_turn if self.levels[row] >= self.least)


@pytest.mark.parametrize("settings", [(0.25, 1.0, 1.0, 1), (0.125, 2.0, 3.5, 2), (0.0625, 3.0, 6.0, 5)])
def test_it_does_what_the_slow_one_does(settings: tuple[float, float, float, int]) -> None:
    share, least, most, every = settings
    memory = RowMemory(60, share=share, least=least, most=most, every=every)
    slow = Slow(share, least, most, every)
    rng = np.random.default_rng(1)
    for step in range(200):
        if step == 103:
            again = RowMemory(60, share=share, least=least, most=most, every=every)
            again.load_state_dict(memory.state_dict())
            memory = again
        survivors = np.flatnonzero(rng.random(60) < np.linspace(0.0, 0.5, 60))
        assert memory.observe(survivors).tolist() == slow.observe(survivors.tolist())
        assert dict(zip(memory.ids.tolist(), memory.levels.tolist(), strict=True)) == slow.levels
        assert (np.diff(memory.ids) > 0).all()


def test_rows_that_repeat_take_turns() -> None:
    """Each is trained in one of three steps, and in every three steps all of them."""
    memory = RowMemory(9, share=0.25, least=1.0, most=6.0, every=3)
    always = ints(0, 1, 2, 3, 4, 5, 6, 7, 8)
    memory.observe(always)
    turns = [memory.observe(always).tolist() for _ in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[0] + turns[1] + turns[2]) == always.tolist()


def test_it_holds_what_passed_lately_and_no_more() -> None:
    """At most what passed in the last most / share steps, of a million rows."""
    memory, rng = RowMemory(10**6, share=0.1, least=3.0, most=6.0), np.random.default_rng(2)
    for _ in range(100):
        memory.observe(np.unique(rng.integers(0, 10**6, 50)))
        assert memory.ids.size <= 50 * 6.0 / 0.1
    assert 400 < memory.ids.size < 600  # nearly all passed once: ten steps
    for _ in range(60):
        memory.observe(ints())
    assert not memory.ids.size


@pytest.mark.parametrize(("share", "expected"), [(0.02, 18), (0.01, 174)])
def test_few_rows_are_trained_by_chance(share: float, expected: int) -> None:
    """Of 130,000 rows 0.4% pass in a step: 1.4 or 13 in 10,000 are trained, the mean of steps 150 to 230, within a quarter."""
    memory, rng = RowMemory(130_000, share=share, least=3.0, most=6.0), np.random.default_rng(4)
    trained = [memory.observe(np.unique(rng.integers(0, 130_000, 500))).size for _ in range(230)]
    assert np.mean(trained[150:]) == pytest.approx(expected, rel=0.25)
    assert memory.ids.size == pytest.approx(500 / share, rel=0.1)


BAD_STATES = {
    "other tables": {"size": 8},
    "not sorted": {"ids": torch.tensor([2, 1])},
    "twice": {"ids": torch.tensor([2, 2])},
    "negative": {"ids": torch.tensor([-1, 2])},
    "beyond the tables": {"ids": torch.tensor([1, 9])},
    "a level of zero": {"levels": torch.tensor([0.0, 1.0]).double()},
    "a level too large": {"levels": torch.tensor([1.0, 7.0]).double()},
    "no number": {"levels": torch.tensor([1.0, float("nan")]).double()},
    "too few levels": {"levels": torch.tensor([1.0]).double()},
    "steps that are none": {"steps": -1},
}


@pytest.mark.parametrize("fault", BAD_STATES)
def test_a_state_that_is_not_this_memory_s_is_refused(fault: str) -> None:
    memory = RowMemory(9, share=0.1, least=2.0, most=6.0)
    memory.observe(ints(1, 2))
    state = memory.state_dict()
    memory.load_state_dict(state)
    with pytest.raises(ValueError, match=r"^memory: "):
        memory.load_state_dict({**state, **BAD_STATES[fault]})
    assert memory.ids.tolist() == [1, 2]


SPACE = RowSpace((TableShape("table", 20_000, 1),))


class Counted:
    """A batch with these contributions."""

    space = SPACE

    def __init__(self, counts: SparseCounts) -> None:
        self._counts = counts

    def contributions(self, norm: float, domain: I64 | None = None) -> SparseCounts:
        return self._counts

    def scores(self) -> SparseCounts:
        raise AssertionError("a map looks at ids alone")

    coordinate_scores = scores


NOBODY = Counted(SparseCounts.zeros(SPACE.selectable_size))
ONE_ROW = Counted(SparseCounts(ints(7), np.ones(1), SPACE.selectable_size))


SIGMA1 = split_sigma(1.0, 1.0)[0]
LOWER = 1.0
"""The threshold from which rows are remembered; so many of nobody's rows pass it."""
PASSING = 20_000 * float(stats.norm.sf(LOWER / SIGMA1))


def remembering(threshold: float = 50.0, **settings: float) -> ContributionMap:
    selection = sdp.AdaFEST(
        noise_ratio=1.0,
        threshold=threshold,
        always_on_rows=0,
        contribution_norm=1.0,
        memory_false_positives=PASSING,
        memory_every=1,
        **settings,
    )
    return selection.rule(SPACE, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0)


def trained_at_the_end(probability: float, steps: int, share: float, least: float, most: float) -> float:
    """The chance that a row which survives each step with this probability is trained in the last one."""
    chance = 0.0
    for bits in product([0, 1], repeat=steps):
        slow, trained = Slow(share, least, most), list[int]()
        for bit in bits:
            trained = slow.observe([0] * bit)
        chance += bool(trained) * probability ** sum(bits) * (1 - probability) ** (steps - sum(bits))
    return chance


def test_rows_are_trained_as_often_as_the_noise_on_the_map_says() -> None:
    """20,000 rows that nobody reads, five steps: a binomial number is trained in the last. Each bound errs with
    probability below 1e-9; 15% more or less noise on the map is rejected."""
    share, least, most = 0.25, 1.5, 4.0
    rule = remembering(memory_share=share, memory_least=least, memory_most=most)
    assert rule.memory_threshold == pytest.approx(LOWER)
    stream, found = NoiseSource(3).selection, Selected(ints())
    for _ in range(5):
        found = rule.select(NOBODY, stream)
    for factor, is_so in ((1.0, True), (1.15, False), (1 / 1.15, False)):
        passes = float(stats.norm.sf(LOWER / (factor * SIGMA1)))
        law = stats.binom(20_000, trained_at_the_end(passes, 5, share, least, most))
        assert bool(law.ppf(5e-10) <= found.rows.size <= law.isf(5e-10)) is is_so


def test_a_row_above_the_first_threshold_is_trained_at_once() -> None:
    """As without memory, whose law it has: a binomial number, at 1e-9."""
    rule = remembering(threshold=2.0, memory_least=6.0)
    found = rule.select(ONE_ROW, NoiseSource(3).selection).rows
    law = stats.binom(20_000, float(stats.norm.sf(2.0 / SIGMA1)))
    assert law.ppf(5e-10) <= found.size <= law.isf(5e-10)
    assert rule.memory is not None
    assert found.size < rule.memory.ids.size
    sure = Counted(SparseCounts(ints(7), np.full(1, 60.0), SPACE.selectable_size))
    assert 7 in rule.select(sure, NoiseSource(3).selection).rows
    high = remembering(threshold=0.5)
    assert high.memory_threshold == 0.5  # never above the first threshold


def test_without_noise_and_within_fest() -> None:
    selection = sdp.AdaFEST(
        threshold=2.0,
        memory_false_positives=100,
        memory_share=0.02,
        memory_least=1.5,
        memory_every=1,
        within=sdp.FEST({"table": range(5, 50)}),
    )
    for sigma in (0.0, 1e-3):
        rule = selection.rule(SPACE, noise_multiplier=sigma, max_grad_norm=1.0, expected_batch_size=1.0)
        inside = Counted(SparseCounts(ints(7, 9), np.array([1.0, 3.0]), SPACE.selectable_size))
        stream = NoiseSource(1).selection
        found = [rule.select(inside, stream).rows for _ in range(3)]
        assert found[0].tolist() == [9]  # 3 is above the threshold
        assert {7, 9} <= set(found[2].tolist()) <= set(range(5, 50))


def test_given_what_passed_nothing_else_of_a_batch_chooses_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity of the choice is that of the map: other data, the same bits, the same rows."""
    released = [
        SparseCounts(rows, np.ones(rows.size), 20_000) for rows in (ints(1, 7), ints(7), ints(3, 7), ints(1))
    ]
    chosen = []
    for batches in ([NOBODY] * 4, [ONE_ROW] * 4):
        passed: Iterator[SparseCounts] = iter(released)
        monkeypatch.setattr(adafest, "noisy_counts_above", lambda *_, passed=passed: next(passed))
        rule = remembering(memory_share=0.1, memory_least=1.5)
        chosen.append([rule.select(batch, NoiseSource(1).selection).rows.tolist() for batch in batches])
    assert chosen[0] == chosen[1] == [[], [7], [7], [1, 7]]


class Canary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 1, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return 100 * self.table(ids).squeeze(1)


def whole_training(canaries: int, seed: int, steps: int, sigma: float) -> float:
    """How often row 7 was trained, and what its weight became: everything that tells of the rare id."""
    model = Canary()
    nn.init.zeros_(model.table.weight)
    private = sdp.PrivacyEngine(seed=seed, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=[torch.full((canaries,), 7)] * steps,
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(
            noise_ratio=1.0,
            threshold=4.0 * sigma,
            contribution_norm=1.0,
            always_on_rows=0,
            memory_false_positives=5.0,
            memory_share=0.1,
            memory_least=1.5,
            memory_every=1,
        ),
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )
    times = 0
    for ids in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()
        grad = model.table.weight.grad
        assert grad is not None
        times += 7 in grad.indices()[0].tolist()
    return times - 0.5 * float(np.tanh(model.table.weight[7].item() / (sigma * steps)))


def run_audit(runs: int, steps: int, sigma: float) -> AuditResult:
    def mechanism(canaries: int, stream: Stream, runs: int) -> list[float]:
        return [whole_training(canaries, 10**6 * canaries + run, steps, sigma) for run in range(runs)]

    delta = 0.02
    claimed = analytic_gaussian_epsilon(delta, np.sqrt(steps) / sigma)
    return audit(mechanism, (0, 1), runs=runs, delta=delta, claimed=claimed, stream=NoiseSource(0).selection)


@pytest.mark.slow
def test_audit_of_a_whole_training() -> None:
    """A rare id is in the data or not; everything released in six steps. Errs with probability at most 1e-9."""
    result = run_audit(800, steps=6, sigma=1.0)
    assert not result.refuted, str(result)
    assert result.lower_bound > 0.2, "an audit that sees nothing proves nothing"


def test_a_memory_of_the_map_without_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: levels of the rows that were read, not of those that were released."""

    def faulty(self: ContributionMap, batch: Batch, stream: Stream) -> Selected:
        assert self.memory is not None
        return Selected(self.memory.observe(batch.contributions(self.contribution_norm).ids))

    monkeypatch.setattr(ContributionMap, "select", faulty)
    result = run_audit(120, steps=3, sigma=6.0)
    assert result.refuted, str(result)


def test_a_memory_that_would_train_nearly_all_rows_by_chance_is_said() -> None:
    """2,000 false positives are a fifth of 10,000 rows, and 1 in 500 of a million."""
    selection = sdp.AdaFEST(memory_false_positives=2000, memory_share=0.02)
    for rows, said in ((10_000, True), (1_000_000, False)):
        space = selection.partition_tables([TableShape("table", rows, 8)])
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
        assert ["memory_share: 0.2 of the rows" in str(each.message) for each in found] == [True] * said


@pytest.mark.parametrize(("rows", "share"), [(10_000, 0.3), (1_000_000, 0.02)])
def test_a_row_must_pass_half_as_often_again_as_by_chance(rows: int, share: float) -> None:
    """2,000 rows pass by chance: a fifth of 10,000, and fewer than the least share of a million."""
    selection = sdp.AdaFEST(memory_false_positives=2000)
    space = selection.partition_tables([TableShape("table", rows, 8)])
    rule = selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    assert rule.memory is not None
    assert rule.memory.share == pytest.approx(share)


def test_one_row_in_twenty_repeats_by_chance() -> None:
    """At the default share, of rows that pass in a tenth of the steps: 5%, within a fifth, the mean of 100 steps."""
    memory, rng = RowMemory(20_000, share=0.15, least=3.0, most=6.0), np.random.default_rng(4)
    trained = [memory.observe(np.flatnonzero(rng.random(20_000) < 0.1)).size for _ in range(200)]
    assert np.mean(trained[100:]) == pytest.approx(0.05 * 20_000, rel=0.2)
