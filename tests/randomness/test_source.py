import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsedp.randomness import NoiseSource

NAMES = ("sampling", "selection", "noise")


def draw(source: NoiseSource) -> list[float]:
    return [x for name in NAMES for x in getattr(source, name).normal(3)]


def test_the_default_is_secure_and_differs_every_time() -> None:
    first, second = NoiseSource(), NoiseSource()
    assert first.is_private
    assert all(getattr(first, name).is_private for name in NAMES)
    assert not set(draw(first)) & set(draw(second))


def test_a_seed_repeats_itself_and_says_so() -> None:
    seeded = NoiseSource(seed=7)
    assert not seeded.is_private
    assert not any(getattr(seeded, name).is_private for name in NAMES)
    assert "reproducible, not private" in repr(seeded)
    assert draw(seeded) == draw(NoiseSource(seed=7))
    assert draw(NoiseSource(seed=7)) != draw(NoiseSource(seed=8))


def test_numpy_seeds_are_seeds() -> None:
    assert draw(NoiseSource(seed=np.int64(7))) == draw(NoiseSource(seed=7))
    with pytest.raises(TypeError):
        NoiseSource(seed=7.0)  # type: ignore[arg-type]


def test_a_seed_means_the_same_on_every_machine() -> None:
    """Golden bytes: a change here breaks the reproducibility of every seeded run."""
    assert NoiseSource(seed=0).noise.bytes(8).hex() == "d5dd6afb6fdbb1b3"


def test_streams_are_separate() -> None:
    source = NoiseSource(seed=1)
    assert len({getattr(source, name).bytes(16) for name in NAMES}) == 3
    other = NoiseSource(seed=1)
    other.sampling.bytes(1000)
    other.selection.bytes(10)
    source = NoiseSource(seed=1)
    assert np.array_equal(other.noise.normal(5), source.noise.normal(5))


@pytest.mark.parametrize("seed", [None, 3])
def test_state_survives_a_file_that_holds_only_plain_values(seed: int | None, tmp_path: Path) -> None:
    source = NoiseSource(seed)
    draw(source)
    torch.save(source.state_dict(), tmp_path / "state.pt")
    expected = draw(source)
    resumed = NoiseSource(seed)
    noise = resumed.noise
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw(resumed) == expected
    assert resumed.noise is noise
    assert resumed.is_private == (seed is None)


def test_a_source_that_was_ever_seeded_stays_marked() -> None:
    secure = NoiseSource()
    secure.load_state_dict(NoiseSource(seed=1).state_dict())
    assert not secure.is_private
    seeded = NoiseSource(seed=1)
    seeded.load_state_dict(NoiseSource().state_dict())
    assert not seeded.is_private
    assert "not private" in repr(seeded)


def test_a_bad_state_changes_nothing() -> None:
    source, good = NoiseSource(seed=1), NoiseSource(seed=2).state_dict()
    before = source.state_dict()
    for bad in ({}, good | {"other": good["noise"]}, good | {"noise": {}}, good | {"noise": {"key": 3}}):
        with pytest.raises(ValueError, match=r"^state: "):
            source.load_state_dict(bad)
        assert source.state_dict() == before


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(duplicate: Callable[[NoiseSource], object]) -> None:
    with pytest.raises(TypeError, match="same noise"):
        duplicate(NoiseSource(seed=1))


def test_keys_are_not_shown() -> None:
    source = NoiseSource()
    keys = [str(state["key"]) for state in source.state_dict().values()]
    assert not any(key in repr(source) + str(source) + str(vars(source)) for key in keys)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_makes_its_own() -> None:
    source = NoiseSource()
    child = os.fork()
    if child == 0:
        try:
            NoiseSource().noise.normal(3)
            source.noise.normal(3)
        except RuntimeError as error:
            os._exit(3 if "make a NoiseSource" in str(error) else 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    source.noise.normal(3)


def test_the_room_does_not_need_torch() -> None:
    check = "import sys, sparsedp.randomness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("name", ["sampling", "selection", "noise"])
def test_one_seeded_stream_makes_a_source_not_private(name):
    source = NoiseSource()
    assert source.is_private
    getattr(source, name).restore(getattr(NoiseSource(1), name).state())
    assert not source.is_private
    assert "not private" in repr(source)
    again = NoiseSource(1)
    getattr(again, name).restore(getattr(NoiseSource(), name).state())
    assert not again.is_private
    assert not getattr(again, name).is_private


def test_the_streams_of_a_seed_are_three():
    source = NoiseSource(5)
    assert len({stream.state()["key"] for stream in (source.sampling, source.selection, source.noise)}) == 3
    other = NoiseSource(6)
    assert source.noise.state()["key"] != other.noise.state()["key"]
    assert source.noise.state() == NoiseSource(5).noise.state()
