"""AdaFEST's memory: when it looks at its sums, what it trains in turn, its law, audit and size."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.accounting import analytic_gaussian_epsilon, split_sigma
from sparsedp.audit import AuditResult, audit
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import NoisySums
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.rows import RowSpace
from sparsedp.selection import Batch, Selected
from sparsedp.selection.adafest import ContributionMap
from sparsedp.selection.row_memory import OFTEN, RowMemory


def ints(*rows: int) -> I64:
    return np.array(rows, dtype=np.int64)


def test_reviews_come_half_as_many_steps_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    review, at = NoisySums.review, list[int]()

    def reviewed(self: NoisySums, stream: Stream) -> SparseCounts:
        at.append(memory._step)
        return review(self, stream)

    monkeypatch.setattr(NoisySums, "review", reviewed)
    memory, stream = RowMemory(30, deviations=2.0, steps=20, every=1), NoiseSource(1).selection
    for _ in range(45):
        memory.observe(SparseCounts.zeros(30), 1.0, stream)
    first = [1, 2, 3, 4, 6, 9, 13, 19]
    assert at == [*first, *(20 + step for step in first), *(40 + step for step in first[:4])]


def trained(memory: RowMemory, counts: SparseCounts, steps: int, std: float = 1.0) -> list[set[int]]:
    stream = NoiseSource(1).selection
    return [set(memory.observe(counts, std, stream).tolist()) for _ in range(steps)]


def test_a_row_that_is_read_now_and_then_is_found_in_time_and_forgotten_in_time() -> None:
    """Half a standard deviation a step: not one, but the sum of a hundred. Then nobody reads it any more."""
    memory = RowMemory(1000, deviations=4.0, steps=100, every=1)
    found = trained(memory, SparseCounts(ints(5), np.full(1, 0.6), 1000), 100)
    assert not any(5 in rows for rows in found[:5])
    assert all(5 in rows for rows in found[95:])
    after = trained(memory, SparseCounts.zeros(1000), 150)
    assert all(5 in rows for rows in after[:40])
    assert not any(5 in rows for rows in after[50:])


def test_rows_take_turns_unless_they_are_read_very_often() -> None:
    """Each is trained in one of three steps, and in every three steps all of them; the last in every step."""
    memory = RowMemory(10, deviations=2.0, steps=1000, every=3)
    counts = SparseCounts(np.arange(10), np.array([4.0] * 9 + [2.0 * OFTEN + 40.0]), 10)
    memory_of_one = trained(memory, counts, 1)
    assert 9 in memory_of_one[0]
    # One standard deviation more at each step would lift the others as well: no reads, so that they stay between.
    memory._passed = SparseCounts(np.arange(10), np.array([2.0 * OFTEN - 0.1] * 9 + [2.0 * OFTEN]), 10)
    memory._due = 10**6
    turns = trained(memory, SparseCounts.zeros(10), 6)
    assert all(9 in rows for rows in turns)
    assert turns[:3] == turns[3:]
    assert sorted(row for rows in turns[:3] for row in rows - {9}) == list(range(9))


@pytest.mark.parametrize("std", [2.5, 0.4])
def test_other_noise_begins_new_sums_and_what_was_chosen_stays_for_a_while(std: float) -> None:
    memory = RowMemory(1000, deviations=4.0, steps=20, every=1)
    assert all(5 in rows for rows in trained(memory, SparseCounts(ints(5), np.full(1, 40.0), 1000), 3))
    sums = memory._sums
    trained(memory, SparseCounts.zeros(1000), 1, std=2.0)
    assert memory._sums is sums  # at most twice as much is summed on
    found = trained(memory, SparseCounts.zeros(1000), 12, std=std * (2.0 if std > 1 else 1.0))
    assert memory._sums is not sums
    assert [5 in rows for rows in found] == [True] * 9 + [False] * 3


def test_it_holds_what_was_read_and_what_passed_and_no_more() -> None:
    """Of 10 million rows: the rows that 100 steps read, and those that passed by chance; at the next sums' begin none."""
    size, rng, stream = 10**7, np.random.default_rng(2), NoiseSource(2).selection
    memory, read, chosen = RowMemory(size, deviations=4.0, steps=100, every=1), set[int](), set[int]()
    for _ in range(100):
        ids = np.unique(rng.integers(0, size, 50))
        read.update(ids.tolist())
        chosen.update(memory.observe(SparseCounts(ids, np.ones(ids.size), size), 1.0, stream).tolist())
    assert memory._sums.known <= len(read | chosen)
    assert memory._sums.known > 4000
    memory.observe(SparseCounts.zeros(size), 1.0, stream)
    assert memory._sums.known < 600  # what passed by chance: 317 expected


def test_a_loaded_memory_has_the_chosen_rows_and_new_sums() -> None:
    """Going on twice from one state would tell rows that were read from others: only these have noise that is drawn."""
    memory = RowMemory(500, deviations=4.0, steps=20, every=2)
    trained(memory, SparseCounts(ints(3, 4), np.full(2, 5.0), 500), 5)
    again = RowMemory(500, deviations=4.0, steps=20, every=2)
    again.load_state_dict(memory.state_dict())
    assert again.state_dict().keys() == {"size", "step", "ids", "values", "until"}
    assert again.state_dict()["ids"].tolist() == memory.state_dict()["ids"].tolist() == [3, 4]
    assert again._sums.known == 0
    assert memory._sums.known >= 2
    nobody = SparseCounts.zeros(500)
    assert trained(again, nobody, 12) == [{4}, {3}] * 4 + [{4}] + [set()] * 3  # in turn, for half of 20 steps


def test_sums_that_are_taken_over_go_on_once_only() -> None:
    first = RowMemory(500, deviations=4.0, steps=20, every=2)
    second = RowMemory(500, deviations=np.nextafter(4.0, 5.0), steps=20, every=2)
    trained(first, SparseCounts(ints(3, 4), np.full(2, 5.0), 500), 5)
    chosen, sums = first.state_dict()["ids"].tolist(), first._sums
    second.take_over(first)
    assert second._sums is sums
    assert first._sums is not sums
    assert first._sums.known == 0
    assert first.state_dict()["ids"].tolist() == second.state_dict()["ids"].tolist() == chosen
    assert (second._step, second._summed, second._due) == (5, 5, 6)
    other = RowMemory(500, deviations=3.0, steps=20, every=2)
    other.take_over(second)  # of another threshold: the chosen rows alone
    assert other._sums.known == 0
    assert other.state_dict()["ids"].tolist() == chosen
    with pytest.raises(ValueError, match="memory: of 500 rows there, of 9 rows here"):
        RowMemory(9, deviations=4.0, steps=20, every=2).take_over(second)


BAD_STATES: dict[str, dict[str, Any]] = {
    "other tables": {"size": 8},
    "not sorted": {"ids": torch.tensor([2, 1])},
    "beyond the tables": {"ids": torch.tensor([1, 9])},
    "negative": {"ids": torch.tensor([-1, 2])},
    "halves of rows": {"ids": torch.tensor([1.5, 2.5])},
    "no tensor": {"ids": [1, 2]},
    "no vector": {"ids": torch.tensor([[1, 2]])},
    "no ids": {"ids": None},
    "no number": {"values": torch.tensor([1.0, float("nan")]).double()},
    "too few sums": {"values": torch.ones(1).double()},
    "sums of another type": {"values": torch.ones(2)},
    "steps that are none": {"step": -1},
    "no steps": {"step": None},
    "too few ends": {"until": torch.tensor([1])},
    "an end that is too late": {"until": torch.tensor([1, 57])},
    "no ends": {"until": None},
}


@pytest.mark.parametrize("fault", BAD_STATES)
def test_a_state_that_is_not_this_memory_s_is_refused(fault: str) -> None:
    memory = RowMemory(9, deviations=4.0, steps=50, every=2)
    trained(memory, SparseCounts(ints(1, 2), np.full(2, 90.0), 9), 3)
    state = memory.state_dict()
    memory.load_state_dict(state)
    with pytest.raises(ValueError, match=r"^memory: "):
        memory.load_state_dict({**state, **BAD_STATES[fault]})
    assert memory.state_dict()["ids"].tolist() == [1, 2]


def test_chosen_rows_are_forgotten_however_often_a_run_goes_on() -> None:
    """Of 20 steps, and loaded after every third: a row that nobody reads is trained for at most half as many more."""
    memory = RowMemory(50, deviations=4.0, steps=20, every=1)
    trained(memory, SparseCounts(ints(7), np.full(1, 50.0), 50), 2)
    found = []
    for _ in range(6):
        again = RowMemory(50, deviations=4.0, steps=20, every=1)
        again.load_state_dict(memory.state_dict())
        memory = again
        found += trained(memory, SparseCounts.zeros(50), 3)
    assert [7 in rows for rows in found] == [True] * 9 + [False] * 9


def test_a_step_that_fails_does_not_end_all_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, add = RowMemory(9, deviations=2.0, steps=50, every=1), NoisySums.add

    def broken(self: NoisySums, *arguments: Any) -> None:
        monkeypatch.setattr(NoisySums, "add", add)
        raise KeyboardInterrupt

    monkeypatch.setattr(NoisySums, "add", broken)
    with pytest.raises(KeyboardInterrupt):
        memory.observe(SparseCounts(ints(1), np.full(1, 50.0), 9), 1.0, NoiseSource(1).selection)
    assert all(1 in rows for rows in trained(memory, SparseCounts(ints(1), np.full(1, 50.0), 9), 3))


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


def remembering(**settings: Any) -> ContributionMap:
    selection = sdp.AdaFEST(
        noise_ratio=1.0,
        always_on_rows=0,
        contribution_norm=1.0,
        **({"threshold": 1.5, "memory_steps": 100, "memory_every": 1} | settings),
    )
    return selection.rule(SPACE, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0)


@pytest.mark.parametrize("steps", [1, 3])
def test_rows_are_trained_as_often_as_the_noise_on_the_map_says(steps: int) -> None:
    """20,000 rows that nobody reads: a binomial number is trained, the same in each step. Each bound errs with
    probability below 1e-9; 15% more or less noise on the map is rejected."""
    rule, stream, found = remembering(), NoiseSource(3).selection, Selected(ints())
    for _ in range(steps):
        found = rule.select(NOBODY, stream)
    for factor, is_so in ((1.0, True), (1.15, False), (1 / 1.15, False)):
        law = stats.binom(20_000, float(stats.norm.sf(1.5 / (factor * SIGMA1))))
        assert bool(law.ppf(5e-10) <= found.rows.size <= law.isf(5e-10)) is is_so


def test_without_noise_and_within_fest() -> None:
    selection = sdp.AdaFEST(
        threshold=2.0, memory_steps=10, memory_every=1, within=sdp.FEST({"table": range(5, 50)})
    )
    for sigma in (0.0, 1e-3):
        rule = selection.rule(SPACE, noise_multiplier=sigma, max_grad_norm=1.0, expected_batch_size=1.0)
        inside = Counted(SparseCounts(ints(7, 9), np.array([1.0, 3.0]), SPACE.selectable_size))
        stream = NoiseSource(1).selection
        assert [rule.select(inside, stream).rows.tolist() for _ in range(3)] == [[9]] * 3
    # Sums grow with the steps, thresholds with their root: 1 a step has passed 2 after four.
    assert [rule.select(inside, stream).rows.tolist() for _ in range(3)] == [[7, 9]] * 3


def test_given_what_passed_nothing_else_of_a_batch_chooses_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity of the choice is that of the map: other data, the same reviews, the same rows."""
    released = [
        SparseCounts(rows, np.full(rows.size, 2.0), 20_000) for rows in (ints(1, 7), ints(7), ints(3, 7))
    ]
    chosen = []
    for batches in ([NOBODY] * 5, [ONE_ROW] * 5):
        passed: Iterator[SparseCounts] = iter([*released, SparseCounts.zeros(20_000)])
        monkeypatch.setattr(NoisySums, "review", lambda *_, passed=passed: next(passed))
        rule = remembering()
        chosen.append([rule.select(batch, NoiseSource(1).selection).rows.tolist() for batch in batches])
    assert chosen[0] == chosen[1] == [[1, 7], [7], [3, 7], [], []]


def test_tables_without_a_row_to_choose_need_no_memory() -> None:
    space = sdp.AdaFEST().partition_tables([TableShape("small", 10, 1)])
    rule = sdp.AdaFEST(memory_steps=5).rule(
        space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0
    )
    assert rule.memory is None


def test_a_rule_takes_over_the_memory_of_the_same_rows_alone() -> None:
    def rule(*rows: int) -> ContributionMap:
        selection = sdp.AdaFEST(threshold=5.0, memory_steps=10, within=sdp.FEST({"table": rows}))
        return selection.rule(SPACE, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0)

    def chosen(rule: ContributionMap) -> list[int]:
        assert rule.memory is not None
        ids: list[int] = rule.memory.state_dict()["ids"].tolist()
        return ids

    first = rule(5, 6, 7)
    sure = Counted(SparseCounts(ints(7), np.full(1, 90.0), SPACE.selectable_size))
    first.select(sure, NoiseSource(1).selection)
    other, same = rule(7, 8, 9), rule(5, 6, 7)
    other.take_over(first)
    same.take_over(first)
    assert (chosen(other), chosen(same)) == ([], [2])


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
            threshold=1.5 * sigma,
            contribution_norm=1.0,
            always_on_rows=0,
            memory_steps=6,
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
    """The control: the rows that were read, not those whose noisy sums passed."""

    def faulty(self: ContributionMap, batch: Batch, stream: Stream) -> Selected:
        return Selected(batch.contributions(self.contribution_norm).ids)

    monkeypatch.setattr(ContributionMap, "select", faulty)
    result = run_audit(120, steps=3, sigma=6.0)
    assert result.refuted, str(result)


ROWS, RESUMES, SIGMA = 20_000, 20, 50.0


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).squeeze(1)


def one_step(batch: Tensor, saved: Path) -> F64:
    """Which rows a step trains; it goes on from what is saved, if there is something, and is saved if not."""
    # A seeded run would draw the same noise again, and is not private for that.
    model, engine = Table(), sdp.PrivacyEngine()
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=[batch],
        noise_multiplier=SIGMA / 2**0.5,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(
            noise_ratio=1.0,
            threshold=0.5 * SIGMA,
            contribution_norm=1.0,
            always_on_rows=0,
            memory_steps=100,
            memory_every=1,
        ),
        expected_batch_size=1,
        poisson=False,
        loss_reduction="sum",
    )
    if saved.exists():
        engine.resume(saved)
    for ids in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()
    if not saved.exists():
        engine.save(saved)
    engine.detach()
    found, grad = np.zeros(ROWS), model.table.weight.grad
    assert grad is not None
    found[grad.indices()[0].numpy()] = 1.0
    return found


def often_trained(everybody: bool, folder: Path) -> I64:
    """In a first step every row is read by one example of its own, or by none; then the run goes on from there, again and
    again, and nobody reads. How often a row was trained in all: so many independent runs as rows."""
    nobody, saved = torch.zeros(1, dtype=torch.long), folder / f"{everybody}.pt"
    times = 100 * one_step(torch.arange(1, ROWS) if everybody else nobody, saved)
    for _ in range(RESUMES):
        times += one_step(nobody, saved)
    return times[1:].astype(np.int64)


def delta_at_least(read: I64, unread: I64, epsilon: float) -> float:
    """A lower bound on delta, by the values that are likelier where the row was read; errs with probability 2e-9."""
    half, values = read.size // 2, np.arange(201)
    likelier = np.array(
        [(read[:half] == v).sum() > np.exp(epsilon) * (unread[:half] == v).sum() for v in values]
    )
    hits, false, runs = likelier[read[half:]].sum(), likelier[unread[half:]].sum(), read.size - half
    low = stats.beta.ppf(1e-9, hits, runs - hits + 1) if hits else 0.0
    return float(low - np.exp(epsilon) * stats.beta.isf(1e-9, false + 1, runs - false))


def test_going_on_twice_from_one_checkpoint_costs_what_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty times: lost steps are paid for, and so are those that follow. The control keeps the sums in the checkpoint, with the
    noise of the rows that were read and without that of the others, which each of the twenty draws anew."""
    (tmp_path / "right").mkdir()
    found = [often_trained(everybody, tmp_path / "right") for everybody in (True, False)]
    mu = np.sqrt(1 + RESUMES) / (SIGMA / 2**0.5)
    claimed = stats.norm.cdf(mu / 2 - 1 / mu) - np.e * stats.norm.cdf(-mu / 2 - 1 / mu)
    assert delta_at_least(found[0], found[1], 1.0) <= claimed
    kept: dict[int, bytes] = {}
    load, save = RowMemory.load_state_dict, RowMemory.state_dict

    def saved(self: RowMemory) -> dict[str, Any]:
        if self._step:
            kept[0] = pickle.dumps({**vars(self), "_sums": vars(self._sums)})
        return save(self)

    def loaded(self: RowMemory, state: dict[str, Any]) -> None:
        load(self, state)
        mine = pickle.loads(kept[0])
        vars(self._sums).update(mine.pop("_sums"))
        vars(self).update(mine)

    monkeypatch.setattr(RowMemory, "state_dict", saved)
    monkeypatch.setattr(RowMemory, "load_state_dict", loaded)
    (tmp_path / "faulty").mkdir()
    found = [often_trained(everybody, tmp_path / "faulty") for everybody in (True, False)]
    assert delta_at_least(found[0], found[1], 1.0) > 1000 * claimed + 0.01
