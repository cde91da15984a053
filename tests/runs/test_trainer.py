"""What a private trainer pays, and when: on disk before a bit of the noise is drawn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import config

from sparsedp.accounting import GaussianDpEvent, Ledger, PoissonSampledDpEvent
from sparsedp.randomness import Stream
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.runs.trainer import PrivateTrainer, open_ledger
from sparsedp.runs.training import train_step


def start(algorithm: str, path: Path, **changes: Any) -> tuple[PrivateTrainer, torch.nn.Module]:
    asked = config(algorithm, data="generated:400", expected_batch_size=60, **changes)
    data = open_data(asked.data)
    model = fresh_model(asked, data)
    return PrivateTrainer(asked, model, data, open_ledger(asked, path, "run")), model


def on_disk(path: Path) -> tuple[int, int]:
    """(steps, choices of rows) that the file says were paid for."""
    events = Ledger.read(path).events()
    steps = sum(count for event, count in events if isinstance(event, PoissonSampledDpEvent))
    return steps, sum(count for event, count in events if isinstance(event, GaussianDpEvent))


def watch_stream(stream: Stream, look: Callable[[], None]) -> None:
    """Call ``look`` before anything is asked of the stream."""
    kind = type(stream)

    class Watched(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(kind, name):
                look()
            return super().__getattribute__(name)

    stream.__class__ = Watched


@pytest.mark.parametrize("algorithm", ["dp-sgd", "adafest", "adafest+", "fest"])
def test_a_step_is_paid_on_disk_before_its_noise_is_drawn(algorithm: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    trainer, model = start(algorithm, path)
    looks: list[tuple[int, int]] = []
    for stream in (trainer.engine.source.noise, trainer.engine.source.selection):
        watch_stream(stream, lambda: looks.append(on_disk(path)))
    chosen = int(trainer.choose_once())
    assert {choices for _, choices in looks} <= {chosen}  # the rows too are paid for before they are chosen
    for number, (features, label) in enumerate(trainer.batches(), start=1):
        looks.clear()
        train_step(model, trainer, (features, label))
        assert looks
        assert set(looks) == {(number, chosen)}
    assert number == trainer.steps_taken == 7
    trainer.close()
    assert on_disk(path) == (7, chosen)


def test_a_step_is_synced_before_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the ledger and not yet synced when noise is drawn, but for a seal."""
    path = tmp_path / "run.ledger"
    trainer, model = start("adafest", path)
    done: list[str] = []
    for name in ("pwrite", "fsync"):
        real = getattr(os, name)

        def noted(descriptor: int, *given: Any, name: str = name, real: Any = real) -> Any:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
                record = name == "fsync" or not given[0].startswith(b'{"seal"')
                done.append(name if record else "seal")
            return real(descriptor, *given)

        monkeypatch.setattr(os, name, noted)
    watch_stream(trainer.engine.source.noise, lambda: done.append("noise"))
    for _, (features, label) in zip(range(3), trainer.batches(), strict=False):
        train_step(model, trainer, (features, label))
    assert [name for n, name in enumerate(done) if n == 0 or done[n - 1] != name] == [
        "pwrite",
        "fsync",
        "seal",
        "noise",
    ] * 3
    trainer.close()


def test_steps_paid_and_not_in_the_model_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    trainer, model = start("adafest", path)
    for _, (features, label) in zip(range(3), trainer.batches(), strict=False):
        train_step(model, trainer, (features, label))
    assert trainer.lost_steps() == 0
    again, _ = start("adafest", path)
    assert again.lost_steps() == 3
    other = open_ledger(config(), path, "another run")
    other.spend(again.engine.session.step_config.event(again.engine.session.selection), 5)
    assert again.lost_steps() == 3
    for each in (trainer, again):
        each.close()


@pytest.mark.parametrize("algorithm", ["adafest", "non-private"])
def test_a_batch_larger_than_the_data_is_said(algorithm: str, tmp_path: Path) -> None:
    asked = config(algorithm, data="generated:400", expected_batch_size=500)
    data = open_data(asked.data)
    model = fresh_model(asked, data)
    ledger = open_ledger(asked, tmp_path / "run.ledger", "run") if asked.is_private else None
    with pytest.warns(UserWarning, match=r"^expected_batch_size: 500 is more than the 400 to draw from"):
        PrivateTrainer(asked, model, data, ledger) if ledger else PlainTrainer(asked, model, data)
