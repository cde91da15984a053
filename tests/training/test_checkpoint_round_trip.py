"""Everything that is saved is loaded, and everything that is compared is refused where it differs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TwoTables
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selection
from sparsedp.training import Private, RowWiseAdagrad
from sparsedp.training.checkpoint import write_state

IDS = torch.stack([torch.arange(60) * 7 % 300, torch.arange(60) % 7], 1)


class WithBuffer(TwoTables):
    """A buffer that training changes, and dropout, which draws from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.dropout = nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(super().forward(ids))


def sgd(model: TwoTables) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1)]


def both(model: TwoTables) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.Adam([*model.hidden.parameters(), *model.out.parameters()], lr=0.1),
        RowWiseAdagrad([model.large.weight, model.small.weight], lr=0.1),
    ]


TOP_K = sdp.FEST.private_top_k({"large": range(300)}, 30, mu=0.5, always_on_rows=10)
RUNS: dict[str, tuple[Selection, Callable[[Any], list[torch.optim.Optimizer]]]] = {
    "dpsgd": (sdp.DPSGD(), lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)]),
    "lazy": (sdp.DPSGD(lazy=True), sgd),
    "fest, lazy": (sdp.FEST({"large": [5, 1, 7]}, always_on_rows=10, lazy=True), sgd),
    "adafest": (sdp.AdaFEST(noise_ratio=3.0, threshold=2.0, always_on_rows=10), both),
    "adafest, memory": (
        sdp.AdaFEST(noise_ratio=2.0, threshold=2.0, always_on_rows=10, memory_steps=20),
        both,
    ),
    "adafest+": (sdp.AdaFEST(always_on_rows=10, within=TOP_K), sgd),
    "fest": (sdp.FEST({"large": [5, 1, 7]}, always_on_rows=10), both),
    "fest-turns": (sdp.FEST({"large": [5, 1, 7]}, always_on_rows=10, update_every=3), both),
    "top k": (TOP_K, sgd),
    "random": (sdp.RandomSelection(rows=9, always_on_rows=10, batch_clip=0.5), sgd),
    "exponential": (
        sdp.ExponentialSelection(rows=6, selection_epsilon=5.0, score_cap=0.1, always_on_rows=10),
        sgd,
    ),
    "sparse vector": (
        sdp.SparseVectorSelection(
            rows=6, selection_epsilon=5.0, score_cap=0.1, threshold=0.01, always_on_rows=10
        ),
        sgd,
    ),
}


def start(name: str, ledger: Path | None = None, **options: Any) -> tuple[sdp.PrivacyEngine, Private]:
    torch.manual_seed(0)
    model = WithBuffer()
    engine = sdp.PrivacyEngine(seed=3, secure=False, ledger=ledger)
    selection, optimizers = RUNS[name]
    chosen: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 0.7} | options
    private = engine.make_private(
        module=model,
        optimizer=optimizers(model),
        data_loader=DataLoader(TensorDataset(IDS, torch.ones(60)), batch_size=12),
        selection=selection,
        **chosen,
    )
    return engine, private


def train(private: Private, steps: int) -> None:
    goal = private.optimizer.steps_taken + steps
    while True:
        for ids, target in private.data_loader:
            (private.module(ids) - target).square().mean().backward()
            private.optimizer.step()
            private.module.seen += 1  # type: ignore[operator]
            if private.optimizer.steps_taken == goal:
                return


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every tensor and plain value of a state, with the way to it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list | tuple):
        for n, each in enumerate(value):
            yield from leaves(each, (*path, n))
    else:
        yield path, value


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return type(one) is type(two) and bool(one == two)


@pytest.mark.parametrize("name", RUNS)
def test_what_was_loaded_is_what_was_saved(name: str, tmp_path: Path) -> None:
    """The state of the resumed run is the saved state, leaf by leaf, and three more steps end in the same bits; but for
    AdaFEST's memory, which must begin new sums."""
    engine, private = start(name)
    train(private, 4)
    engine.save(tmp_path / "run.ckpt")
    saved = engine.state_dict()
    assert set(saved) == {
        *("format", "step_config", "selection", "chosen", "private", "account", "earlier", "ledger"),
        *(
            "optimizers",
            "module",
            "buffers",
            "optimizer",
            "steps_taken",
            "loader_position",
            "lazy",
            "pending",
            "lost_choices",
            "last_rates",
        ),
        *("rule", "streams", "torch_rng"),
    }
    assert saved["steps_taken"] == saved["loader_position"] == 4
    assert saved["buffers"] is not None
    again, resumed = start(name)
    torch.manual_seed(99)
    again.resume(tmp_path / "run.ckpt")
    found = dict(leaves(again.state_dict()))
    assert set(found) == {path for path, _ in leaves(saved)}
    for path, value in leaves(saved):
        assert same(value, found[path]), path
    assert again.session.buffers.changed() == ["seen"]
    torch.set_rng_state(saved["torch_rng"])
    train(private, 3)
    torch.set_rng_state(saved["torch_rng"])
    train(resumed, 3)
    first, second = private.module.state_dict(), resumed.module.state_dict()
    if name != "adafest, memory":
        for key, values in first.items():
            assert torch.equal(values, second[key]), key
    assert engine.events() == again.events()


def _another(value: Any) -> Any:
    """A value of the same type that is nearly the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-9) if value else 1e-9
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Tensor):
        return value + 1
    return 1.5  # where nothing was


COMPARED = ("step_config", "selection", "private", "optimizers", "account", "ledger")


@pytest.mark.parametrize("name", RUNS)
def test_every_number_that_is_compared_is_refused_where_it_differs(name: str, tmp_path: Path) -> None:
    """Each leaf of what a resumed run is compared with, changed by itself and as little as can be, or missing."""
    engine, private = start(name)
    train(private, 2)
    saved = engine.state_dict()
    checked, path = 0, tmp_path / "run.ckpt"
    for way, value in leaves({key: saved[key] for key in COMPARED}):
        if way[0] == "account" and way[1] != "events":
            continue
        if way[-1] == "kind":
            continue  # another kind of selection: refused by name elsewhere
        for change in ("changed", "taken away"):
            state = copy.deepcopy(saved)
            place = state
            for key in way[:-1]:
                place = place[key]
            if change == "changed":
                place[way[-1]] = _another(value)
            elif isinstance(place, dict) and value is not None and len(way) > 1:
                del place[way[-1]]
            else:
                continue
            write_state(state, path)
            other, fresh = start(name)
            before = {key: values.clone() for key, values in fresh.module.state_dict().items()}
            with pytest.raises((ValueError, KeyError)):
                other.resume(path)
            assert fresh.optimizer.steps_taken == 0, way
            after = fresh.module.state_dict()
            assert all(torch.equal(values, before[key]) for key, values in after.items()), way
            other.detach()
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize("name", ["dpsgd", "top k"])
def test_steps_and_choices_that_the_account_does_not_have_are_refused(name: str, tmp_path: Path) -> None:
    engine, private = start(name)
    train(private, 2)
    saved = engine.state_dict()
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda state: state.update(steps_taken=1),
        lambda state: state.update(steps_taken=0),
        lambda state: state.update(steps_taken=3),
        lambda state: state["account"].update(events=[]),
        lambda state: state["account"]["events"].pop(),
        lambda state: state.update(format=1),
        lambda state: state.pop("format"),
    ]
    if name == "top k":
        changes.append(lambda state: state.update(chosen=None))
        changes.append(lambda state: state["account"]["events"].pop(0))
    for change in changes:
        state = copy.deepcopy(saved)
        change(state)
        write_state(state, tmp_path / "run.ckpt")
        other, _ = start(name)
        with pytest.raises(ValueError, match="resume"):
            other.resume(tmp_path / "run.ckpt")
        other.detach()


def test_export_without_changed_buffers_warns_of_nothing(tmp_path: Path) -> None:
    engine, private = start("dpsgd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.export(tmp_path / "weights", delta=1e-5, allow_not_private=True)
    train(private, 1)
    with pytest.warns(UserWarning, match="'seen'"):
        engine.export(tmp_path / "weights", delta=1e-5, allow_not_private=True)


@pytest.mark.parametrize("name", ["lazy", "fest, lazy", "adafest", "adafest, memory", "top k"])
def test_saving_leaves_a_run_as_it_is(name: str, tmp_path: Path) -> None:
    """A run that saves after every step ends with the bits of one that never does, pending noise and all."""
    ends = []
    for saves in (False, True):
        engine, private = start(name)
        torch.manual_seed(5)
        for _ in range(4):
            train(private, 1)
            if saves:
                engine.save(tmp_path / "run.ckpt")
            assert engine.session.lazy is None or engine.session.lazy.has_pending_noise
        ends.append({key: values.clone() for key, values in private.module.state_dict().items()})
    assert all(torch.equal(values, ends[1][key]) for key, values in ends[0].items())


@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_run_resumes_before_its_first_step_only(with_ledger: bool, tmp_path: Path) -> None:
    path = tmp_path / "ledger" if with_ledger else None
    engine, private = start("dpsgd", path)
    train(private, 1)
    engine.save(tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match="already taken steps"):
        engine.resume(tmp_path / "run.ckpt")
    engine.detach()
    again, private = start("dpsgd", path)
    again.resume(tmp_path / "run.ckpt")
    assert again.session.lazy is None
    train(private, 1)
    assert again.events()[-1][1] == 2
    with pytest.raises(ValueError, match="has loaded a saved one already"):
        again.resume(tmp_path / "run.ckpt")


@pytest.mark.parametrize("there", [False, True])
def test_a_run_with_a_ledger_and_one_without_do_not_go_on_from_each_other(
    there: bool, tmp_path: Path
) -> None:
    engine, private = start("dpsgd", tmp_path / "ledger" if there else None)
    train(private, 1)
    engine.save(tmp_path / "run.ckpt")
    other, _ = start("dpsgd", None if there else tmp_path / "ledger")
    with pytest.raises(ValueError, match="ledger"):
        other.resume(tmp_path / "run.ckpt")
