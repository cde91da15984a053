"""When checkpoints are written."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sparsedp.runs import checkpoints
from sparsedp.runs.checkpoints import CheckpointSchedule


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
