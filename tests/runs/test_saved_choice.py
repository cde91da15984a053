"""A choice that was paid for is taken up again, not paid for twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file as load_weights
from support.runs import config

from sparsedp.accounting import GaussianDpEvent, Ledger
from sparsedp.runs import resume, start, streaming, trainer
from sparsedp.runs.folder import RunFolder

SMALL = {"data": "generated:400", "expected_batch_size": 100, "fest_mu": 0.05, "checkpoint_every": 1}
SHARES = {**SMALL, "read_share_mu": 0.05}
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


@pytest.mark.parametrize(("algorithm", "payments"), [("lazy", 1), ("fest", 2)])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_run_killed_after_its_shares_pays_once(
    algorithm: str, payments: int, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of reads: the rates that they give are those of the run that was killed, and so are FEST's rows."""
    asked = config(algorithm, **{**SHARES, "seed": seed})
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer.PrivateTrainer, "save", dies)
        for _ in range(2):
            with pytest.raises(Killed):
                start(asked, path) if not path.exists() else resume(path)
    saved = torch.load(RunFolder(path).choice, weights_only=True)
    assert len(saved["shares"]) == 26
    given: list[list[float]] = []
    lower = trainer.lower_rates

    def noting(tables: Any, shares: Any, scale: float) -> None:
        given.append(list(shares))
        lower(tables, shares, scale)

    monkeypatch.setattr(trainer, "lower_rates", noting)
    resume(path)
    assert given == [saved["shares"]]
    assert choices(path) == [payments]
    if seed is not None:
        start(asked, tmp_path / "whole")
        assert given == [saved["shares"]] * 2
        whole, resumed = (load_weights(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_killed_between_its_choice_and_its_shares_pays_for_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "largest_counts", dies)
        with pytest.raises(Killed):
            start(config("fest", **{**SHARES, "seed": None}), path)
    assert choices(path) == [1]
    resume(path)
    assert choices(path) == [2]


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


@pytest.mark.parametrize(("algorithm", "settings"), [("fest", SMALL), ("lazy", SHARES)])
@pytest.mark.parametrize("harm", [damage, Path.unlink])
def test_a_choice_that_is_lost_is_paid_for_again(
    algorithm: str,
    settings: dict[str, Any],
    harm: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, path = config(algorithm, **{**settings, "seed": None}), tmp_path / "run"
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


@pytest.mark.parametrize(("algorithm", "settings"), [("fest", SMALL), ("lazy", SHARES)])
def test_a_choice_without_its_ledger_is_refused(
    algorithm: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer.PrivateTrainer, "save", dies)
        with pytest.raises(Killed):
            start(config(algorithm, **{**settings, "seed": None}), path)
    RunFolder(path).ledger.unlink()
    with pytest.raises(ValueError, match=r"does not hold the .* bytes that were noted"):
        resume(path)
