"""The last checkpoint of a run that has not finished: released with what was spent, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.runs import config

from sparsedp.runs import RunConfig, RunFolder, load, train
from sparsedp.runs.export import export_run
from sparsedp.runs.unfinished import write_unfinished


class Stop(Exception):
    """Stands for a crash."""


def stopped(path: Path, settings: RunConfig) -> RunFolder:
    """A run that was stopped after its third step, with a checkpoint after every one."""

    def stop(progress: object) -> None:
        if progress.step == 4:  # type: ignore[attr-defined]
            raise Stop

    with pytest.raises(Stop):
        train(settings, path, stop)
    return RunFolder(path)


def test_a_private_run_is_released_with_all_that_was_charged(tmp_path: Path) -> None:
    settings = config(checkpoint_every=1, evaluate_every=None, expected_batch_size=200)
    folder = stopped(tmp_path / "run", settings)
    with pytest.raises(ValueError, match="has no trained model yet"):
        export_run(folder.path, tmp_path / "no")
    model = export_run(folder.path, tmp_path / "out", unfinished=True)
    assert model.statement is not None
    assert settings.epsilon is not None
    assert 0 < model.statement.epsilon < settings.epsilon
    saved = torch.load(folder.checkpoint, weights_only=True)["module"]
    for name, weight in load_file(tmp_path / "out" / "model.safetensors").items():
        assert torch.equal(weight, saved[name])
    rows = {name: [1, 2] for name in model.columns}
    np.testing.assert_array_equal(load(tmp_path / "out").predict_proba(rows), model.predict_proba(rows))


def test_a_run_without_privacy(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", config("non-private", checkpoint_every=1, expected_batch_size=200))
    assert write_unfinished(folder, tmp_path / "weights.safetensors") is None
    assert load_file(tmp_path / "weights.safetensors")


def test_what_may_not_be_released_before_the_end(tmp_path: Path) -> None:
    for number, (settings, said) in enumerate(
        [
            (config("lazy"), "algorithm lazy releases the final model only"),
            (config(data="generated:600x3", period=1), "of streaming runs"),
            (config(), "has no checkpoint yet"),
        ]
    ):
        folder = RunFolder(tmp_path / str(number))
        folder.create(settings)
        with pytest.raises(ValueError, match=f"unfinished: .*{said}"):
            write_unfinished(folder, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()
