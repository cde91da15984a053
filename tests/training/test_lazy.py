"""Lazy noise: the same law as dense DP-SGD, and nothing leaves before its noise is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.spies import spy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.rows import RowGradient
from sparsedp.training import Private
from sparsedp.training.batch import clip_share
from sparsedp.training.lazy import _Group
from sparsedp.training.lazy_table import LazyTable

STEPS, ROWS, SIGMA, CLIP = 5, 400, 1.0, 1.0


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 3, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(dim=1)


LAZY = sdp.DPSGD(lazy=True)


def start(
    selection: sdp.selection.Selection = LAZY,
    seed: int = 0,
    lr: float = 0.5,
    model: Rows | None = None,
    engine: sdp.PrivacyEngine | None = None,
) -> tuple[sdp.PrivacyEngine, Private, torch.optim.SGD]:
    model = model or Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    engine = engine or sdp.PrivacyEngine(seed=seed, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(torch.arange(20) % 10), batch_size=20),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=selection,
        loss_reduction="sum",
    )
    return engine, private, optimizer


def step(private: Private) -> None:
    for (ids,) in private.data_loader:
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()


def train(selection: sdp.selection.Selection, seed: int) -> tuple[Rows, sdp.PrivacyEngine]:
    engine, private, _ = start(selection, seed)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(private.optimizer, 0.7)
    for _ in range(STEPS):
        step(private)
        scheduler.step()
    return private.module, engine  # type: ignore[return-value]


def unpaid(engine: sdp.PrivacyEngine) -> Tensor:
    """The table as it stands."""
    with engine.session.without_pending_noise():
        return engine.session.module.table.weight.detach().clone()  # type: ignore[union-attr, operator]


def test_the_final_model_has_the_law_of_dense_dpsgd() -> None:
    """Untouched rows: N(0, (sigma C / B)^2 sum lr^2) under a schedule; touched rows the same about their mean.

    Each comparison at 1e-8; a wrong sum of learning rates is rejected.
    """
    rates = 0.5 * 0.7 ** np.arange(STEPS)
    std = SIGMA * CLIP / 20 * np.sqrt(np.sum(rates**2))
    drift = -np.sum(rates) * 2 * clip_share(20) / np.sqrt(3) / 20
    for selection in (sdp.DPSGD(), sdp.DPSGD(lazy=True)):
        untouched, touched = [], []
        for seed in range(30):
            weight = train(selection, seed)[0].state_dict()["table.weight"].numpy()
            untouched.append(weight[10:])
            touched.append(weight[:10] - drift)
        for values in (np.concatenate(untouched).ravel(), np.concatenate(touched).ravel()):
            assert stats.kstest(values / std, "norm").pvalue > 1e-8
        wrong = np.sqrt(np.sum(rates) ** 2 / np.sum(rates**2))
        assert stats.kstest(np.concatenate(untouched).ravel() / std / wrong, "norm").pvalue < 1e-8


def test_debts_are_paid_before_anything_leaves() -> None:
    model, engine = train(LAZY, 0)
    standing = unpaid(engine)
    assert not standing[10:].any()  # still owed
    assert standing[:10].all()  # touched at every step, noise and all
    assert model.table.weight.grad is None  # which rows it has is not private
    state = model.state_dict()
    assert float((state["table.weight"][10:] == 0).float().mean()) < 0.05
    assert not engine.session.lazy.has_pending_noise  # type: ignore[union-attr]


def test_touched_rows_have_the_noise_of_their_step_at_once() -> None:
    """No data without noise in a weight, not even for a moment: the gradient of row 0 is known exactly."""
    rows = []
    for seed in range(200):
        engine, private, _ = start(seed=seed)
        step(private)
        drift = -0.5 * 2 * clip_share(20) / np.sqrt(3) / 20
        rows.append(unpaid(engine)[:10].double().numpy() - drift)
    values = np.concatenate(rows).ravel() / (0.5 * SIGMA * CLIP / 20)
    assert stats.kstest(values, "norm").pvalue > 1e-8


class Wide(nn.Module):
    """Examples that read two thousand rows each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(80_000, 16, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(dim=(1, 2))


def test_touched_and_untouched_rows_have_the_accounted_standard_deviation() -> None:
    """640,000 coordinates of each kind, at 8 standard deviations (1e-15): an error of 1% is noticed."""
    model = Wide()
    engine = sdp.PrivacyEngine(seed=3, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(torch.arange(40_000).view(20, -1)), batch_size=20),
        noise_multiplier=1.7,
        max_grad_norm=3.0,
        selection=LAZY,
        loss_reduction="sum",
    )
    step(private)
    weight = model.state_dict()["table.weight"].double()
    expected = 0.5 * 1.7 * 3.0 / 20
    tolerance = 8 / np.sqrt(2 * 640_000)
    assert tolerance < 0.008
    for rows in (weight[:40_000], weight[40_000:]):
        assert float(rows.std()) == pytest.approx(expected, rel=tolerance)


def accounted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """(learning rate, std) of every step that reaches a table."""
    seen: list[tuple[float, float]] = []
    own = LazyTable.step

    def spied(table: LazyTable, lr: float, std: float, gradient: RowGradient) -> None:
        seen.append((lr, std))
        own(table, lr, std, gradient)

    monkeypatch.setattr(LazyTable, "step", spied)
    return seen


def test_the_learning_rate_of_each_step_and_the_accounted_noise_reach_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = accounted(monkeypatch)
    _, private, optimizer = start()
    scheduler = torch.optim.lr_scheduler.StepLR(private.optimizer, 1, 0.1)
    step(private)
    scheduler.step()
    step(private)
    other = torch.optim.SGD(Rows().parameters(), lr=7.0)
    optimizer.load_state_dict(other.state_dict())  # torch puts another dict in the group's place
    step(private)
    private.optimizer.load_state_dict(torch.optim.SGD(Rows().parameters(), lr=0.3).state_dict())
    step(private)
    private.optimizer.param_groups[0]["lr"] = 0.2
    step(private)
    assert [lr for lr, _ in seen] == pytest.approx([0.5, 0.05, 7.0, 0.3, 0.2])
    assert [std for _, std in seen] == [SIGMA * CLIP / 20] * 5


def test_noise_after_load_state_dict_is_that_of_the_loaded_learning_rate() -> None:
    """The groups as they were when training began would give a tenth of the noise."""
    engine, private, optimizer = start()
    optimizer.load_state_dict(torch.optim.SGD(Rows().parameters(), lr=5.0).state_dict())
    step(private)
    engine.flush()
    found = private.module.state_dict()["table.weight"][10:].std()
    assert float(found) == pytest.approx(5.0 * SIGMA * CLIP / 20, rel=7 / np.sqrt(2 * 390 * 3))


def test_an_optimiser_that_is_no_longer_plain_is_refused() -> None:
    _, private, optimizer = start()
    step(private)
    optimizer.load_state_dict(torch.optim.SGD(Rows().parameters(), lr=5.0, momentum=0.9).state_dict())
    taken = private.optimizer.steps_taken
    with pytest.raises(ValueError, match="plain SGD"):
        step(private)
    assert private.optimizer.steps_taken == taken


def test_a_copy_that_shares_memory_must_not_be_held_while_training_goes_on() -> None:
    _, private, _ = start()
    step(private)
    best = private.module.state_dict()
    with pytest.raises(RuntimeError, match=r"'table'.*shares its memory.*clone"):
        step(private)
    best = {name: values.clone() for name, values in best.items()}
    step(private)
    cycle: list[object] = [private.module.state_dict()]
    cycle.append(cycle)
    del cycle  # garbage that has not been collected yet is no reason to refuse
    step(private)
    assert best


def test_gradient_hooks_on_a_lazy_table_are_refused() -> None:
    model = Rows()
    model.table.weight.register_hook(lambda grad: grad * 0)
    with pytest.raises(ValueError, match=r"'table'.*gradient hook"):
        start(model=model)
    _, private, _ = start()
    private.module.table.weight.register_hook(lambda grad: grad * 0)
    with pytest.raises(ValueError, match=r"'table'.*gradient hook"):
        step(private)


def test_parameters_tied_through_their_memory_are_refused() -> None:
    model = Rows()
    model.other = nn.Embedding(ROWS, 3, sparse=True)
    model.other.weight.data = model.table.weight.data
    with pytest.raises(ValueError, match="share their memory"):
        start(model=model)


def test_a_table_that_shares_its_memory_with_a_dense_parameter_is_refused() -> None:
    model = Rows()
    model.out = nn.Linear(3, ROWS, bias=False)
    model.out.weight.data = model.table.weight.data
    with pytest.raises(ValueError, match="share their memory"):
        start(model=model)


def test_a_refused_start_leaves_ordinary_parameters() -> None:
    model = Rows()
    with pytest.raises(ValueError, match="physical_batch_size"):
        sdp.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.arange(20)), batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=LAZY,
            physical_batch_size=0,
        )
    assert type(model.table.weight) is nn.Parameter


def test_evaluation_reads_rows_with_their_noise() -> None:
    model, _ = train(LAZY, 0)
    model.eval()
    with torch.no_grad():
        assert float(model(torch.arange(50, 60)).abs().min()) > 0
    assert float(model.table.weight[50:60].abs().min()) > 0


def test_detach_pays_too() -> None:
    model, engine = train(LAZY, 0)
    engine.detach()
    assert type(model.table.weight) is nn.Parameter
    assert float((model.table.weight.detach() == 0).float().mean()) < 0.05


def test_the_statement_says_final_model_only() -> None:
    _, engine = train(LAZY, 0)
    assert engine.statement(1e-5).released == "the final model only"


class DerivedSGD(torch.optim.SGD):
    """Its step may be anything."""


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
        lambda p: DerivedSGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_other_optimisers_are_refused(optimizer: object) -> None:
    model = Rows()
    with pytest.raises(ValueError, match=r"plain SGD|weight_decay"):
        sdp.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer(model.parameters()),  # type: ignore[operator]
            data_loader=DataLoader(TensorDataset(torch.arange(20)), batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=sdp.DPSGD(lazy=True),
        )


def test_a_table_without_a_gradient_owes_the_step_on_every_row() -> None:
    engine, private, _ = start()
    step(private)
    engine.flush()
    assert engine.session.lazy is not None
    engine.session.lazy.step(0.5, {})
    for table in engine.session.lazy._tables.values():
        assert table.has_pending_noise
        assert not table._applied.any()


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Embedding(rows, 2, sparse=True) for rows in (5, 6, 7))
        self.out = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.first(ids % 5) + self.second(ids % 6) + self.third(ids % 7)).squeeze(1)


@pytest.mark.parametrize("several", [False, True])
def test_each_table_has_the_learning_rate_of_its_own_group(
    monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Whichever group of whichever optimiser holds it, and whatever a scheduler makes of it."""
    model = Three()
    groups: list[dict[str, Any]] = [
        {"params": [*model.out.parameters(), model.third.weight], "lr": 0.5},
        {"params": [model.second.weight], "lr": 0.25},
        {"params": [model.first.weight], "lr": 0.125},
    ]
    optimizers = [torch.optim.SGD([group]) for group in groups] if several else [torch.optim.SGD(groups)]
    steps = spy(monkeypatch, LazyTable, "step")
    private = sdp.PrivacyEngine(seed=1, secure=False).make_private(
        module=model,
        optimizer=optimizers,
        data_loader=DataLoader(TensorDataset(torch.arange(20)), batch_size=10),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        selection=LAZY,
    )
    for factor in (1.0, 0.5):
        for group in private.optimizer.param_groups:
            group["lr"] *= factor
        steps.clear()
        (ids,) = next(iter(private.data_loader))
        private.module(ids).sum().backward()
        private.optimizer.step()
        found = {call["self"].name: call["lr"] for call in steps}
        assert found == {"first": 0.125 * factor, "second": 0.25 * factor, "third": 0.5 * factor}


def test_rows_can_be_brought_up_to_date_by_table_and_an_unheld_table_is_refused() -> None:
    engine, private, _ = start()
    step(private)
    lazy = engine.session.lazy
    assert lazy is not None
    before = unpaid(engine)
    lazy.apply_pending_noise("table", np.array([50, 60]))
    moved = (unpaid(engine) != before).any(dim=1).nonzero().flatten().tolist()
    assert moved == [50, 60]
    other = Rows()
    with pytest.raises(ValueError, match="does not hold table 'table'"):
        _Group("table", other.table.weight, [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)])
