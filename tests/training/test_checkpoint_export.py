"""What is written for release, and what the account says after a resume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.checkpoints import ADAFEST, examples, start, train
from support.models import TwoTables
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.training import Private
from sparsedp.training.checkpoint import write_weights


def test_checkpoints_and_weights_are_on_disk_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spy: the file's contents are synced, then renamed, then the folder is synced."""
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def spied_sync(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        sync(descriptor)

    def spied_rename(source: Path, target: Path) -> None:
        if tmp_path in Path(target).parents:  # and not the accountant's cache
            done.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", spied_sync)
    monkeypatch.setattr(os, "replace", spied_rename)
    engine, private = start("lazy", seed=None)
    train(private, 1)
    for name, write in (
        ("run.ckpt", engine.save),
        ("weights", lambda path: write_weights(private.module, path, privacy="none")),
        ("model", lambda path: engine.export(path, delta=1e-5)),
    ):
        done.clear()
        write(tmp_path / name)
        assert done == [("sync", f"{name}.partial"), ("rename", name), ("sync", tmp_path.name)]


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


class Running(nn.Module):
    """Keeps statistics of its inputs, one written in place, one through an array, one put in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoTables()
        for name in ("mean", "seen", "last"):
            self.register_buffer(name, torch.zeros(2))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * ids.float().mean(dim=0))
            self.seen.numpy()[:] += ids.sum(dim=0).numpy()
            self.last = ids.float().sum(dim=0)
        return self.inner(ids)


@pytest.mark.parametrize("resumed", [False, True])
def test_buffers_that_training_passes_update_are_not_exported(resumed: bool, tmp_path: Path) -> None:
    def begin() -> tuple[sdp.PrivacyEngine, Private]:
        model = Running()
        engine = sdp.PrivacyEngine()
        return engine, engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=examples(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            selection=ADAFEST,
        )

    engine, private = begin()
    train(private, 2)
    if resumed:
        engine.save(tmp_path / "run.ckpt")
        engine, private = begin()
        engine.resume(tmp_path / "run.ckpt")
    with pytest.warns(UserWarning, match=r"\['mean', 'seen', 'last'\].*left out"):
        engine.export(tmp_path / "model.safetensors", delta=1e-5)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(private.module.state_dict()) - {"mean", "seen", "last"}
        assert "without the buffers mean, seen, last" in file.metadata()["privacy"]


@pytest.mark.parametrize("bias", [True, False])
def test_export_of_parameters_that_the_run_does_not_know_is_refused(bias: bool, tmp_path: Path) -> None:
    """A head that came later, trained on the examples by an optimiser of its own: no noise, no statement."""
    engine, private = start("sgd", seed=None)
    private.module.head = nn.Linear(1, 1, bias=bias)
    train(private, 1)
    with pytest.raises(ValueError, match=r"head.weight.*after make_private"):
        engine.export(tmp_path / "weights", delta=1e-5)
    assert not (tmp_path / "weights").exists()
