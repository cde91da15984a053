"""Interrupted and resumed, a seeded run ends with the same bits; what is exported may be released."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import ADAFEST, CASES, make, start, train
from support.models import TwoTables
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting import GaussianDpEvent, epsilon_of
from sparsedp.training import Private
from sparsedp.training.checkpoint import write_state

STEPS = 20


@pytest.mark.parametrize("case", [case for case in CASES if case != "memory"])
@pytest.mark.parametrize("stop", [1, 7, 19])
def test_a_resumed_run_is_bit_identical(case: str, stop: int, tmp_path: Path) -> None:
    """But for AdaFEST's memory, which must begin new sums."""
    engine, private = start(case)
    train(private, STEPS)
    expected, statement = private.module.state_dict(), engine.statement(1e-5)
    engine, private = start(case)
    train(private, stop)
    engine.save(tmp_path / "run.ckpt")
    train(private, stop + 1)  # work that is lost with the crash
    engine, private = start(case)
    engine.resume(tmp_path / "run.ckpt")
    assert private.optimizer.steps_taken == stop
    train(private, STEPS)
    for name, values in private.module.state_dict().items():
        assert torch.equal(values, expected[name]), name
    assert engine.statement(1e-5) == statement


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from training.test_checkpoint import start, train, STEPS
engine, private = start({case!r})
path = Path({path!r})
if path.exists():
    engine.resume(path)
while private.optimizer.steps_taken < STEPS:
    train(private, private.optimizer.steps_taken + 1)
    engine.save(path)
    print(private.optimizer.steps_taken, flush=True)
torch.save(private.module.state_dict(), path.with_suffix(".final"))
print("done", str(engine.statement(1e-5)), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sgd", "adagrad", "lazy", "lazy top-k"])
def test_a_run_killed_at_random_steps_ends_the_same(case: str, tmp_path: Path) -> None:
    """Real processes, SIGKILL after each of several steps, the last one runs to the end."""
    path = tmp_path / "run.ckpt"
    code = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parents[1]), case=case, path=str(path))
    statement = None
    for attempt in range(8):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("done"):
                statement = line.removeprefix("done ").strip()
            elif attempt < 7:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.wait()
    assert statement is not None
    engine, private = start(case)
    train(private, STEPS)
    final = torch.load(path.with_suffix(".final"), weights_only=True)
    for name, values in private.module.state_dict().items():
        assert torch.equal(values, final[name]), name
    assert statement == " ".join(str(engine.statement(1e-5)).split())


def top_k(mu: float, k: int = 30) -> sdp.selection.PrivateTopK:
    return sdp.FEST.private_top_k({"large": torch.arange(300).numpy()}, k, mu=mu, always_on_rows=10)


def lazy_table(private: Private) -> nn.Parameter:
    return private.module.large.weight  # type: ignore[union-attr, return-value]


OTHER_RUNS: dict[str, tuple[dict, dict, str]] = {  # type: ignore[type-arg]
    "seeded into private": ({}, {"seed": None}, "noise seeded there, private here"),
    "private into seeded": ({"seed": None}, {}, "noise private there, seeded here"),
    "lazy into dense": (
        {"selection": sdp.DPSGD(lazy=True)},
        {"selection": sdp.DPSGD()},
        "selection.lazy True there, False here",
    ),
    "lazy fest into fest": (
        {"selection": sdp.FEST({"large": [1, 2]}, always_on_rows=10, lazy=True)},
        {"selection": sdp.FEST({"large": [1, 2]}, always_on_rows=10)},
        "selection.lazy True there, False here",
    ),
    "dense into lazy": (
        {"selection": sdp.DPSGD()},
        {"selection": sdp.DPSGD(lazy=True)},
        "selection.lazy False there, True here",
    ),
    "another selection": ({}, {"selection": sdp.DPSGD()}, "selection AdaFEST there, DPSGD here"),
    "another mu": (
        {"selection": top_k(0.5)},
        {"selection": top_k(0.1)},
        "selection.mu 0.5 there, 0.1 here",
    ),
    "another mu within": (
        {"selection": sdp.AdaFEST(within=top_k(0.5))},
        {"selection": sdp.AdaFEST(within=top_k(0.1))},
        "selection.within.mu 0.5 there, 0.1 here",
    ),
    "within and without": (
        {"selection": sdp.AdaFEST(within=top_k(0.5), always_on_rows=10)},
        {"selection": sdp.AdaFEST(always_on_rows=10)},
        "selection.within PrivateTopK there, None here",
    ),
    "another noise ratio": (
        {},
        {"selection": sdp.AdaFEST(noise_ratio=2.0, false_positives=3, always_on_rows=10)},
        "selection.noise_ratio 5.0 there, 2.0 here",
    ),
    "other rows": (
        {"selection": sdp.FEST({"large": [3, 1]}, always_on_rows=10)},
        {"selection": sdp.FEST({"large": [1, 4]}, always_on_rows=10)},
        "selection.rows.large has other values",
    ),
    "rows that cost": (
        {"selection": sdp.FEST({"large": [1]}, always_on_rows=10, event=GaussianDpEvent(2.0))},
        {"selection": sdp.FEST({"large": [1]}, always_on_rows=10)},
        "selection.event an event there, None here",
    ),
    "another clip": ({}, {"max_grad_norm": 2.0}, "max_grad_norm 1.0 there, 2.0 here"),
    "another noise multiplier": ({}, {"noise_multiplier": 0.5}, "noise_multiplier 1.0 there, 0.5 here"),
    "another batch size": ({}, {"expected_batch_size": 10}, "sampling_rate 0.05 there, 0.025 here"),
    "batches of the user's own": ({}, {"poisson": False}, "poisson True there, False here"),
    "another optimiser": (
        {},
        {"optimizer": lambda p: torch.optim.Adagrad(p, lr=0.1)},
        "optimizer SGD there, Adagrad here",
    ),
}


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_a_run_of_another_kind_is_refused_by_name(case: str, tmp_path: Path) -> None:
    saved, other, message = OTHER_RUNS[case]
    engine, private = make(**({"selection": ADAFEST} | saved))
    train(private, 2)
    engine.save(tmp_path / "run.ckpt")
    engine, private = make(**({"selection": ADAFEST} | other))
    before = {name: values.clone() for name, values in private.module.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        engine.resume(tmp_path / "run.ckpt")
    for name, values in private.module.state_dict().items():
        assert torch.equal(values, before[name]), name
    assert private.optimizer.steps_taken == 0


def test_a_resumed_run_may_have_a_lower_cap_but_no_higher_one(tmp_path: Path) -> None:
    """Stopping earlier takes nothing from the account; stopping later, or never, is another budget."""

    def capped(epsilon: float | None, delta: float | None = 1e-5) -> sdp.PrivacyEngine:
        engine, private = make(ADAFEST)
        delta = None if epsilon is None else delta
        engine.session.step_config = replace(
            engine.session.step_config, target_epsilon=epsilon, target_delta=delta
        )
        if epsilon == 2.0:
            train(private, 2)
        return engine

    capped(2.0).save(tmp_path / "run.ckpt")
    for epsilon in (2.5, None):
        with pytest.raises(ValueError, match=f"target_epsilon 2.0 there, {epsilon} here"):
            capped(epsilon).resume(tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match=r"target_delta 1e-05 there, 0\.001 here"):
        capped(1.5, 1e-3).resume(tmp_path / "run.ckpt")
    capped(1.5).resume(tmp_path / "run.ckpt")


def test_a_seeded_run_goes_on_with_the_batches_of_the_saved_seed(tmp_path: Path) -> None:
    first, _ = start("sgd", seed=5)
    first.save(tmp_path / "run.ckpt")
    second, _ = start("sgd", seed=6)
    assert not np.array_equal(second.session.loader.indices(3), first.session.loader.indices(3))
    second.resume(tmp_path / "run.ckpt")
    assert np.array_equal(second.session.loader.indices(3), first.session.loader.indices(3))


def test_a_run_that_has_taken_one_step_cannot_resume(tmp_path: Path) -> None:
    """The weights of its step would be gone, and what they cost with them."""
    engine, private = start("sgd")
    engine.save(tmp_path / "run.ckpt")
    ids, label = next(iter(private.data_loader))
    bce(private.module(ids), label).backward()
    private.optimizer.step()
    spent = engine.epsilon(1e-5)
    with pytest.raises(ValueError, match="already taken steps"):
        engine.resume(tmp_path / "run.ckpt")
    assert engine.epsilon(1e-5) == spent


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    engine, _ = start("sgd")
    (tmp_path / "run.ckpt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        engine.resume(tmp_path / "run.ckpt")
    torch.save({"format": 1}, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match="format 2"):
        engine.resume(tmp_path / "old.ckpt")


def test_numbers_from_numpy_can_be_read_back(tmp_path: Path) -> None:
    def again() -> tuple[sdp.PrivacyEngine, Private]:
        return make(
            sdp.AdaFEST(noise_ratio=np.float64(3.0), always_on_rows=np.int64(10)),  # type: ignore[arg-type]
            lambda p: torch.optim.SGD(p, lr=np.float64(0.1)),  # type: ignore[arg-type]
            noise_multiplier=np.float64(1.0),
            expected_batch_size=np.float32(20),
        )

    engine, private = again()
    train(private, 2)
    engine.save(tmp_path / "run.ckpt")
    engine, private = again()
    engine.resume(tmp_path / "run.ckpt")
    assert private.optimizer.steps_taken == 2


@pytest.mark.parametrize("case", ["sgd", "lazy", "private top-k", "lazy top-k"])
def test_the_account_after_a_resume_is_the_saved_one_and_what_comes(case: str, tmp_path: Path) -> None:
    engine, private = start(case)
    train(private, 7)
    saved = engine.events()
    engine.save(tmp_path / "run.ckpt")
    engine, private = start(case)
    engine.resume(tmp_path / "run.ckpt")
    assert engine.events() == saved
    train(private, 9)
    assert engine.events() == [*saved[:-1], (saved[-1][0], 9)]
    assert engine.epsilon(1e-5) == epsilon_of([*saved, (saved[-1][0], 2)], 1e-5)


def test_a_saved_account_that_this_run_would_not_have_is_refused(tmp_path: Path) -> None:
    """Whatever else agrees: the events themselves, to the last digit."""
    engine, private = start("private top-k")
    train(private, 2)
    state = engine.state_dict()
    state["account"]["events"][0][0]["noise_multiplier"] *= 1 + 1e-15
    write_state(state, tmp_path / "run.ckpt")
    engine, _ = start("private top-k")
    with pytest.raises(ValueError, match="an account that this run would not have"):
        engine.resume(tmp_path / "run.ckpt")


def test_earlier_runs_of_the_engine_stay_on_the_account(tmp_path: Path) -> None:
    engine, private = make(ADAFEST, noise_multiplier=2.0)
    train(private, 4)
    engine.detach()
    _, private = make(ADAFEST, engine=engine)
    train(private, 3)
    events = engine.events()
    assert [count for _, count in events] == [4, 3]
    engine.save(tmp_path / "run.ckpt")
    engine, private = make(ADAFEST)
    engine.resume(tmp_path / "run.ckpt")
    assert engine.events() == events


@pytest.mark.parametrize(
    "selection",
    [sdp.DPSGD(lazy=True), sdp.FEST({"large": [0, *range(50, 300)]}, always_on_rows=10, lazy=True)],
    ids=["dpsgd", "fest"],
)
def test_debts_survive_a_resume(selection: sdp.selection.Selection, tmp_path: Path) -> None:
    """Rows that nobody has read since the checkpoint are paid for the steps before and after it."""

    def untouched(stop: int | None) -> Tensor:
        engine, private = make(selection, data_loader=few)
        train(private, stop or STEPS)
        if stop is not None:
            engine.save(tmp_path / "run.ckpt")
            with engine.session.without_pending_noise():
                assert torch.equal(
                    lazy_table(private)[50:].detach(), initial[50:]
                )  # the save has paid nothing
            engine, private = make(selection, data_loader=few)
            engine.resume(tmp_path / "run.ckpt")
            assert engine.session.lazy is not None
            assert engine.session.lazy.has_pending_noise
            train(private, STEPS)
        return private.module.state_dict()["large.weight"][50:] - initial[50:]

    torch.manual_seed(0)
    initial = TwoTables().large.weight.detach().clone()
    few = DataLoader(TensorDataset(torch.zeros(400, 2).long(), torch.zeros(400)), batch_size=20)
    expected = 0.1 / 20 * STEPS**0.5
    for stop in (None, 7):
        found = float(untouched(stop).std())
        assert found == pytest.approx(expected, rel=7 / (2 * 250 * 5) ** 0.5)
    assert found * 0.65**0.5 != pytest.approx(expected, rel=7 / (2 * 250 * 5) ** 0.5)  # 7 steps forgotten


def test_a_checkpoint_with_a_group_s_learning_rate_brings_it_to_lazy_noise(tmp_path: Path) -> None:
    engine, private = make(sdp.DPSGD(lazy=True))
    private.optimizer.param_groups[0]["lr"] = 3.0
    train(private, 1)
    engine.save(tmp_path / "run.ckpt")
    engine, private = make(sdp.DPSGD(lazy=True))
    engine.resume(tmp_path / "run.ckpt")
    before = private.module.state_dict()["large.weight"].clone()
    train(private, 2)
    moved = (private.module.state_dict()["large.weight"] - before).std()
    assert float(moved) == pytest.approx(3.0 / 20, rel=0.15)


def test_a_private_run_keeps_no_stream_state_and_draws_fresh_noise_after_a_resume(tmp_path: Path) -> None:
    engine, private = start("sgd", seed=None)
    train(private, 3)
    engine.save(tmp_path / "run.ckpt")
    assert torch.load(tmp_path / "run.ckpt", weights_only=True)["streams"] is None
    train(private, 4)
    first = private.module.state_dict()["out.weight"].clone()
    engine, private = start("sgd", seed=None)
    engine.resume(tmp_path / "run.ckpt")
    train(private, 4)
    assert not torch.equal(first, private.module.state_dict()["out.weight"])


@pytest.mark.parametrize("part", ["module", "optimizer", "lazy"])
def test_a_resume_that_fails_half_way_leaves_the_account_of_what_it_loaded(part: str, tmp_path: Path) -> None:
    """Torch loads what fits before it says what does not; a loop that then starts anew has trained weights."""
    engine, private = start("lazy", seed=None)
    train(private, 2)
    spent = engine.epsilon(1e-5)
    state = engine.state_dict()
    if part == "module":
        state["module"]["out.weight"] = torch.zeros(1, 1)
    elif part == "optimizer":
        state["optimizer"]["param_groups"] = []
    else:
        state["lazy"] = {}
    write_state(state, tmp_path / "broken")
    engine, private = start("lazy", seed=None)
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        engine.resume(tmp_path / "broken")
    assert engine.epsilon(1e-5) == spent
