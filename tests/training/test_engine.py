"""The engine's face: what it promises, what it refuses, and that torch's own tools keep working."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.clicks import clicks, make, train
from support.models import TwoTables
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded
from sparsedp.training import EpsilonMeter, RowWiseAdagrad, TensorBoardMonitor


def test_calibration_covers_one_off_events_and_the_budget_ends() -> None:
    selection = sdp.FEST.private_top_k({"large": range(300)}, 20, mu=0.3, always_on_rows=10)
    model, engine = TwoTables(), sdp.PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=clicks(),
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
        selection=selection,
    )
    plain = sdp.calibrate(target_epsilon=2.0, target_delta=1e-5, sampling_rate=0.1, steps=10)
    assert engine.noise_multiplier > plain
    train(private, 10)
    assert 1.9 < engine.epsilon(1e-5) <= 2.0 + 1e-9
    with pytest.raises(BudgetExceeded, match="would pass the budget"):
        train(private, 10)
    assert engine.epsilon(1e-5) <= 2.0 + 1e-9


def test_the_module_keeps_its_class_parameters_and_keys() -> None:
    model = TwoTables()
    parameters, keys = dict(model.named_parameters()), list(model.state_dict())
    engine, private = make(model)
    assert private.module is model
    assert type(model) is TwoTables
    assert list(model.state_dict()) == keys
    train(private, 1)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert model.large.weight.grad is not None
    assert model.large.weight.grad.is_sparse
    assert model.large.weight.grad.is_coalesced()
    assert model.out.weight.grad is not None
    assert not model.out.weight.grad.is_sparse
    private.optimizer.zero_grad()
    assert model.large.weight.grad is None
    engine.detach()
    bce(model(torch.zeros(2, 2).long()), torch.zeros(2)).backward()
    assert model.out.weight.grad is not None


def tables_and_dense(model: TwoTables) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    tables = [model.large.weight, model.small.weight]
    return tables, [*model.hidden.parameters(), *model.out.parameters()]


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad", "pair", "row-wise"])
def test_any_optimiser_gets_the_private_gradient(kind: str) -> None:
    model = TwoTables()
    tables, dense = tables_and_dense(model)
    optimizer: Optimizer | list[Optimizer] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=0.1),
        "pair": lambda: [torch.optim.SparseAdam(tables, lr=0.1), torch.optim.Adam(dense, lr=0.1)],
        "row-wise": lambda: [RowWiseAdagrad(tables, lr=0.1), torch.optim.AdamW(dense, lr=0.1)],
    }[kind]()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, private = make(model, optimizer)
    train(private, 3)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    state = private.optimizer.state_dict()
    private.optimizer.load_state_dict(state)


def test_a_model_whose_tables_are_all_small_works_with_adam() -> None:
    model = TwoTables()
    _, private = make(model, torch.optim.Adam(model.parameters()), selection=sdp.AdaFEST(always_on_rows=1000))
    train(private, 2)


def test_schedulers_groups_and_hooks_keep_working() -> None:
    model = TwoTables()
    tables, dense = tables_and_dense(model)
    optimizer = torch.optim.SGD([{"params": tables, "lr": 1.0}, {"params": dense}], lr=0.1)
    calls = []
    model.out.weight.register_hook(lambda g: calls.append("tensor") or g * 0.0)  # type: ignore[func-returns-value]
    model.out.bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    _, private = make(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(private.optimizer, 1, 0.5)
    before = model.out.weight.detach().clone()
    train(private, 1)
    scheduler.step()
    assert calls == ["tensor", "accumulated", "step"]
    assert torch.equal(before, model.out.weight)  # the hook set the gradient to zero
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]


def test_numbers_people_look_at(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from torch.utils.tensorboard import SummaryWriter

    engine, private = make()
    writer = SummaryWriter(str(tmp_path))
    private.optimizer.callbacks.append(TensorBoardMonitor(writer, engine, 1e-5, every=1))
    meter = EpsilonMeter(engine, 1e-5)
    for _ in range(3):
        train(private, 4)
        assert engine.epsilon(1e-5) <= meter() * (1 + 1e-6)
    writer.close()
    assert list(tmp_path.iterdir())
    last = private.optimizer.last_step
    assert last is not None
    assert last.step == 12
    assert last.table_coordinates == 300 * 5 + 7 * 3
    assert last.gradient_size == last.rows_per_table["large"] * 5 + 7 * 3
    assert last.dense_size == 8 * 6 + 6 + 6 + 1
    assert last.reduction == last.table_coordinates / last.gradient_size
    assert private.optimizer.diagnostics is not None
    assert "NOT PRIVATE" in (type(private.optimizer.diagnostics).__doc__ or "")


BAD = {
    "noise_multiplier": (float("nan"), -1.0),
    "max_grad_norm": (0.0, float("inf"), float("nan")),
    "expected_batch_size": (-1.0, 1e9),
    "physical_batch_size": (0,),
    "loss_reduction": ("median",),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_arguments_are_named(name: str, value: object) -> None:
    model = TwoTables()
    with pytest.raises(ValueError, match=name):
        make(model, **{name: value})
    make(model)  # a refused call leaves the module as it was


@pytest.mark.parametrize(
    ("make_selection", "name"),
    [
        (lambda: sdp.AdaFEST(threshold=1.0, false_positives=3), "threshold and false_positives"),
        (lambda: sdp.AdaFEST(noise_ratio=0), "noise_ratio"),
        (lambda: sdp.AdaFEST(contribution_norm=float("nan")), "contribution_norm"),
        (lambda: sdp.AdaFEST(always_on_rows=-1), "always_on_rows"),
        (lambda: sdp.FEST({"large": [-1]}), "large"),
        (lambda: sdp.FEST({"large": [0.5]}), "large"),
        (lambda: sdp.FEST.private_top_k({}, 0), "k must"),
        (lambda: sdp.FEST.private_top_k({}, 5, mu=0), "mu"),
        (lambda: sdp.ExponentialSelection(rows=0, selection_epsilon=1, score_cap=1), "rows"),
        (lambda: sdp.ExponentialSelection(rows=1, selection_epsilon=-1, score_cap=1), "selection_epsilon"),
        (lambda: sdp.RandomSelection(), "rows or coordinates"),
        (lambda: sdp.RandomSelection(rows=1, batch_clip=0), "batch_clip"),
    ],
)
def test_bad_selections_are_named(make_selection, name: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=name):
        make_selection()


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (sdp.FEST({"nowhere": [1]}), "nowhere"),
        (sdp.FEST({"large": [300]}), "300"),
        (sdp.FEST({}, always_on_rows=10), "does not name"),
    ],
)
def test_selections_that_do_not_fit_the_model(selection: sdp.FEST, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(selection=selection)


def test_an_optimiser_that_cannot_take_sparse_gradients_is_refused() -> None:
    model = TwoTables()
    with pytest.raises(ValueError, match=r"Adam cannot take sparse gradients.*large"):
        make(model, torch.optim.Adam(model.parameters()))


def test_an_optimiser_without_all_parameters_is_refused() -> None:
    model = TwoTables()
    with pytest.raises(ValueError, match=r"out\.weight"):
        make(model, torch.optim.SGD(tables_and_dense(model)[0], lr=0.1))


def test_a_second_make_private_is_refused() -> None:
    model = TwoTables()
    engine, _ = make(model)
    with pytest.raises(ValueError, match="already private"):
        make(model)
    with pytest.raises(ValueError, match="already has a run"):
        make(engine=engine)


def test_parameters_put_in_place_of_others_are_noticed_at_the_next_step() -> None:
    for selection in (sdp.AdaFEST(always_on_rows=10), sdp.DPSGD(lazy=True)):
        engine, private = make(selection=selection)
        train(private, 1)
        spent = engine.epsilon(1e-5)
        state = {name: values.clone() for name, values in private.module.state_dict().items()}
        private.module.load_state_dict(state, assign=True)
        with pytest.raises(RuntimeError, match=r"'large.weight' was replaced.*assign=True"):
            train(private, 1)
        assert engine.epsilon(1e-5) == spent  # refused before it is paid


def test_ids_out_of_range_and_float_ids_name_the_table() -> None:
    _, private = make()
    with pytest.raises(ValueError, match=r"large.*300"):
        private.module(torch.tensor([[300, 0]]))
    with pytest.raises(ValueError, match="large"):
        private.module(torch.tensor([[0.5, 0.0]]))


def test_a_batch_whose_first_dimension_is_not_the_examples_is_refused() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 4, sparse=True)
            self.out = nn.Linear(4, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(ids.t()).mean(dim=0)).squeeze(1)

    model = Transposed()
    data = DataLoader(TensorDataset(torch.zeros(60, 3).long(), torch.zeros(60)), batch_size=20)
    _, private = make(model, data_loader=data, selection=sdp.AdaFEST(always_on_rows=0))
    with pytest.raises(ValueError, match="dimension 0"):
        train(private, 1)


def test_one_step_per_batch() -> None:
    _, private = make()
    batches = iter(private.data_loader)
    ids, label = next(batches)
    bce(private.module(ids), label).backward()
    private.optimizer.step()
    bce(private.module(ids), label).backward()
    with pytest.raises(RuntimeError, match="without a new batch"):
        private.optimizer.step()
    ids, label = next(batches)
    bce(private.module(ids), label).backward()
    with pytest.raises(RuntimeError, match="had no step"):
        next(batches)
    next(iter(private.data_loader))
    with pytest.raises(RuntimeError, match="without a backward pass"):
        private.optimizer.step()


def test_epochs_or_steps() -> None:
    for options in ({}, {"epochs": 1, "steps": 3}, {"steps": 0}, {"epochs": -1}):
        model = TwoTables()
        with pytest.raises(ValueError, match=r"epochs|steps"):
            sdp.PrivacyEngine().make_private_with_epsilon(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=clicks(),
                target_epsilon=1.0,
                target_delta=1e-5,
                max_grad_norm=1.0,
                **options,  # type: ignore[arg-type]
            )


def test_noise_beyond_the_lattice_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    engine, private = make(engine=sdp.PrivacyEngine(ledger=tmp_path / "data.ledger"), noise_multiplier=1e15)
    with pytest.raises(ValueError, match="std: at most"):
        train(private, 1)
    assert engine.events() == []


@pytest.mark.parametrize("selection", [sdp.DPSGD(lazy=True), sdp.DPSGD()])
@pytest.mark.parametrize("when", ["before make_private", "in evaluation mode", "before it was frozen"])
def test_gradients_left_from_other_passes_move_nothing(selection: sdp.DPSGD, when: str) -> None:
    """Torch's optimisers step along every ``.grad`` that they find, with noise or without."""
    model, loader = TwoTables(), clicks()
    ids, label = loader.dataset[:]

    def leave_gradients() -> None:
        (1000 * bce(model(ids), label)).backward()

    if when != "in evaluation mode":
        leave_gradients()
    frozen = when == "before it was frozen"
    if frozen:
        model.out.weight.requires_grad_(False)
    _, private = make(model, data_loader=loader, selection=selection)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for ids, label in private.data_loader:
        if when == "in evaluation mode":
            model.eval()
            leave_gradients()
            model.train()
        bce(private.module(ids), label).backward()
        private.optimizer.step()
        break
    moved = {name: float((p.detach() - before[name]).norm()) for name, p in model.named_parameters()}
    assert max(moved.values()) < 1, moved
    assert not frozen or moved["out.weight"] == 0.0


def test_a_private_optimizer_is_not_copied_and_trying_harms_no_other_run() -> None:
    _, private = make()
    with pytest.raises(TypeError, match="same noise"):
        copy.deepcopy(private.optimizer)
    _, another = make()
    train(another, 2)
