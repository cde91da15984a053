"""Every use that a run refuses, in one table: none of them may be let through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sparsedp as sdp
from sparsedp.audit import EANA
from sparsedp.clipping import Capture, UnsupportedLayerError
from sparsedp.training import Private, RowWiseAdagrad

IDS = torch.stack([torch.arange(20) * 13 % 300, torch.arange(20) % 7], 1)
DATA = TensorDataset(IDS, torch.ones(20))
ADAFEST = sdp.AdaFEST(always_on_rows=10)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter([(IDS[:4], torch.ones(4))])


def make(model: nn.Module | None = None, optimizer: Any = None, **options: Any) -> Private:
    model = model or TwoTables()
    chosen: dict[str, Any] = {
        "data_loader": DataLoader(DATA, batch_size=5),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    } | options
    chosen["optimizer"] = (optimizer or (lambda m: torch.optim.SGD(m.parameters(), lr=0.1)))(model)
    return sdp.PrivacyEngine().make_private(module=model, **chosen)


def with_epsilon(**options: Any) -> Private:
    model = TwoTables()
    chosen: dict[str, Any] = {
        "data_loader": DataLoader(DATA, batch_size=5),
        "target_epsilon": 1.0,
        "target_delta": 1e-5,
        "max_grad_norm": 1.0,
        "steps": 4,
    } | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sdp.PrivacyEngine().make_private_with_epsilon(module=model, optimizer=optimizer, **chosen)


def _two(dense: Any, tables: Any) -> Callable[[TwoTables], list[torch.optim.Optimizer]]:
    return lambda m: [
        dense([*m.hidden.parameters(), *m.out.parameters()]),
        tables([m.large.weight, m.small.weight]),
    ]


def _sgd(parameters: Any, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, **options)


def _sparse_adam(parameters: Any) -> torch.optim.SparseAdam:
    return torch.optim.SparseAdam(list(parameters), lr=0.1)


def _without(loader: str) -> DataLoader:  # type: ignore[type-arg]
    return (
        DataLoader(DATA, batch_size=None, sampler=[0])
        if loader == "batch size"
        else DataLoader(Stream(), batch_size=None)
    )


AT_THE_START: dict[str, tuple[Callable[[], Any], str]] = {
    "not secure, without a seed": (lambda: sdp.PrivacyEngine(secure=False), "needs a seed"),
    "unknown accountant": (lambda: sdp.PrivacyEngine(accountant="rdp"), "accountant must be"),  # type: ignore[arg-type]
    "negative noise": (lambda: make(noise_multiplier=-0.1), "noise_multiplier must be"),
    "infinite noise": (lambda: make(noise_multiplier=float("inf")), "noise_multiplier must be"),
    "NaN noise": (lambda: make(noise_multiplier=float("nan")), "noise_multiplier must be"),
    "no clipping": (lambda: make(max_grad_norm=float("inf")), "max_grad_norm must be positive"),
    "clipping to zero": (lambda: make(max_grad_norm=0.0), "max_grad_norm must be positive"),
    "no clipping, with epsilon": (lambda: with_epsilon(max_grad_norm=float("inf")), "max_grad_norm must be"),
    "unknown reduction": (lambda: make(loss_reduction="none"), "loss_reduction"),
    "no module": (lambda: Capture(lambda x: x, loss_reduction="sum"), "torch.nn.Module"),  # type: ignore[arg-type]
    "more than the data": (lambda: make(expected_batch_size=21), "larger than the dataset"),
    "no batch": (lambda: make(expected_batch_size=-1), "expected_batch_size must be positive"),
    "no loader": (lambda: make(data_loader=[1]), "must be a torch DataLoader"),
    "no data": (lambda: make(data_loader=DataLoader(TensorDataset(IDS[:0]))), "empty dataset"),
    "own sampler": (lambda: make(data_loader=DataLoader(DATA, sampler=[0, 1])), "not Poisson sampling"),
    "own batch sampler": (lambda: make(data_loader=DataLoader(DATA, batch_sampler=[[0, 1]])), "not Poisson"),
    "loader without batches": (
        lambda: make(data_loader=DataLoader(DATA, batch_size=None)),
        "the loader has no batch_size",
    ),
    "stream": (lambda: make(data_loader=_without("length")), "iterates over a stream"),
    "stream without B": (
        lambda: make(data_loader=_without("length"), poisson=False),
        "divisor of the gradient",
    ),
    "stream in epochs": (
        lambda: with_epsilon(
            data_loader=_without("length"), poisson=False, expected_batch_size=4, steps=None, epochs=1
        ),
        "without a length",
    ),
    "pieces of fixed batches": (lambda: make(poisson=False, physical_batch_size=2), "needs poisson=True"),
    "pieces of nothing": (lambda: make(physical_batch_size=0), "physical_batch_size must be at least 1"),
    "epochs and steps": (lambda: with_epsilon(epochs=1), "give one of them"),
    "neither epochs nor steps": (lambda: with_epsilon(steps=None), "give one of them"),
    "no steps": (lambda: with_epsilon(steps=0), "steps must be at least 1"),
    "no epochs": (lambda: with_epsilon(steps=None, epochs=0.0), "epochs must be positive"),
    "LBFGS": (lambda: make(optimizer=lambda m: torch.optim.LBFGS(m.parameters())), "LBFGS"),
    "foreign parameters": (
        lambda: make(optimizer=lambda m: _sgd([*m.parameters(), nn.Parameter(torch.ones(1))])),
        "1 parameters that are not of the module",
    ),
    "a parameter too few": (lambda: make(optimizer=lambda m: _sgd([*m.parameters()][1:])), r"large\.?\w*'"),
    "a dense parameter too few": (
        lambda: make(optimizer=lambda m: _sgd([*m.parameters()][:-1])),
        r"'out\.bias'",
    ),
    "Adam for sparse rows": (
        lambda: make(selection=ADAFEST, optimizer=lambda m: torch.optim.Adam(m.parameters())),
        "cannot take sparse gradients",
    ),
    "weight decay on sparse rows": (
        lambda: make(selection=ADAFEST, optimizer=lambda m: _sgd(m.parameters(), weight_decay=0.1)),
        "weight_decay",
    ),
    "weight decay in one group of several": (
        lambda: make(
            selection=ADAFEST,
            optimizer=lambda m: _sgd(
                [
                    {"params": [m.large.weight], "weight_decay": 0.1},
                    {"params": [p for p in m.parameters() if p is not m.large.weight]},
                ]
            ),
        ),
        "weight_decay",
    ),
    "SparseAdam for a dense layer": (
        lambda: make(selection=ADAFEST, optimizer=_two(_sparse_adam, _sgd)),
        "SparseAdam cannot take the dense gradient",
    ),
    "momentum under lazy noise": (
        lambda: make(selection=sdp.DPSGD(lazy=True), optimizer=lambda m: _sgd(m.parameters(), momentum=0.9)),
        "plain SGD only",
    ),
    "maximize under lazy noise": (
        lambda: make(selection=sdp.DPSGD(lazy=True), optimizer=lambda m: _sgd(m.parameters(), maximize=True)),
        "plain SGD only",
    ),
    "decay under lazy noise": (
        lambda: make(
            selection=sdp.DPSGD(lazy=True), optimizer=lambda m: _sgd(m.parameters(), weight_decay=0.1)
        ),
        "weight_decay",
    ),
    "batch norm": (lambda: make(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), "BatchNorm"),
}


@pytest.mark.parametrize("use", AT_THE_START)
def test_refused_at_the_start(use: str) -> None:
    start, message = AT_THE_START[use]
    with pytest.raises((ValueError, UnsupportedLayerError), match=message):
        start()


def test_what_is_like_it_but_right_is_not_refused() -> None:
    """The table's other side: each start differs from a refused one in what makes that wrong."""
    make(noise_multiplier=0.0)
    make(expected_batch_size=20)
    make(physical_batch_size=1)
    make(selection=ADAFEST, optimizer=_two(torch.optim.Adam, _sparse_adam))
    make(selection=ADAFEST, optimizer=_two(_sgd, lambda p: RowWiseAdagrad(p, lr=0.1)))
    make(optimizer=lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1))
    make(data_loader=_without("length"), poisson=False, expected_batch_size=4)
    with_epsilon(steps=None, epochs=0.25)
    with_epsilon(steps=1)


def step(private: Private, batch: tuple[Tensor, Tensor] | None = None) -> None:
    ids, target = next(iter(private.data_loader)) if batch is None else batch
    (private.module(ids) - target).square().mean().backward()
    private.optimizer.step()


def test_a_step_before_the_first_batch_is_refused() -> None:
    private = make()
    with pytest.raises(RuntimeError, match=r"without a batch of private\.data_loader"):
        step(private, (IDS[:4], torch.ones(4)))


def test_a_parameter_group_that_comes_later_is_refused() -> None:
    private = make()
    with pytest.raises(RuntimeError, match="add_param_group"):
        private.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("change", ["added", "exchanged", "removed"])
def test_parameters_that_change_under_the_optimiser_are_refused(change: str) -> None:
    private = make()
    held = private.optimizer.optimizers[0].param_groups[0]["params"]
    if change == "added":
        held.append(nn.Parameter(torch.ones(1)))
    elif change == "exchanged":
        held[0] = nn.Parameter(held[0].detach().clone())
    else:
        held.pop()
    with pytest.raises(RuntimeError, match="its parameters changed"):
        step(private)


def test_the_wrapped_optimiser_does_not_step_by_itself_until_it_is_given_back() -> None:
    model, engine = TwoTables(), sdp.PrivacyEngine()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    private = engine.make_private(
        module=model,
        optimizer=own,
        data_loader=DataLoader(DATA, batch_size=5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    step(private)
    with pytest.raises(RuntimeError, match="of the optimiser that was given to make_private"):
        own.step()
    engine.detach()
    own.step()


def test_a_selection_that_is_not_private_says_so_whatever_the_noise() -> None:
    model, engine = TwoTables(), sdp.PrivacyEngine()
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(DATA, batch_size=5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=EANA(),
    )
    statement = engine.statement(1e-5)
    assert not statement.private
    assert any("EANA is not private" in note for note in statement.notes)


@pytest.mark.parametrize("several", [False, True])
def test_state_and_defaults_are_those_of_the_wrapped_optimisers(several: bool) -> None:
    momentum = lambda p: _sgd(p, momentum=0.9)  # noqa: E731
    private = make(optimizer=_two(momentum, _sgd) if several else lambda m: momentum(m.parameters()))
    assert private.optimizer.diagnostics is None
    step(private)
    own = private.optimizer.optimizers
    assert private.optimizer.defaults is own[0].defaults
    assert {**private.optimizer.state} == {p: state for each in own for p, state in each.state.items()}
    assert sum("momentum_buffer" in state for state in private.optimizer.state.values()) >= 4
    assert private.optimizer.diagnostics is not None
