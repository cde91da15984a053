"""What a run paid for its one-off choices: nothing of it is forgotten by a resume, nothing is paid for an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import TwoTables
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import BudgetExceeded, GaussianDpEvent
from sparsedp.accounting.cap import EpsilonCap
from sparsedp.rows import partition_tables
from sparsedp.selection import Selection
from sparsedp.selection.base import free
from sparsedp.training import Private

EXAMPLES = 24
DATA = TensorDataset(
    torch.stack([torch.arange(EXAMPLES) * 7, torch.arange(EXAMPLES) % 7], 1), torch.ones(EXAMPLES)
)
PRICE = GaussianDpEvent(2.0)


def top_k(every: int | None = None, **options: Any) -> Selection:
    given: dict[str, Any] = {"k": 5, "mu": 0.5, "always_on_rows": 10} | options
    return sdp.FEST.private_top_k(
        given.pop("source", DataLoader(DATA, batch_size=24)), update_every=every, **given
    )


def start(engine: sdp.PrivacyEngine, selection: Selection | None = None, **options: Any) -> Private:
    model = TwoTables()
    return engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(DATA, batch_size=6),
        max_grad_norm=1.0,
        selection=selection,
        **{"noise_multiplier": 2.0} | options,
    )


def train(private: Private, steps: int) -> None:
    goal = private.optimizer.steps_taken + steps
    while private.optimizer.steps_taken < goal:
        for ids, target in private.data_loader:
            (private.module(ids) - target).square().mean().backward()
            private.optimizer.step()
            if private.optimizer.steps_taken == goal:
                return


def prices(engine: sdp.PrivacyEngine) -> int:
    """How many choices are on the account."""
    return sum(count for event, count in engine.events() if event == PRICE)


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_choice_made_before_a_resume_stays_on_the_account(
    every: int | None, with_ledger: bool, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger" if with_ledger else None
    engine = sdp.PrivacyEngine(ledger=ledger)
    train(start(engine, top_k(every)), 2)
    engine.save(tmp_path / "state")
    engine.detach()
    for looks in (2, 3):  # a batch is looked at, for which rows are chosen and released, before each resume
        engine = sdp.PrivacyEngine(ledger=ledger)
        next(iter(start(engine, top_k(every)).data_loader))
        engine.resume(tmp_path / "state")
        assert prices(engine) == (looks if with_ledger else 2)
        assert engine.session.optimizer.steps_taken == 2
        engine.save(tmp_path / "state-with-two")
        engine.detach()
    engine = sdp.PrivacyEngine(ledger=ledger)
    start(engine, top_k(every))
    engine.resume(tmp_path / "state-with-two")
    assert prices(engine) == (3 if with_ledger else 2)
    assert list(engine.account().events).count((PRICE, 1)) == 2


@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_run_whose_first_choice_failed_goes_on(
    with_ledger: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger" if with_ledger else None
    engine = sdp.PrivacyEngine(ledger=ledger)
    private = start(engine, top_k(3))
    with monkeypatch.context() as patch:
        patch.setattr(
            "sparsedp.training.session.PendingSums", lambda *_: (_ for _ in ()).throw(MemoryError())
        )
        with pytest.raises(MemoryError):
            next(iter(private.data_loader))
    engine.save(tmp_path / "before")
    train(private, 2)
    spent = engine.events()
    engine.save(tmp_path / "state")
    engine.detach()
    engine = sdp.PrivacyEngine(ledger=ledger)
    private = start(engine, top_k(3))
    engine.resume(tmp_path / "state")
    assert engine.events() == spent
    assert prices(engine) == 2
    train(private, 1)
    if not with_ledger:
        engine = sdp.PrivacyEngine()
        private = start(engine, top_k(3))
        engine.resume(tmp_path / "before")
        assert prices(engine) == 1
        train(private, 1)
        assert prices(engine) == 2


def test_a_checkpoint_with_choices_of_another_price_is_refused(tmp_path: Path) -> None:
    engine = sdp.PrivacyEngine()
    train(start(engine, top_k()), 1)
    state = engine.state_dict()
    state["account"]["events"].insert(0, state["account"]["events"][-1])
    torch.save(state, tmp_path / "state")
    engine = sdp.PrivacyEngine()
    start(engine, top_k())
    with pytest.raises(ValueError, match="account that this run would not have"):
        engine.resume(tmp_path / "state")


def test_a_resumed_run_stays_within_its_cap_beside_earlier_runs(tmp_path: Path) -> None:
    def steps_within(engine: sdp.PrivacyEngine, private: Private) -> int:
        with pytest.raises(BudgetExceeded):
            train(private, 10_000)
        assert engine.epsilon(1e-5) <= 4.0
        return private.optimizer.steps_taken

    cap = EpsilonCap(4.0, 1e-5)
    engine = sdp.PrivacyEngine()
    train(start(engine, cap=cap), 12)
    engine.detach()
    private = start(engine, cap=cap)
    train(private, 1)
    engine.save(tmp_path / "state")
    uninterrupted = steps_within(engine, private)
    engine = sdp.PrivacyEngine()
    private = start(engine, cap=cap)
    engine.resume(tmp_path / "state")
    assert steps_within(engine, private) == uninterrupted


def test_rows_that_were_chosen_outside_are_paid_for_once(tmp_path: Path) -> None:
    chosen = sdp.FEST({"large": [1, 2]}, always_on_rows=10, event=PRICE)
    engine = sdp.PrivacyEngine()
    train(start(engine, chosen), 1)
    engine.save(tmp_path / "state")
    engine = sdp.PrivacyEngine()
    next(iter(start(engine, chosen).data_loader))
    engine.resume(tmp_path / "state")
    assert prices(engine) == 1


def test_a_run_is_resumed_once(tmp_path: Path) -> None:
    """A second one would replace rows that were used, and count the runs before them twice."""
    engine = sdp.PrivacyEngine()
    start(engine, top_k())
    engine.session.choose_once()
    engine.save(tmp_path / "state")
    engine = sdp.PrivacyEngine()
    start(engine, top_k())
    engine.resume(tmp_path / "state")
    with pytest.raises(
        ValueError, match="has loaded a saved one already; make the engine and the model again"
    ):
        engine.resume(tmp_path / "state")


def test_a_choice_and_a_saved_run_that_pass_the_cap_together_are_refused(tmp_path: Path) -> None:
    cap = EpsilonCap(4.0, 1e-5)
    engine = sdp.PrivacyEngine()
    private = start(engine, top_k(), cap=cap)
    with pytest.raises(BudgetExceeded):
        train(private, 10_000)
    engine.save(tmp_path / "state")
    engine = sdp.PrivacyEngine()
    private = start(engine, top_k(), cap=cap)
    next(iter(private.data_loader))
    with pytest.raises(BudgetExceeded, match="one more choice would pass"):
        engine.resume(tmp_path / "state")
    assert prices(engine) == 1
    assert private.optimizer.steps_taken == 0


def test_an_interrupted_resume_leaves_no_sums_without_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sdp.PrivacyEngine()
    train(start(engine, top_k(3)), 2)
    engine.save(tmp_path / "state")
    engine = sdp.PrivacyEngine()
    start(engine, top_k(3))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsedp.training.pending_sums.PendingSums.load_state_dict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.resume(tmp_path / "state")
    assert engine.session.optimizer.steps_taken == 2


@dataclass(frozen=True)
class Own(Selection):
    """A user's selection, whose rule is known only after its choice."""

    def partition_tables(self, tables: Any) -> Any:
        return partition_tables(tables, 10)

    def resolve(self, tables: Any, count_rows: Any, stream: Any, charge: Any = free) -> Selection:
        return sdp.FEST({"large": [1, 2]}, always_on_rows=10)

    def rule(self, *_: Any, **__: Any) -> Any:
        raise ValueError("not chosen yet")


def test_a_selection_without_a_stand_in_trains() -> None:
    private = start(sdp.PrivacyEngine(), Own())
    train(private, 1)
    assert private.optimizer.last_step.rows_per_table["large"] == 2


def test_a_top_k_that_is_updated_in_every_step_is_a_top_k() -> None:
    for selection in (top_k(1), sdp.AdaFEST(within=top_k(1), always_on_rows=10)):
        engine = sdp.PrivacyEngine()
        train(start(engine, selection), 1)
        assert prices(engine) == 1
        chosen = getattr(engine.session.selection, "within", None) or engine.session.selection
        assert chosen.sorted_rows["large"].size == 5


def test_the_refusal_of_a_choice_speaks_of_choices() -> None:
    private = start(sdp.PrivacyEngine(), top_k(mu=3.0), cap=EpsilonCap(1.0, 1e-5))
    with pytest.raises(BudgetExceeded, match=r"one more choice would pass .* 0 choices like it"):
        next(iter(private.data_loader))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 2.5}, "k must be a whole number"),
        ({"k": 2.5, "every": 3}, "k must be a whole number"),
        ({"k": float("nan"), "every": 3}, "k must be a whole number"),
        ({"k": "3"}, "k must be a whole number"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_a_top_k_that_cannot_be_chosen_is_refused_when_it_is_made(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        top_k(**options)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"wrong": np.ones(300)}, "counts: name table 'wrong'; the model's tables are"),
        ({}, r"counts: none for table 'large'"),
        ({"large": np.full(300, 1e300)}, "counts of 'large' must be"),
        ({"large": np.ones((3, 100))}, "counts of 'large' must be one number a row"),
        ({"large": None}, "counts of 'large' must be one number a row"),
        ({"large": {"a": 1}}, "counts of 'large' must be one number a row"),
        ({"large": (np.arange(3),)}, "counts of 'large' must be one number a row"),
        ({"large": np.ones(300) * 1j}, "counts of 'large' must be one number a row"),
    ],
    ids=["wrong", "none", "huge", "2-D", "None", "dict", "1-tuple", "complex"],
)
@pytest.mark.parametrize("every", [None, 3])
def test_counts_that_cannot_be_used_cost_nothing(
    source: Any, words: str, every: int | None, tmp_path: Path
) -> None:
    engine = sdp.PrivacyEngine(ledger=tmp_path / "ledger")
    private = start(engine, top_k(every, source=source))
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            next(iter(private.data_loader))
    assert engine.events() == []


def test_noise_that_does_not_add_up_over_steps_costs_nothing(tmp_path: Path) -> None:
    engine = sdp.PrivacyEngine(ledger=tmp_path / "ledger")
    private = start(engine, top_k(3), noise_multiplier=1e7)
    with pytest.raises(ValueError, match="too much to be added up"):
        next(iter(private.data_loader))
    assert engine.events() == []
