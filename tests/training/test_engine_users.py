"""Runs whose unit is the user: events, statements, ledgers, resume, counts before training, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import Ledger, epsilon_of
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.users import user_step_event
from sparsedp.training import Private

ROWS, PEOPLE = 60, 12
USERS = np.arange(ROWS) % PEOPLE
IDS = torch.arange(ROWS)[:, None] % 7


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 2, sparse=True)
        self.out = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids).sum(1)).squeeze(1)


def loader(users: Any = USERS, ids: Tensor = IDS, **options: Any) -> DataLoader[Any]:
    sampler = sdp.UserSampler(users, **{"rows_per_user": 3} | options)
    return DataLoader(TensorDataset(ids, torch.ones(len(ids))), batch_size=8, sampler=sampler)


def make(engine: sdp.PrivacyEngine, data: DataLoader[Any], **options: Any) -> Private:
    model = Net()
    settings = {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "expected_batch_size": 4,
        "unit": "user",
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    return engine.make_private(module=model, data_loader=data, **settings | options)


def train(private: Private, steps: int = 3) -> None:
    for number, (ids, label) in enumerate(private.data_loader):
        private.optimizer.zero_grad()
        (private.module(ids) - label).square().mean().backward()
        private.optimizer.step()
        if number + 1 == steps:
            return


def test_drawing_users_costs_what_drawing_examples_does() -> None:
    engine = sdp.PrivacyEngine()
    private = make(engine, loader())
    train(private)
    event = PoissonSampledDpEvent(4 / PEOPLE, GaussianDpEvent(1.5))
    assert engine.events() == [(event, 3)]
    statement = engine.statement(1e-3)
    assert statement.unit == "user"
    assert statement.epsilon == epsilon_of([(event, 3)], 1e-3)
    assert statement.notes == ("each step draws users, 4 on average, and at most 3 rows of each",)


def test_drawing_rows_of_capped_users_costs_a_mixture() -> None:
    engine = sdp.PrivacyEngine()
    private = make(engine, loader(sample="rows"), selection=sdp.AdaFEST(always_on_rows=0))
    assert len(private.data_loader) == 36 / 4
    train(private)
    assert engine.events() == [(user_step_event(1.5, 4 / 36, 3), 3)]
    statement = engine.statement(1e-3)
    assert (statement.unit, statement.notes) == ("user", ("every user's rows were cut to 3 before training",))


def test_a_price_given_for_rows_is_noted() -> None:
    engine = sdp.PrivacyEngine()
    chosen = sdp.FEST({"table": [1, 2]}, event=GaussianDpEvent(20.0))
    make(engine, loader(), selection=sdp.AdaFEST(within=chosen))
    assert "the price of rows that were chosen before the run was given" in " ".join(engine.account().notes)


@pytest.mark.parametrize("sample", [pytest.param("users", marks=pytest.mark.slow), "rows"])
def test_a_target_epsilon_is_for_users(sample: Any) -> None:
    engine, model = sdp.PrivacyEngine(), Net()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader(sample=sample),
        target_epsilon=3.0,
        target_delta=1e-3,
        max_grad_norm=1.0,
        steps=3,
        expected_batch_size=4,
        unit="user",
    )
    train(private)
    assert 2.9 < engine.epsilon(1e-3) <= 3.0
    with pytest.raises(sdp.accounting.BudgetExceeded):
        train(private)


def test_pieces_and_workers_and_empty_batches() -> None:
    data = DataLoader(
        TensorDataset(IDS, torch.ones(ROWS)),
        batch_size=8,
        sampler=sdp.UserSampler(USERS, rows_per_user=3),
        num_workers=2,
    )
    private = make(sdp.PrivacyEngine(seed=0), data, physical_batch_size=5, expected_batch_size=0.7)
    sizes = []
    for ids, label in private.data_loader:
        sizes.append(len(ids))
        (private.module(ids) - label).square().mean().backward()
        private.optimizer.step()
    assert set(sizes) == {0, 3}, "whole users, of which no two fit into five examples"
    assert private.optimizer.steps_taken == 18


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_a_user_counts_once_before_training(sample: Any) -> None:
    """The histogram of FEST: user 0 reads row 0 in all its rows, the others read row 1 once and row 2 else."""
    users = np.array([0] * 5 + [1, 2, 1, 2])
    ids = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2])[:, None]
    engine = sdp.PrivacyEngine(seed=0)
    data = loader(users, ids, rows_per_user=2, sample=sample)
    selection = sdp.FEST.private_top_k(data, 3, always_on_rows=0)
    make(engine, data, selection=selection, expected_batch_size=2)
    norm = np.sqrt(2)  # users 1 and 2 read two rows each: nothing is clipped
    counts = engine.session._count_rows(data, norm)["table"]
    assert dict(zip(counts.ids.tolist(), counts.values.tolist(), strict=True)) == pytest.approx(
        {0: 1, 1: 2, 2: 2}
    )
    counts = engine.session._count_rows(data, 1.0)["table"]
    clipped = {0: 1, 1: 2 / norm, 2: 2 / norm}
    assert dict(zip(counts.ids.tolist(), counts.values.tolist(), strict=True)) == pytest.approx(clipped)


def test_counts_before_training_must_be_of_the_runs_unit() -> None:
    engine = sdp.PrivacyEngine(seed=0)
    plain = DataLoader(TensorDataset(IDS, torch.ones(ROWS)), batch_size=8)
    private = make(engine, loader(), selection=sdp.FEST.private_top_k(plain, 3, always_on_rows=0))
    with pytest.raises(
        ValueError, match="private_top_k: with unit='user' each user counts once; give a loader"
    ):
        train(private)
    engine = sdp.PrivacyEngine(seed=0)
    finished = sdp.FEST.private_top_k({"table": np.ones(300)}, 3, always_on_rows=0)
    private = make(engine, loader(), selection=sdp.AdaFEST(within=finished))
    with pytest.raises(ValueError, match="which finished counts do not show"):
        train(private)
    engine = sdp.PrivacyEngine(seed=0)
    selection = sdp.FEST.private_top_k(loader(), 3, always_on_rows=0)
    private = make(engine, plain, selection=selection, unit="example")
    with pytest.raises(ValueError, match="a loader with a UserSampler is for unit='user'"):
        train(private)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (loader(), {"unit": "example"}, "unit='example' with a UserSampler"),
        (DataLoader(TensorDataset(IDS)), {}, "unit='user' needs to know whose each row is"),
        (loader(), {"poisson": False}, "unit='user' needs poisson=True"),
        (loader(), {"unit": "household"}, "unit must be 'example' or 'user'"),
        (loader(USERS[:-1]), {}, "users: 59 ids for a dataset of 60 rows"),
        (loader(), {"expected_batch_size": None}, "it counts users, and the loader's batch_size counts rows"),
        (loader(), {"expected_batch_size": 13}, "larger than the dataset of 12 users"),
        (loader(sample="rows"), {"expected_batch_size": 37}, "larger than the dataset of 36 rows"),
        (loader(), {"physical_batch_size": 2}, "physical_batch_size of 2 examples is below rows_per_user 3"),
        (
            loader(sample="rows"),
            {"selection": sdp.ExponentialSelection(rows=2, selection_epsilon=1.0, score_cap=1.0)},
            "selection: a step of ExponentialSelection is not one Gaussian release",
        ),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(sdp.PrivacyEngine(), data, **options)


def test_one_ledger_has_one_unit(tmp_path: Path) -> None:
    engine = sdp.PrivacyEngine(ledger=tmp_path / "users.ledger")
    train(make(engine, loader()))
    engine.detach()
    assert Ledger.read(tmp_path / "users.ledger").unit == "user"
    assert Ledger.read(tmp_path / "users.ledger").statement(1e-3).unit == "user"
    plain = DataLoader(TensorDataset(IDS, torch.ones(ROWS)), batch_size=8)
    with pytest.raises(ValueError, match=r"unit='example': the ledger .* is for the unit 'user'"):
        make(sdp.PrivacyEngine(ledger=tmp_path / "users.ledger"), plain, unit="example")
    with pytest.raises(ValueError, match="an earlier run of this engine has the unit 'user'"):
        make(engine, plain, unit="example")
    engine = sdp.PrivacyEngine(ledger=tmp_path / "users.ledger")  # another number of rows: the same unit
    train(make(engine, loader(rows_per_user=2)))
    assert engine.events() == [(PoissonSampledDpEvent(4 / PEOPLE, GaussianDpEvent(1.5)), 6)]
    with pytest.raises(ValueError, match=r"unit='user': the ledger .* is for the unit 'example'"):
        make(sdp.PrivacyEngine(ledger=Ledger.open(tmp_path / "examples.ledger")), loader())


def test_a_run_resumes_with_the_same_users_only(tmp_path: Path) -> None:
    engine = sdp.PrivacyEngine(seed=0)
    train(make(engine, loader()))
    engine.save(tmp_path / "saved")
    spent = engine.epsilon(1e-3)
    engine.detach()
    for other, message in (
        (loader(rows_per_user=2), "rows_per_user 3 there, 2 here"),
        (loader(reduction="mean"), "user_reduction sum there, mean here"),
        (loader(sample="rows"), "user_sample users there, rows here"),
    ):
        resumed = sdp.PrivacyEngine(seed=0)
        make(resumed, other, expected_batch_size=4)
        with pytest.raises(ValueError, match=message):
            resumed.resume(tmp_path / "saved")
    resumed = sdp.PrivacyEngine(seed=0)
    plain = DataLoader(TensorDataset(IDS, torch.ones(ROWS)), batch_size=8)
    make(resumed, plain, unit="example", expected_batch_size=20)
    with pytest.raises(ValueError, match="unit user there, example here"):
        resumed.resume(tmp_path / "saved")
    resumed = sdp.PrivacyEngine(seed=0)
    private = make(resumed, loader())
    resumed.resume(tmp_path / "saved")
    assert resumed.statement(1e-3).unit == "user"
    assert resumed.epsilon(1e-3) == spent
    train(private, 1)
    assert resumed.epsilon(1e-3) > spent
