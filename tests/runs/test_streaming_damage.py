"""Streams whose checkpoints or ledgers were damaged or lost: one history, and all that was charged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.interruptions import stop_at
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.accounting import Ledger
from sparsedp.runs import RunConfig, RunFolder, resume, stream, streaming
from sparsedp.runs.result import finished_result
from sparsedp.runs.trainer import PrivateTrainer


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def of_users(tmp_path: Path, *, regular: bool) -> RunConfig:
    return visits_config(prepare_visits(tmp_path, regular=regular), seed=None, epochs=4, checkpoint_every=1)


def of_examples(algorithm: str = "dp-sgd") -> RunConfig:
    small = {"data": "generated:1200x4", "period": 1, "expected_batch_size": 50, "checkpoint_every": 1}
    return config(algorithm, **{**small, "seed": None})


def charged(folder: RunFolder) -> int:
    return sum(count for path in folder.path.rglob("run.ledger") for _, count in Ledger.read(path).events())


@pytest.mark.parametrize("kind", ["users, equal periods", "users", "examples"])
def test_a_stream_that_falls_back_to_an_earlier_period_is_one_history(kind: str, tmp_path: Path) -> None:
    """Killed in its third period: the second, whose end is lost, takes nothing more, and the third begins anew."""
    asked = of_examples() if kind == "examples" else of_users(tmp_path, regular="equal" in kind)
    whole = stream(asked, tmp_path / "whole").period_figures or []
    first, second, _ = (int(each["steps"]) for each in whole)
    with pytest.raises(KeyboardInterrupt):
        stream(asked, tmp_path / "run", stop_at(first + second + 3))
    folder = RunFolder(tmp_path / "run")
    damage(folder.checkpoint)
    with pytest.warns(UserWarning, match="going on from the checkpoint before it"):
        found = resume(folder.path)
    assert finished_result(folder) == found
    assert found.steps + found.lost_steps == charged(folder)
    figures = found.period_figures or []
    assert [each["steps"] for each in figures][:2] == [first, 0]
    lost = [0, second + 3, 0] if "equal" in kind else [0, second, 3]  # equal ones are counted together
    assert [each["lost_steps"] for each in figures] == lost
    assert found.steps == sum(each["steps"] for each in figures) > first
    assert (found.statement or {})["epsilon"] <= (asked.epsilon or 0.0)


def test_without_privacy_the_periods_are_trained_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stream(of_examples("non-private"), tmp_path / "run", stop_at(6 + 6 + 3))
    folder = RunFolder(tmp_path / "run")
    damage(folder.checkpoint)
    with pytest.warns(UserWarning, match="going on from the checkpoint before it"):
        assert resume(folder.path).steps == 18


def test_a_period_whose_end_was_saved_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the checkpoint of its end and the removal of its own, which is then of no use."""
    discard, calls = streaming._discard_other_periods, [0]

    def dies(folder: RunFolder, number: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        discard(folder, number)

    with monkeypatch.context() as patched:
        patched.setattr(streaming, "_discard_other_periods", dies)
        with pytest.raises(KeyboardInterrupt):
            stream(of_examples(), tmp_path / "run")
    private = tmp_path / "run" / "private"
    assert len(list(private.glob("period-000*.pt"))) == 2
    found = resume(tmp_path / "run")
    assert (found.steps, found.lost_steps) == (18, 0)
    assert not list(private.glob("period-*"))


def test_the_ledger_of_an_earlier_period_that_is_gone_is_refused(tmp_path: Path) -> None:
    """The statement at the end is of what the ledgers hold: of a new one it would be too low."""
    with pytest.raises(KeyboardInterrupt):
        stream(of_examples(), tmp_path / "run", stop_at(8))
    RunFolder(tmp_path / "run").period(0).ledger.unlink()
    with pytest.raises(ValueError, match=r"does not hold the .* bytes that were noted"):
        resume(tmp_path / "run")


def test_a_ledger_that_is_gone_when_the_last_period_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = streaming.held_out

    def loses(*arguments: object) -> object:
        RunFolder(tmp_path / "run").period(0).ledger.unlink()
        return split(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(streaming, "held_out", loses)
    with pytest.raises(ValueError, match=r"does not hold the .* bytes that were noted"):
        stream(of_examples(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_json("result") is None


def test_a_model_with_more_steps_than_its_ledger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateTrainer, "steps_taken", 99)
    with pytest.raises(ValueError, match=r"^resume: the model has 99 more steps than the ledger"):
        stream(of_users(tmp_path, regular=True), tmp_path / "run")
