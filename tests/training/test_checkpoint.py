"""Interrupted and resumed, a seeded run ends with the same bits; what is exported may be released."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.models import TwoTables
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private

STEPS = 20
CASES: dict[str, tuple[Callable, Callable]] = {  # type: ignore[type-arg]
    "sgd": (lambda: sdp.AdaFEST(false_positives=3, always_on_rows=10), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (lambda: sdp.AdaFEST(false_positives=3), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "lazy": (lambda: sdp.DPSGD(lazy=True), lambda p: torch.optim.SGD(p, lr=0.1)),
    "private top-k": (
        lambda: sdp.FEST.private_top_k({"large": torch.arange(300).numpy()}, 30, mu=0.5, always_on_rows=10),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
}


def start(case: str, seed: int | None = 5) -> tuple[sdp.PrivacyEngine, Private]:
    torch.manual_seed(0)
    model = TwoTables()
    generator = torch.Generator().manual_seed(1)
    ids = torch.stack(
        [
            torch.randint(0, 300, (400,), generator=generator),
            torch.randint(0, 7, (400,), generator=generator),
        ],
        1,
    )
    selection, optimizer = CASES[case]
    engine = sdp.PrivacyEngine(seed=seed, secure=seed is None)
    private = engine.make_private(
        module=model,
        optimizer=optimizer(model.parameters()),
        data_loader=DataLoader(TensorDataset(ids, (ids[:, 1] % 2).float()), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection(),
    )
    return engine, private


def train(private: Private, until: int) -> None:
    while private.optimizer.steps_taken < until:
        for ids, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(ids), label).backward()
            private.optimizer.step()
            if private.optimizer.steps_taken == until:
                return


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop", [1, 7, 19])
def test_a_resumed_run_is_bit_identical(case: str, stop: int, tmp_path: Path) -> None:
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
@pytest.mark.parametrize("case", ["sgd", "adagrad", "lazy"])
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


def test_other_terms_are_refused(tmp_path: Path) -> None:
    engine, private = start("sgd")
    train(private, 2)
    engine.save(tmp_path / "run.ckpt")
    model = TwoTables()
    other = sdp.PrivacyEngine(seed=5, secure=False)
    other.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.zeros(400, 2).long(), torch.zeros(400)), batch_size=20),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
    )
    with pytest.raises(ValueError, match=r"noise_multiplier 1.0 there, 0.5 here"):
        other.resume(tmp_path / "run.ckpt")
    (tmp_path / "run.ckpt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        other.resume(tmp_path / "run.ckpt")


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


def test_steps_after_the_checkpoint_stay_paid_for(tmp_path: Path) -> None:
    def run(resume: bool, until: int) -> sdp.PrivacyEngine:
        torch.manual_seed(0)
        model = TwoTables()
        engine = sdp.PrivacyEngine(ledger=tmp_path / "data.ledger")
        private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(
                TensorDataset(torch.zeros(400, 2).long(), torch.zeros(400)), batch_size=20
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=sdp.AdaFEST(always_on_rows=10),
        )
        if resume:
            engine.resume(tmp_path / "run.ckpt")
        else:
            train(private, 3)
            engine.save(tmp_path / "run.ckpt")
        train(private, until)
        return engine

    engine = run(resume=False, until=10)
    engine.detach()
    engine = run(resume=True, until=10)
    total = sum(count for _, count in engine.events())
    assert total >= 17
    assert "ledger" in str(engine.statement(1e-5))
    engine.detach()


def test_export_holds_weights_and_statement_only(tmp_path: Path) -> None:
    engine, private = start("lazy", seed=None)
    train(private, 3)
    engine.export(tmp_path / "model.safetensors", delta=1e-5)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(private.module.state_dict())
        assert "add-or-remove-one" in file.metadata()["privacy"]
        assert set(file.metadata()) == {"privacy"}
        assert torch.equal(file.get_tensor("large.weight"), private.module.state_dict()["large.weight"])


def test_export_of_a_run_that_is_not_private_is_refused(tmp_path: Path) -> None:
    engine, private = start("sgd")
    train(private, 1)
    with pytest.raises(ValueError, match="not private"):
        engine.export(tmp_path / "model.safetensors", delta=1e-5)
    assert not (tmp_path / "model.safetensors").exists()
    engine.export(tmp_path / "model.safetensors", delta=1e-5, allow_not_private=True)
