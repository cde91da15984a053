"""Rows that take turns: nothing is lost, nothing is released with less noise than was charged."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import TwoTables
from support.replays import EXAMPLE, SELECTIONS, Training, clicks
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded, GaussianDpEvent
from sparsedp.accounting.cap import EpsilonCap
from sparsedp.audit.recording import replay
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection.pace import UpdateSchedule
from sparsedp.training import Private
from sparsedp.training.noise import Noise
from sparsedp.training.pending_sums import PendingSums

SIGMA, CLIP, BATCH = 1.5, 2.0, 4.0
STD = SIGMA * CLIP


def noise(seed: int = 1, sigma: float = SIGMA) -> Noise:
    space = RowSpace((TableShape("table", 30_000, 1),))
    rule = sdp.FEST({"table": [0]}, always_on_rows=0).rule(
        space, noise_multiplier=sigma, max_grad_norm=CLIP, expected_batch_size=BATCH
    )
    return Noise(rule, 30_000, NoiseSource(seed))


def pending(periods: list[int], copies: int = 4000) -> PendingSums:
    rows = np.arange(len(periods) * copies)
    return PendingSums(UpdateSchedule([rows], [np.repeat(periods, copies)]), [1])


def released(sums: PendingSums, steps: int, made: Noise, value: float = 1.0) -> np.ndarray:
    """Each row gathers ``value`` in every step; the sum of everything that is released of it, times B."""
    rows = np.arange(sums._sums[0].shape[0])
    total = np.zeros(rows.size)
    turns = [sums.take_turns({0: (rows, np.full((rows.size, 1), value))}, made) for _ in range(steps)]
    for ((ids, values),) in [*turns, sums.flush(made)]:
        total[ids] += values[:, 0] * BATCH
    return total


def test_what_is_released_has_the_noise_of_every_step() -> None:
    """Rows of any period: the sum of ten steps, with the variance of ten noises (to 5%, 7 standard errors)."""
    total = released(pending([1, 2, 3, 10, 64]), 10, noise()).reshape(5, -1)
    assert np.abs(total.mean(axis=1) - 10.0).max() < 6 * STD * np.sqrt(10 / 4000)
    assert np.abs(total.std(axis=1) / (STD * np.sqrt(10)) - 1.0).max() < 0.08


def test_each_release_has_the_noise_of_the_steps_that_it_holds() -> None:
    """From the first one on: periods of 1 and 3, the sums of 1, 1, 1 and of 1 to 3 steps."""
    sums, made = pending([1, 3], 12_000), noise()
    rows = np.arange(24_000)
    held = np.zeros(rows.size)
    for _ in range(5):
        held += 1
        ((ids, values),) = sums.take_turns({0: (rows, np.zeros((rows.size, 1)))}, made)
        for steps in np.unique(held[ids]):
            of_steps = values[held[ids] == steps, 0] * BATCH
            assert abs(of_steps.std() / (STD * np.sqrt(steps)) - 1.0) < 0.08
        held[ids] = 0


def test_what_was_saved_at_the_last_step_is_flushed() -> None:
    """A checkpoint gives the waiting sums their noise; they wait all the same, and once."""
    sums, made = pending([64], 100), noise()
    for _ in range(3):
        sums.take_turns({0: (np.arange(100), np.ones((100, 1)))}, made)
    saved = sums.state_dict(made)["sums"][0].numpy()[:, 0]
    ((ids, values),) = sums.flush(made)
    np.testing.assert_allclose(values[:, 0] * BATCH, saved[ids], rtol=1e-6)
    assert ids.size > 90
    assert sums.flush(made)[0][0].size == 0


def test_sums_that_wait_lie_on_the_lattice() -> None:
    """Each step's sum is rounded by itself: the proof adds noise to whole cells."""
    sums, made = pending([64], 50), noise()
    for value in np.random.default_rng(1).normal(size=(3, 50, 1)):
        sums.take_turns({0: (np.arange(50), value)}, made)
    cells = sums._sums[0] / made.lattice
    waiting = sums._noised_at[0] == 0
    assert waiting.sum() > 40
    assert (cells % 1.0 == 0.0).all()
    assert np.abs(cells[waiting]).max() > 1e5


def test_without_noise_nothing_is_lost() -> None:
    assert np.abs(released(pending([1, 2, 7], 5), 11, noise(sigma=0.0), 0.3) - 3.3).max() < 1e-5


def test_an_interrupted_turn_is_released_later_with_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third turn dies when its noise is drawn: what it gathered stays, and so does the noise that it owes."""
    sums, made = pending([2]), noise()
    rows = np.arange(4000)
    step = {0: (rows, np.ones((4000, 1)))}
    for _ in range(3):
        sums.take_turns(step, made)
    sums.flush(made)
    monkeypatch.setattr(Noise, "release_after", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sums.take_turns(step, made)
    monkeypatch.undo()
    ((ids, first),) = sums.take_turns(step, made)
    ((others, second),) = sums.flush(made)
    values = np.concatenate([first, second])[np.argsort(np.concatenate([ids, others])), 0] * BATCH
    assert abs(values.mean() - 2.0) < 6 * STD * np.sqrt(2 / 4000)
    assert abs(values.std() / (STD * np.sqrt(2)) - 1.0) < 0.08


def test_what_is_saved_has_noise_already() -> None:
    """Two runs that go on from one state share the noise up to it, and no sum is ever there without noise."""
    sums, made = pending([64]), noise()
    rows = np.arange(4000)
    for _ in range(4):
        sums.take_turns({0: (rows, np.ones((4000, 1)))}, made)
    state = sums.state_dict(made)
    saved = state["sums"][0].numpy()[:, 0]
    assert abs(saved.std() / (STD * 2.0) - 1.0) < 0.08
    ends = []
    for seed in (11, 12):
        again = pending([64])
        again.load_state_dict(state)
        ends.append(released(again, 5, noise(seed)))
    assert abs((ends[0] - ends[1]).std() / (STD * np.sqrt(10)) - 1.0) < 0.08
    here = released(sums, 5, noise(13))
    assert abs((here - saved).std() / (STD * np.sqrt(5)) - 1.0) < 0.08
    assert abs(here.std() / (STD * 3.0) - 1.0) < 0.08


def test_sums_are_not_copied() -> None:
    for double in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied or pickled"):
            double(pending([2], 1))


@pytest.mark.parametrize(
    "state",
    [
        {"step": -1},
        {"step": 1.0},
        {"sums": [torch.zeros(5, 1, dtype=torch.float64)]},
        {"sums": []},
        {"sums": [torch.zeros(6, 1)]},
        {"sums": [torch.full((6, 1), torch.nan, dtype=torch.float64)]},
        {"noised_at": []},
        {"noised_at": [torch.full((6,), 2)]},
        {"noised_at": [torch.full((6,), -1)]},
        {"noised_at": [torch.zeros(6)]},
    ],
)
def test_a_state_of_other_rows_is_refused(state: dict) -> None:
    right = {
        "step": 1,
        "sums": [torch.zeros(6, 1, dtype=torch.float64)],
        "noised_at": [torch.zeros(6, dtype=torch.int64)],
    }
    pending([2, 3], 3).load_state_dict(right)
    with pytest.raises(ValueError, match="pending sums"):
        pending([2, 3], 3).load_state_dict(right | state)


def test_when_a_seeded_run_is_saved_does_not_change_it() -> None:
    """Its sums are saved as they are: it is not private anyway, and has to end the same."""
    ends = []
    for save in (False, True):
        sums, made = pending([3], 200), noise()
        for _ in range(2):
            sums.take_turns({0: (np.arange(200), np.ones((200, 1)))}, made)
        if save:
            again = pending([3], 200)
            again.load_state_dict(sums.state_dict(None))
            sums = again
        ends.append(released(sums, 3, made))
    assert (ends[0] == ends[1]).all()


def data(examples: int = 24) -> TensorDataset:
    torch.manual_seed(2)
    ids = torch.stack([torch.randint(0, 300, (examples,)), torch.randint(0, 7, (examples,))], dim=1)
    return TensorDataset(ids, torch.randint(0, 2, (examples,)).float())


def gradients(
    selection: sdp.selection.Selection, steps: int, *, flush: bool, sigma: float = 0.0
) -> torch.Tensor:
    """The sum of the gradients on the large table over all steps, of a model that does not move."""
    torch.manual_seed(3)
    model, examples = TwoTables(), data()
    engine = sdp.PrivacyEngine(seed=3)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(examples, batch_size=len(examples)),
        selection=selection,
        noise_multiplier=sigma,
        max_grad_norm=0.3,
        expected_batch_size=len(examples),
    )
    total = torch.zeros(model.large.weight.shape)
    for _ in range(steps):
        for *features, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(*features), label).backward()
            private.optimizer.step()
            assert private.optimizer.last_step is not None
            total += model.large.weight.grad.to_dense()
    if flush:
        engine.flush()
        if model.large.weight.grad is not None:
            total += model.large.weight.grad.to_dense()
    return total


def test_turns_release_the_same_sum_as_every_step() -> None:
    """Seven steps, periods of 1, 2, 3 and 9: after the flush, what FEST releases step by step."""
    rows = list(range(0, 300, 2))
    plain = gradients(sdp.FEST({"large": rows}, always_on_rows=10), 7, flush=False)
    every = {"large": [1, 2, 3, 9, 2] * 30}
    turns = gradients(sdp.FEST({"large": rows}, always_on_rows=10, update_every=every), 7, flush=True)
    assert plain.abs().sum() > 0
    torch.testing.assert_close(turns, plain, atol=1e-6, rtol=1e-5)


def test_a_step_releases_the_rows_that_are_due() -> None:
    torch.manual_seed(0)
    model, examples = TwoTables(), data()
    engine = sdp.PrivacyEngine(seed=1)
    selection = sdp.FEST({"large": range(100)}, always_on_rows=10, update_every=10)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(examples, batch_size=24),
        selection=selection,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=24,
    )
    seen = set()
    for _ in range(10):
        for *features, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(*features), label).backward()
            private.optimizer.step()
            last = private.optimizer.last_step
            assert last is not None
            assert last.rows_per_table["large"] == 10
            seen |= set(model.large.weight.grad.coalesce().indices()[0].tolist())
    assert seen == set(range(100))
    spent = engine.events()
    engine.flush()
    assert engine.events() == spent
    assert private.optimizer.last_step.rows_per_table["large"] == 90
    engine.flush()
    assert private.optimizer.last_step.rows_per_table["large"] == 90  # nothing was left: nothing is released


@pytest.mark.parametrize("name", ["FEST in turns", "FEST of public rows in turns"])
@pytest.mark.parametrize("save", [False, True])
def test_every_step_keeps_its_claim(name: str, save: bool, tmp_path: Path) -> None:
    """Each step's own sums move within the claim, whatever waits, is saved, or is released at the end."""

    def flushed(data: object) -> object:
        training = Training(
            SELECTIONS[name], epochs=4, checkpoint=tmp_path / "state" if save else None, flush=True
        )
        return training(data)

    result = replay(flushed, clicks(), EXAMPLE)
    assert not result.faults, result
    assert result.moved - (name == "FEST in turns") == result.samples > 0
    assert 0.9 < result.largest_share <= 1.0


def started(selection: sdp.selection.Selection, **options: Any) -> tuple[sdp.PrivacyEngine, Private]:
    model, engine = TwoTables(), sdp.PrivacyEngine(seed=1, ledger=options.pop("ledger", None))
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=24),
        selection=selection,
        max_grad_norm=1.0,
        **{"noise_multiplier": 1.0, "expected_batch_size": 24} | options,
    )
    return engine, private


def test_no_flush_in_the_middle_of_a_batch() -> None:
    """How many pieces a batch has is private: a loop that counts them would flush at private moments."""
    engine, private = started(
        sdp.FEST({"large": range(9)}, always_on_rows=10, update_every=4), physical_batch_size=10
    )
    refused = 0
    for ids, label in private.data_loader:
        private.optimizer.zero_grad()
        bce(private.module(ids), label).backward()
        private.optimizer.step()
        if private.optimizer.is_mid_batch:
            refused += 1
            with pytest.raises(RuntimeError, match="of a logical batch"):
                engine.flush()
    assert refused == 2
    engine.flush()


def test_no_flush_within_a_step() -> None:
    engine, private = started(sdp.FEST({"large": range(9)}, always_on_rows=10, update_every=4))
    private.optimizer.optimizers[0].register_step_pre_hook(lambda *_: engine.flush())
    ids, label = next(iter(private.data_loader))
    bce(private.module(ids), label).backward()
    with pytest.raises(RuntimeError, match="in the middle of a step"):
        private.optimizer.step()


def test_a_schedule_that_ends_at_zero_does_not_lose_what_waits() -> None:
    """The flush has the learning rate of the last step, and leaves the schedule's."""
    engine, private = started(sdp.FEST({"large": range(300)}, always_on_rows=10, update_every=1000))
    before = private.module.large.weight.detach().clone()
    for ids, label in private.data_loader:
        bce(private.module(ids), label).backward()
        private.optimizer.step()
    private.optimizer.param_groups[0]["lr"] = 0.0
    engine.flush()
    assert (private.module.large.weight != before).any(dim=1).sum() > 290
    assert private.optimizer.param_groups[0]["lr"] == 0.0


def test_rows_whose_price_is_refused_are_not_trained(tmp_path: Path) -> None:
    """The ledger refuses the price of rows that were chosen before; a second attempt is refused as well."""
    chosen = sdp.FEST({"large": range(9)}, always_on_rows=10, event=GaussianDpEvent(0.5), update_every=4)
    cap = EpsilonCap(5.0, 1e-5)
    for ledger in (None, tmp_path / "ledger"):
        engine, private = started(chosen, ledger=ledger, cap=cap)
        for _ in range(2):
            with pytest.raises(BudgetExceeded):
                next(iter(private.data_loader))
        assert not engine.session.is_selection_final


def test_a_choice_that_fails_is_paid_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for the sums, after the noisy counts were drawn: the next attempt draws, and pays, anew."""
    top_k = sdp.FEST.private_top_k(
        DataLoader(data(), batch_size=24), 5, mu=0.5, always_on_rows=10, update_every=3
    )
    engine, private = started(top_k, ledger=tmp_path / "ledger")
    with monkeypatch.context() as patch:
        patch.setattr(
            "sparsedp.training.session.PendingSums", lambda *_: (_ for _ in ()).throw(MemoryError())
        )
        with pytest.raises(MemoryError):
            next(iter(private.data_loader))
    assert not engine.session.is_selection_final
    next(iter(private.data_loader))
    assert engine.session.pending is not None
    assert [count for _, count in engine.events()] == [2]
    assert len(engine.session.spent()) == 2


def test_noise_that_would_not_add_up_is_refused_at_the_start() -> None:
    engine, private = started(
        sdp.FEST({"large": range(9)}, always_on_rows=10, update_every=4), noise_multiplier=4e8
    )
    with pytest.raises(ValueError, match="update_every: noise"):
        next(iter(private.data_loader))
    assert engine.events() == []


def test_a_checkpoint_of_other_turns_is_refused(tmp_path: Path) -> None:
    def run(every: int) -> sdp.PrivacyEngine:
        engine = sdp.PrivacyEngine(seed=1)
        model = TwoTables()
        engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(), batch_size=24),
            selection=sdp.FEST({"large": range(9)}, always_on_rows=10, update_every=every),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        engine.session.choose_once()
        return engine

    run(4).save(tmp_path / "state")
    for other in (1, 5):
        with pytest.raises(ValueError, match="update_every 4 there"):
            run(other).resume(tmp_path / "state")
    run(4).resume(tmp_path / "state")
