import json
import os
import sys

import pytest

from sparsedp.accounting import cache


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEDP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def only_file(place):
    (file,) = (place / "accounting").iterdir()
    return file


def test_what_is_stored_is_found(place):
    cache.store("key", [1.5, "text"])
    assert cache.load("key") == [1.5, "text"]
    assert cache.load("another key") is None
    assert cache.load("key") == [1.5, "text"]


def test_floats_come_back_exactly(place):
    cache.store("key", 0.1 + 0.2)
    assert cache.load("key") == 0.1 + 0.2
    cache.store("key", float("inf"))
    assert cache.load("key") == float("inf")


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"key": 1}', b"[]", b"null", b"\xff\xfe", b'{"key": "key", "value": 3}']
)
def test_a_damaged_entry_is_ignored_and_replaced(place, damage):
    cache.store("key", 1)
    only_file(place).write_bytes(damage)
    assert cache.load("key") is None
    cache.store("key", 2)
    assert cache.load("key") == 2


def test_an_entry_of_another_version_is_ignored(place):
    cache.store("key", 1)
    file = only_file(place)
    file.write_text(json.dumps({**json.loads(file.read_text()), "versions": "sparsedp 0.0.1"}))
    assert cache.load("key") is None


def test_the_cache_stays_small(place):
    for i in range(cache._SLOTS // 4):
        cache.store(f"key {i}", i)
    assert len(list((place / "accounting").iterdir())) < cache._SLOTS // 4 + 1
    assert not [name for name in os.listdir(place / "accounting") if name.startswith(".new-")]


@pytest.mark.parametrize("obstacle", ["file", "missing home"])
def test_nowhere_to_write_is_not_an_error(tmp_path, monkeypatch, obstacle):
    if obstacle == "file":
        (tmp_path / "cache").write_text("in the way")
        monkeypatch.setenv("SPARSEDP_CACHE", str(tmp_path / "cache"))
    else:
        monkeypatch.setenv("SPARSEDP_CACHE", "/proc/nowhere")
    cache.store("key", 1)
    assert cache.load("key") is None


def test_values_that_are_not_json_leave_nothing_behind(place):
    with pytest.raises(TypeError):
        cache.store("key", object())
    assert cache.load("key") is None
    assert list((place / "accounting").iterdir()) == []


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEDP_CACHE", str(tmp_path / "own"))
    assert cache.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("SPARSEDP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_directory() == tmp_path / "xdg" / "sparsedp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache.cache_directory() == tmp_path / ".cache" / "sparsedp"
