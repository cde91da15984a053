"""A choice that was paid for is taken up again, not paid for twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file as load_weights
from support.runs import config

from sparsedp.accounting import GaussianDpEvent, Ledger
from sparsedp.runs import resume, start, streaming, trainer
from sparsedp.runs.folder import RunFolder

SMALL = {"data": "generated:400", "expected_batch_size": 100, "fest_mu": 0.05, "checkpoint_every": 1}
STREAM = {**SMALL, "data": "generated:300x3", "period": 1}


class Killed(BaseException):
    """Ends a run where a kill would."""


def dies(*_args: object, **_options: object) -> None:
    raise Killed


def choices(path: Path) -> list[int]:
    """How often each ledger of a run has paid for a choice."""
    found = []
    for ledger in sorted(path.rglob("run.ledger")):
        events = Ledger.read(ledger).events()
        found.append(sum(count for event, count in events if isinstance(event, GaussianDpEvent)))
    return found


@pytest.mark.parametrize("seed", [None, 1])
def test_a_run_killed_after_its_choice_pays_once(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, path = config("fest", **{**SMALL, "seed": seed}), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer.PrivateTrainer, "save", dies)
        with pytest.raises(Killed):
            start(asked, path)
    assert RunFolder(path).choice.exists()
    assert not RunFolder(path).checkpoint.exists()
    rows = torch.load(RunFolder(path).choice, weights_only=True)["chosen"]["rows"]
    resume(path)
    assert choices(path) == [1]
    saved = torch.load(RunFolder(path).checkpoint, weights_only=True)["chosen"]["rows"]
    assert all(torch.equal(rows[name], saved[name]) for name in rows)
    if seed is not None:  # a seeded run goes on as if nothing had happened
        start(asked, tmp_path / "whole")
        whole, resumed = (load_weights(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_period_killed_after_its_counts_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(streaming._State, "save", dies)
        with pytest.raises(Killed):
            start(config("fest", **{**STREAM, "seed": None}), path)
    assert RunFolder(path).choice.exists()
    resume(path)
    assert choices(path) == [1, 1]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("harm", [damage, Path.unlink])
def test_a_choice_that_is_lost_is_paid_for_again(
    harm: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, path = config("fest", **{**SMALL, "seed": None}), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer.PrivateTrainer, "save", dies)
        with pytest.raises(Killed):
            start(asked, path)
    harm(RunFolder(path).choice)
    if harm is damage:
        with pytest.warns(UserWarning, match="chosen, and paid for, again"):
            resume(path)
    else:
        resume(path)
    assert choices(path) == [2]


def test_a_choice_without_its_ledger_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer.PrivateTrainer, "save", dies)
        with pytest.raises(Killed):
            start(config("fest", **{**SMALL, "seed": None}), path)
    RunFolder(path).ledger.unlink()
    with pytest.raises(ValueError, match=r"does not hold the .* bytes that were noted"):
        resume(path)
