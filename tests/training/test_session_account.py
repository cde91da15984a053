"""What a run has spent, in every place that says so: the engine, its ledger, its statement and its calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.models import TwoTables
from support.spies import spy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded, Ledger, epsilon_of
from sparsedp.accounting.cap import EpsilonCap
from sparsedp.accounting.events import (
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from sparsedp.clipping import Capture
from sparsedp.randomness import NoiseSource
from sparsedp.selection import Selection
from sparsedp.training import Private
from sparsedp.training import engine as engine_module
from sparsedp.training import session as session_module
from sparsedp.training.session import TrainingSession

EXAMPLES, BATCH, SIGMA, CLIP = 30, 6, 1.1, 0.8
IDS = torch.stack([torch.arange(EXAMPLES) * 7, torch.arange(EXAMPLES) % 7], 1)
TOP_K = sdp.FEST.private_top_k({"large": range(300)}, 20, mu=0.4, always_on_rows=10)
SELECTIONS: dict[str, tuple[Selection, list[DpEvent]]] = {
    "dpsgd": (sdp.DPSGD(), []),
    "lazy": (sdp.DPSGD(lazy=True), []),
    "top k": (TOP_K, [GaussianDpEvent(1 / 0.4)]),
    "adafest+": (sdp.AdaFEST(always_on_rows=10, within=TOP_K), [GaussianDpEvent(1 / 0.4)]),
    "rows that cost": (
        sdp.FEST({"large": [1, 2]}, always_on_rows=10, event=GaussianDpEvent(3.0)),
        [GaussianDpEvent(3.0)],
    ),
}


def step_event(sigma: float, poisson: bool) -> DpEvent:
    inner = GaussianDpEvent(sigma)
    return PoissonSampledDpEvent(BATCH / EXAMPLES, inner) if poisson else inner


def start(engine: sdp.PrivacyEngine, target: float | None = None, **options: Any) -> Private:
    model = TwoTables()
    common: dict[str, Any] = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": DataLoader(TensorDataset(IDS, torch.ones(EXAMPLES)), batch_size=BATCH),
        "max_grad_norm": CLIP,
    } | options
    if target is None:
        return engine.make_private(**{"noise_multiplier": SIGMA} | common)
    return engine.make_private_with_epsilon(target_epsilon=target, target_delta=1e-5, **{"steps": 6} | common)


def train(private: Private, steps: int) -> None:
    goal = private.optimizer.steps_taken + steps
    while private.optimizer.steps_taken < goal:
        for ids, target in private.data_loader:
            (private.module(ids) - target).square().mean().backward()
            private.optimizer.step()
            if private.optimizer.steps_taken == goal:
                return


@pytest.mark.parametrize("with_ledger", [False, True])
@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("target", [None, 8.0])
@pytest.mark.parametrize("name", SELECTIONS)
def test_every_place_says_the_same(
    name: str, target: float | None, poisson: bool, with_ledger: bool, tmp_path: Path
) -> None:
    """Choices once and steps, with their counts, from the first batch on; also after the run has ended."""
    selection, once = SELECTIONS[name]
    path = tmp_path / "ledger" if with_ledger else None
    engine = sdp.PrivacyEngine(ledger=path)
    private = start(engine, target, selection=selection, poisson=poisson)
    event = step_event(engine.noise_multiplier, poisson)
    assert engine.events() == []
    for steps in (1, 3):
        train(private, steps - private.optimizer.steps_taken)
        expected = [*((each, 1) for each in once), (event, steps)]
        assert engine.events() == list(engine.account().events) == engine.session.spent() == expected
        statement = engine.statement(1e-5)
        assert statement.epsilon == pytest.approx(epsilon_of(expected, 1e-5))
        assert statement.private
        assert statement.adjacency == ("add-or-remove-one" if poisson else "zero-out")
        assert statement.unit == "example"
        assert ("final model" in statement.released) == (name == "lazy")
        if path is not None:
            assert list(Ledger.read(path).events())[: len(once)] == [(each, 1) for each in once]
    engine.detach()
    assert engine.events() == expected
    if path is not None:
        assert list(Ledger.read(path).events()) == expected


@pytest.mark.parametrize("name", ["dpsgd", "top k"])
@pytest.mark.parametrize("with_ledger", [False, True])
def test_several_runs_of_one_engine_add_up(name: str, with_ledger: bool, tmp_path: Path) -> None:
    engine = sdp.PrivacyEngine(ledger=tmp_path / "ledger" if with_ledger else None)
    selection, once = SELECTIONS[name]
    expected: list[tuple[DpEvent, int]] = []
    for run, sigma in enumerate((2.0, 3.0, 4.0)):
        private = start(engine, selection=selection, noise_multiplier=sigma)
        train(private, run + 1)
        expected += [*((each, 1) for each in once), (step_event(sigma, True), run + 1)]
        found = engine.events()
        if with_ledger:  # which knows an event once
            assert dict(_merged(found)) == dict(_merged(expected))
        else:
            assert found == expected
        assert engine.epsilon(1e-5) == pytest.approx(epsilon_of(expected, 1e-5))
        engine.detach()
    assert [account.events for account in engine.earlier][1][-1] == (step_event(3.0, True), 2)


def test_rows_that_cost_are_charged_to_each_run_that_uses_them(tmp_path: Path) -> None:
    """What another run on the ledger paid, also one of the same name, was for rows of its own."""
    selection, [event] = SELECTIONS["rows that cost"]
    for paid, run in enumerate(["a", "b", "b"], start=1):
        engine = sdp.PrivacyEngine(ledger=Ledger.open(tmp_path / "ledger", run=run))
        train(start(engine, selection=selection), 1)
        ledger = Ledger.read(tmp_path / "ledger")
        assert dict(_merged(ledger.events()))[repr(event)] == paid


def test_one_engine_used_again_pays_for_other_rows_of_the_same_price(tmp_path: Path) -> None:
    """As it does without a ledger."""
    event = GaussianDpEvent(3.0)
    epsilons = []
    for ledger in (None, tmp_path / "ledger"):
        engine = sdp.PrivacyEngine(ledger=ledger)
        for rows in ([1, 2], [5, 6]):
            train(start(engine, selection=sdp.FEST({"large": rows}, event=event)), 1)
            engine.detach()
        epsilons.append(engine.epsilon(1e-5))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)


def _merged(events: Any) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for event, count in events:
        counts[repr(event)] = counts.get(repr(event), 0) + count
    return list(counts.items())


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("poisson", [True, False])
def test_what_the_noise_is_calibrated_for_is_what_the_run_will_spend(
    monkeypatch: pytest.MonkeyPatch, name: str, poisson: bool
) -> None:
    asked = spy(monkeypatch, engine_module, "calibrate")
    selection, once = SELECTIONS[name]
    engine = sdp.PrivacyEngine()
    earlier = start(engine, noise_multiplier=5.0)
    train(earlier, 2)
    engine.detach()
    start(engine, 6.0, selection=selection, poisson=poisson, steps=7)
    (call,) = asked
    assert (call["target_epsilon"], call["target_delta"], call["steps"]) == (6.0, 1e-5, 7)
    assert call["sampling_rate"] == (BATCH / EXAMPLES if poisson else 1.0)
    assert call["extra_events"] == [*once, SelfComposedDpEvent(step_event(5.0, True), 2)]
    for sigma in (0.7, 1.9):
        assert call["step_event"](sigma) == step_event(sigma, poisson)
    config = engine.session.step_config
    assert (config.noise_multiplier, config.max_grad_norm) == (call["returned"], CLIP)
    assert (config.target_epsilon, config.target_delta, config.planned_steps) == (6.0, 1e-5, 7)
    assert (config.expected_batch_size, config.poisson) == (BATCH, poisson)


@pytest.mark.parametrize("with_ledger", [False, True])
def test_the_cap_counts_earlier_runs_choices_and_steps(
    monkeypatch: pytest.MonkeyPatch, with_ledger: bool, tmp_path: Path
) -> None:
    """Without a ledger everything that was spent is put before the cap; with one, the ledger asks it."""
    required = spy(monkeypatch, EpsilonCap, "require")
    spent = spy(monkeypatch, Ledger, "spend")
    reserved = spy(monkeypatch, Ledger, "step_reserver")
    engine = sdp.PrivacyEngine(ledger=tmp_path / "ledger" if with_ledger else None)
    for sigma in (5.0, 6.0):
        train(start(engine, noise_multiplier=sigma), 2)
        engine.detach()
    selection, once = SELECTIONS["top k"]
    private = start(engine, 6.0, selection=selection)
    reserved.clear()
    train(private, 3)
    cap, event = engine.session._cap, step_event(engine.noise_multiplier, True)
    assert cap is not None
    assert (cap.target_epsilon, cap.target_delta, cap.planned_steps) == (6.0, 1e-5, 6)
    if with_ledger:
        assert [(call["event"], call["cap"]) for call in spent] == [(once[0], cap)]
        assert [(call["event"], call["cap"]) for call in reserved] == [(event, cap)]
        assert not required
        return
    before = [(step_event(5.0, True), 2), (step_event(6.0, True), 2), (once[0], 1)]
    assert [call["event"] for call in required] == [once[0], *[event] * 3]
    assert [call["account"] for call in required] == [
        before[:2],
        before,
        [*before, (event, 1)],
        [*before, (event, 2)],
    ]


def test_the_step_that_passes_the_cap_is_refused_and_not_counted() -> None:
    engine = sdp.PrivacyEngine()
    private = start(engine, 1.0, steps=3)
    train(private, 3)
    before = {name: value.clone() for name, value in private.module.state_dict().items()}
    with pytest.raises(BudgetExceeded):
        train(private, 1)
    assert private.optimizer.steps_taken == 3
    assert engine.epsilon(1e-5) <= 1.0
    assert all(torch.equal(value, before[name]) for name, value in private.module.state_dict().items())


def test_without_noise_nothing_is_private() -> None:
    engine = sdp.PrivacyEngine()
    train(start(engine, noise_multiplier=0.0), 1)
    assert engine.events() == [(NonPrivateDpEvent(), 1)]
    assert not engine.statement(1e-5).private
    assert engine.epsilon(1e-5) == float("inf")


def test_a_refused_start_and_an_ended_run_leave_the_module_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = TwoTables(), sdp.PrivacyEngine()
    detached = spy(monkeypatch, Capture, "detach")
    with pytest.raises(ValueError, match="physical_batch_size"):
        start(
            engine, module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), physical_batch_size=0
        )
    assert len(detached) == 1
    for selection in (sdp.DPSGD(lazy=True), sdp.DPSGD()):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = start(engine, module=model, optimizer=optimizer, selection=selection)
        train(private, 1)
        with pytest.raises(ValueError, match="already private"):
            start(sdp.PrivacyEngine(), module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
        with pytest.raises(ValueError, match="already has a run"):
            start(engine)
        engine.detach()
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
        assert not any("forward" in vars(part) for part in model.modules())
        optimizer.step()
    assert len(engine.earlier) == 2


def test_each_use_of_randomness_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling, selection and noise, none of which may show another."""
    loaders = spy(monkeypatch, session_module, "PoissonLoader")
    engine = sdp.PrivacyEngine(seed=4, secure=False)
    private = start(engine, selection=sdp.AdaFEST(always_on_rows=10))
    same = NoiseSource(4)
    assert loaders[0]["stream"].state() == same.sampling.fork(0).state()
    train(private, 1)
    moved = {name: state["position"] for name, state in engine.source.state_dict().items()}
    assert moved["sampling"] == 0  # its forks are used
    assert moved["selection"] > 0
    assert moved["noise"] > 0
    assert isinstance(engine.session, TrainingSession)


def test_the_rule_has_the_numbers_of_the_configuration() -> None:
    engine = sdp.PrivacyEngine()
    private = start(engine, expected_batch_size=6.4)
    train(private, 1)
    rule, config = engine.session.rule(), engine.session.step_config
    assert (rule.gradient_noise_multiplier, rule.max_grad_norm, rule.expected_batch_size) == (
        SIGMA,
        CLIP,
        6.4,
    )
    assert config.sampling_rate == 6.4 / EXAMPLES
    assert (rule.sensitivity, rule.batch_clip) == (CLIP, None)


def test_an_ended_run_closes_its_ledger_and_an_export_states_its_delta(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = spy(monkeypatch, Ledger, "close")
    engine = sdp.PrivacyEngine(ledger=tmp_path / "ledger")
    train(start(engine), 2)
    for delta in (1e-5, 1e-7):
        engine.export(tmp_path / "weights", delta=delta)
        with safe_open(tmp_path / "weights", framework="pt") as file:
            assert file.metadata()["privacy"] == str(engine.statement(delta))
    assert not closed
    engine.detach()
    assert len(closed) == 1


def test_a_module_around_a_private_one_is_refused() -> None:
    model = TwoTables()
    start(sdp.PrivacyEngine(), module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    around = nn.Sequential(model)
    with pytest.raises(ValueError, match="this module is already private"):
        start(sdp.PrivacyEngine(), module=around, optimizer=torch.optim.SGD(around.parameters(), lr=1.0))
