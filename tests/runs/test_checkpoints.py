"""When checkpoints are written, and which one a run goes on from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from support.runs import config

from sparsedp.core.durable import keep_previous
from sparsedp.runs import checkpoints, resume, start
from sparsedp.runs.checkpoints import CheckpointSchedule, whole_checkpoint
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.training import Progress


def saved_at(
    monkeypatch: pytest.MonkeyPatch, every: int | None, steps: int, step_seconds: float, save_seconds: float
) -> list[int]:
    """After which steps a checkpoint was written, on a pretended clock."""
    now, done, saved = [0.0], [0], []

    def save() -> None:
        now[0] += save_seconds
        saved.append(done[0])

    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    schedule = CheckpointSchedule(every, save)
    for step in range(1, steps + 1):
        now[0] += step_seconds
        done[0] = step
        schedule.after_step(step)
    schedule.at_the_end()
    schedule.at_the_end()
    return saved


def test_every_so_many_steps_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_at(monkeypatch, 3, 8, 1.0, 100.0) == [3, 6, 8]
    assert saved_at(monkeypatch, 4, 8, 1.0, 100.0) == [4, 8]
    assert saved_at(monkeypatch, 1000, 8, 1.0, 100.0) == [8]
    assert saved_at(monkeypatch, None, 0, 1.0, 1.0) == []


def test_by_default_a_fiftieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for save_seconds in (0.001, 0.02, 0.5, 2.0):
        saved = saved_at(monkeypatch, None, 2000, 0.1, save_seconds)
        assert saved[0] == 1
        assert saved[-1] == 2000
        assert (len(saved) - 2) * save_seconds <= 0.021 * 200
        gaps = [later - earlier for earlier, later in pairwise(saved)]
        assert max(gaps) <= 1 + save_seconds * 50 / 0.1


class Interrupted(Exception):
    """The user's own."""


def interrupt_after(steps: int) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if progress.step == steps:
            raise Interrupted

    return stop


@pytest.mark.parametrize("algorithm", ["adafest", "non-private"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(algorithm: str, tmp_path: Path) -> None:
    changes = {"data": "generated:400", "expected_batch_size": 46, "epochs": 2, "checkpoint_every": 2}
    with pytest.raises(Interrupted):
        start(config(algorithm, **changes), tmp_path / "run", interrupt_after(7))
    checkpoint = RunFolder(tmp_path / "run").checkpoint
    damaged = bytearray(checkpoint.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    checkpoint.write_bytes(damaged)
    with pytest.warns(
        UserWarning, match="is not a readable checkpoint .* going on from the checkpoint before"
    ):
        result = resume(tmp_path / "run")
    if algorithm == "adafest":
        assert result.statement is not None
        assert result.statement["epsilon"] <= 2.0
        assert result.lost_steps == 3  # four were in the checkpoint before, seven were charged


def test_without_a_whole_checkpoint_the_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"no checkpoint")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^resume: .*checkpoint\.pt is not a readable checkpoint"):
            whole_checkpoint(path)
        keep_previous(path)
