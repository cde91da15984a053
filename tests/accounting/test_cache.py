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


def entry(number, note=""):
    return cache.Entry(number, note)


def test_what_is_stored_is_found(place):
    cache.store("key", 1.5, "text")
    assert cache.load("key") == entry(1.5, "text")
    assert cache.load("another key") is None
    assert cache.load("key") == entry(1.5, "text")


def test_numbers_come_back_exactly(place):
    for number in (0.1 + 0.2, 5e-324, 1.7976931348623157e308, 0.0, 10**9):
        cache.store("key", number)
        assert cache.load("key") == entry(number)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1.0, -1e-300, True, "1.5", None])
def test_what_would_not_be_believed_is_not_written(place, number):
    cache.store("key", number)
    assert cache.load("key") is None
    assert not (place / "accounting").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b'{"key": 1}',
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"key": "key", "number": 3, "note": ""}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_entry_is_ignored_and_replaced(place, damage):
    cache.store("key", 1)
    only_file(place).write_bytes(damage)
    assert cache.load("key") is None
    cache.store("key", 2)
    assert cache.load("key") == entry(2)


def alter(place, **changes):
    file = only_file(place)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0.12},
        {"number": float("nan")},
        {"number": float("inf")},
        {"number": -2.12},
        {"number": "2.12"},
        {"number": True},
        {"number": [2.12]},
        {"note": "loose"},
        {"note": None},
        {"checksum": "0" * 64},
        {"checksum": None},
    ],
    ids=str,
)
def test_an_altered_entry_is_not_believed(place, changes):
    cache.store("key", 2.12, "settled")
    alter(place)
    assert cache.load("key") == entry(2.12, "settled")
    alter(place, **changes)
    assert cache.load("key") is None


def test_no_number_that_is_not_a_result_is_believed_even_with_a_right_checksum(place, monkeypatch):
    monkeypatch.setattr(cache, "_checksum", lambda *_: "right")
    cache.store("key", 2.12)
    for number in (float("nan"), float("inf"), -1.0):
        alter(place, number=number)
        assert cache.load("key") is None
    alter(place, number=0.0)
    assert cache.load("key") == entry(0.0)


def test_every_single_changed_character_is_noticed(place):
    cache.store("epsilon at 1e-06", 2.123, "settled")
    file = only_file(place)
    written = file.read_text()
    for position, letter in enumerate(written):
        for other in "0a":
            if other != letter:
                file.write_text(written[:position] + other + written[position + 1 :])
                assert cache.load("epsilon at 1e-06") is None


def test_an_entry_cut_anywhere_is_ignored(place):
    cache.store("key", 2.12, "settled")
    file = only_file(place)
    written = file.read_bytes()
    for length in range(len(written)):
        file.write_bytes(written[:length])
        assert cache.load("key") is None


def test_the_entry_of_another_key_is_not_believed(place, monkeypatch):
    cache.store("one", 0.12)
    other = only_file(place).read_text()
    monkeypatch.setenv("SPARSEDP_CACHE", str(place / "second"))
    cache.store("two", 2.12)
    only_file(place / "second").write_text(other)  # as it is
    assert cache.load("two") is None
    alter(place / "second", key="two")  # and passed off as this key's
    assert cache.load("two") is None


def test_an_entry_of_another_version_is_ignored(place, monkeypatch):
    cache.store("key", 1)
    monkeypatch.setattr(cache, "_versions", lambda: "sparsedp 0.0.1")
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


def test_a_write_that_fails_leaves_nothing_behind(place, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MemoryError):
        cache.store("key", 1)
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
