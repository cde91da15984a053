import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.randomness.keystream import Keystream

KEY = bytes(range(32))


def test_keystream_is_aes_256_ctr() -> None:
    """The four output blocks of NIST SP 800-38A, F.5.5 (CTR-AES256)."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    first_counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    blocks = (
        "0bdf7df1591716335e9a8b15c860c502"
        "5a6e699d536119065433863c8f657b94"
        "1bc12c9c01610d5d0d8bd6a3378eca62"
        "2956e1c8693536b1bee99c73a31576b6"
    )
    assert Keystream(key, 16 * first_counter, private=True).take(64).hex() == blocks


def test_the_counter_starts_at_zero() -> None:
    """AES-256 of the zero block under the zero key (FIPS 197 cipher, well-known value)."""
    assert Keystream(bytes(32), private=True).take(16).hex() == "dc95c078a2408989ad48a21492842087"


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), max_size=20))
def test_pieces_of_any_size_join_up(sizes: list[int]) -> None:
    stream = Keystream(KEY, private=False)
    assert b"".join(stream.take(n) for n in sizes) == Keystream(KEY, private=False).take(sum(sizes))
    assert stream.position == sum(sizes)


@settings(deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 100))
def test_any_position_can_be_reached(position: int, before: int, count: int) -> None:
    through = Keystream(KEY, position, private=False)
    through.take(before)
    assert Keystream(KEY, position + before, private=False).take(count) == through.take(count)


def test_bulk_equals_small_pieces() -> None:
    bulk = np.empty(300_001, dtype=np.uint8)
    assert Keystream(KEY, 5, private=False).fill(bulk.data) == 5
    pieces = Keystream(KEY, 5, private=False)
    assert bulk.tobytes() == b"".join(pieces.take(1000) for _ in range(300)) + pieces.take(1)


def test_reserved_bytes_are_read_once() -> None:
    whole = Keystream(KEY, private=False).take(100)
    stream = Keystream(KEY, private=False)
    stream.take(7)
    reader = stream.reserve(40)
    assert stream.take(53) == whole[47:]
    assert reader.take(40) == whole[7:47]


def test_labels_give_separate_keys_and_move_nothing() -> None:
    stream = Keystream(KEY, private=False)
    keys = {stream.derive(label) for label in ("a", "b", "")} | {KEY}
    assert len(keys) == 4
    assert stream.derive("a") == stream.derive("a")
    assert stream.branch("a", 24).take(8) == Keystream(stream.derive("a"), private=False).take(32)[24:]
    assert stream.position == 0


def test_threads_never_share_a_byte() -> None:
    stream, taken = Keystream(KEY, private=True), []

    def draw() -> None:
        taken.extend(stream.take(16) for _ in range(2000))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 8000
    assert stream.position == 16 * 8000


WAYS: dict[str, Callable[[Keystream], object]] = {
    "take": lambda stream: stream.take(1),
    "fill": lambda stream: stream.fill(bytearray(1)),
    "reserve": lambda stream: stream.reserve(1),
    "derive": lambda stream: stream.derive("a"),
    "branch": lambda stream: stream.branch("a", 0),
}


def _draws_in_child(stream: Keystream, draw: Callable[[Keystream], object]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            draw(stream)
            os._exit(0)
        except RuntimeError:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("way", WAYS)
def test_a_private_keystream_refuses_to_go_on_in_a_forked_child(way: str) -> None:
    """Also in a derived key or a reader: parent and child would derive the same one."""
    stream = Keystream(KEY, private=True)
    stream.take(3)
    assert not _draws_in_child(stream, WAYS[way])
    assert stream.take(3) == Keystream(KEY, 3, private=True).take(3)
    assert _draws_in_child(Keystream(KEY, private=False), WAYS[way])


def _fork_children_while_a_thread_draws(stream: Keystream, count: int) -> list[int | None]:
    """Exit codes of ``count`` children that each try to draw; None for one that hangs."""
    done, buffer = threading.Event(), bytearray(1 << 20)

    def draw() -> None:
        while not done.is_set():
            stream.fill(buffer)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        return [_exit_code(_fork_and_draw(stream), seconds=20.0) for _ in range(count)]
    finally:
        done.set()
        thread.join()


def _fork_and_draw(stream: Keystream) -> int:
    child = os.fork()
    if child == 0:
        try:
            stream.take(1)
            stream.reserve(1)
            os._exit(0)
        except RuntimeError:
            os._exit(3)
    return child


def _exit_code(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_a_thread_draws_does_not_wait_for_it() -> None:
    """The thread holds the lock nearly always, and no thread of the child will ever give it back."""
    assert _fork_children_while_a_thread_draws(Keystream(KEY, private=True), 20) == [3] * 20
    assert _fork_children_while_a_thread_draws(Keystream(KEY, private=False), 20) == [0] * 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_seeded_child_goes_on_where_the_fork_was() -> None:
    stream = Keystream(KEY, private=False)
    stream.take(5)
    expected = Keystream(KEY, 5, private=False).take(100)
    child = os.fork()
    if child == 0:
        os._exit(0 if stream.take(100) == expected else 1)
    assert _exit_code(child, seconds=20.0) == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(duplicate) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="same noise"):
        duplicate(Keystream(KEY, private=False))


def test_the_key_is_not_shown() -> None:
    shown = repr(Keystream(KEY, private=True)) + str(Keystream(KEY, private=True))
    assert KEY.hex() not in shown
    assert str(KEY) not in shown


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"^key: must have 32"):
        Keystream(b"short", private=True)
    with pytest.raises(ValueError, match=r"^position: must not"):
        Keystream(KEY, -1, private=True)


@pytest.mark.parametrize("before", [0, 5, 16, 100])
@pytest.mark.parametrize("reserved", [0, 7, 16, 1000])
def test_reserved_bytes_are_the_reader_s_alone(before, reserved):
    """The keystream passes over them, whatever it has read before."""
    whole = Keystream(KEY, private=False).take(before + reserved + 40)
    stream = Keystream(KEY, private=False)
    assert stream.take(before) == whole[:before]
    reader = stream.reserve(reserved)
    assert stream.position == before + reserved
    assert stream.take(40) == whole[before + reserved :]
    assert reader.take(reserved) == whole[before : before + reserved]
