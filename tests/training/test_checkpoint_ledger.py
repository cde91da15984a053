"""Resuming a run whose steps are on a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.checkpoints import ADAFEST, make, train
from support.models import TwoTables
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting.ledger.format import LedgerDamaged


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


def ledger_run(ledger: Path | None, checkpoint: Path, resume: bool = False) -> sdp.PrivacyEngine:
    engine, private = make(ADAFEST, engine=sdp.PrivacyEngine(ledger=ledger))
    if resume:
        engine.resume(checkpoint)
    train(private, private.optimizer.steps_taken + 2)
    if not resume:
        engine.save(checkpoint)
    engine.detach()
    return engine


def test_an_older_copy_of_the_ledger_is_refused(tmp_path: Path) -> None:
    """Shorter, or grown again by other runs to the length that was noted: its contents are not the same."""
    state, path = tmp_path / "data.ledger", tmp_path / "run.ckpt"
    ledger_run(state, tmp_path / "first.ckpt")
    old = state.read_bytes()
    ledger_run(state, path)
    noted = int(torch.load(path, weights_only=True)["ledger"].split(":")[1])
    ledger_run(state, path, resume=True)  # the same ledger, longer by now
    state.unlink()
    state.write_bytes(old)
    assert len(old) < noted
    with pytest.raises(LedgerDamaged, match=r"data\.ledger does not hold.*older copy"):
        ledger_run(state, path, resume=True)
    while state.stat().st_size < noted:
        ledger_run(state, tmp_path / "other.ckpt")
    with pytest.raises(LedgerDamaged, match=r"data\.ledger does not hold.*older copy"):
        ledger_run(state, path, resume=True)


def test_another_ledger_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    ledger_run(tmp_path / "data.ledger", path)
    with pytest.raises(ValueError, match="ledger one there, none here"):
        ledger_run(None, path, resume=True)
    noted = int(torch.load(path, weights_only=True)["ledger"].split(":")[1])
    while not (tmp_path / "else.ledger").exists() or (tmp_path / "else.ledger").stat().st_size < noted:
        ledger_run(tmp_path / "else.ledger", tmp_path / "other.ckpt")
    with pytest.raises(LedgerDamaged, match="another ledger"):
        ledger_run(tmp_path / "else.ledger", path, resume=True)
    ledger_run(None, path)
    with pytest.raises(ValueError, match="ledger none there, one here"):
        ledger_run(tmp_path / "data.ledger", path, resume=True)
