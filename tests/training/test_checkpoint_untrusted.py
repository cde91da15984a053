"""A checkpoint from a stranger executes nothing."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import start, train, with_instructions
from torch.testing import assert_close

import sparsedp as sdp
from sparsedp.training.checkpoint import FORMAT, read_state


class Executes:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("way", ["torch.save", "legacy torch.save", "pickle"])
def test_a_checkpoint_executes_nothing(way: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "executed", tmp_path / "saved"
    state = {"format": FORMAT, "more": Executes(mark)}
    if way == "pickle":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=way == "torch.save")
    torch.load(path, weights_only=False) if way != "pickle" else pickle.loads(path.read_bytes())
    assert mark.exists()  # the control: a careless reader executes it
    mark.rmdir()
    engine, _ = start("sgd")
    with pytest.raises(ValueError, match=r"^resume: .* is not a readable checkpoint"):
        engine.resume(path)
    assert not mark.exists()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
def test_a_damaged_checkpoint_is_refused_or_equal(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "saved"
    engine, private = start("sgd")
    train(private, 2)
    engine.save(path)
    whole = bytearray(path.read_bytes())
    at %= len(whole)
    whole[at : at + len(noise)] = noise
    path.write_bytes(whole)
    fresh, resumed = start("sgd")
    with contextlib.suppress(Refused):
        _resume(fresh, path)
        assert_close(dict(resumed.module.state_dict()), dict(private.module.state_dict()), rtol=0, atol=0)
        assert fresh.epsilon(1e-5) == engine.epsilon(1e-5)


class Refused(Exception):
    """With one of our messages."""


def _resume(engine: sdp.PrivacyEngine, path: Path) -> None:
    try:
        engine.resume(path)
    except ValueError as error:
        if str(error).startswith(f"resume: {path} is not a readable checkpoint"):
            raise Refused from error
        raise


def test_a_single_changed_bit_of_a_weight_is_noticed(tmp_path: Path) -> None:
    """The control of the test above: torch itself reads such a file without a word."""
    path = tmp_path / "saved"
    engine, _ = start("sgd")
    engine.save(path)
    whole = bytearray(path.read_bytes())
    weights = engine.session.module.large.weight.detach().numpy().tobytes()
    whole[whole.index(weights) + 100] ^= 1
    path.write_bytes(whole)
    torch.load(path, weights_only=True)
    with pytest.raises(
        ValueError, match=r"^resume: .* is not a readable checkpoint \(its part .* is damaged"
    ):
        start("sgd")[0].resume(path)


def test_only_our_format_is_read(tmp_path: Path) -> None:
    torch.save({"format": "another"}, tmp_path / "saved")
    with pytest.raises(ValueError, match=r"^resume: .* is not a checkpoint of format"):
        read_state(tmp_path / "saved")


def saved() -> bytes:
    written = io.BytesIO()
    torch.save({"format": FORMAT}, written)
    return written.getvalue()


def old_form() -> bytes:
    written = io.BytesIO()
    torch.save({"format": FORMAT}, written, _use_new_zipfile_serialization=False)
    return written.getvalue()


@pytest.mark.parametrize("before", [b"u", old_form()], ids=["a byte", "a state in torch's old form"])
def test_nothing_stands_before_the_parts_with_checksums(before: bytes, tmp_path: Path) -> None:
    """torch would read what stands there, which no checksum covers."""
    path = tmp_path / "saved"
    path.write_bytes(saved())
    assert read_state(path) == {"format": FORMAT}
    path.write_bytes(before + saved())
    with pytest.raises(
        ValueError, match=r"^resume: .* is not a readable checkpoint \(other bytes stand before"
    ):
        read_state(path)


@pytest.mark.parametrize("wrong", [b"u.", b"NNNs.", b"J1", b"cos\nsystem\n.", b"}X\x01\x00\x00\x00\xffN."])
def test_wrong_instructions_are_refused(wrong: bytes, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_bytes(with_instructions(saved(), lambda _: b"\x80\x02" + wrong))
    with pytest.raises(ValueError, match=r"^resume: .* is not a readable checkpoint \(it holds [\w ]+\)$"):
        read_state(path)
