"""What the ledger promises: nothing released is ever missing from it, whoever writes and however they end."""

import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledgers import ONCE, STEP

from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.ledger import Ledger
from sparsedp.accounting.ledger.format import LedgerDamaged


def counts(path):
    return dict(Ledger.read(path).events())


def in_child(work, path):
    """Run `work(path, report)` in a forked process; `report(bytes)` reaches the returned pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            work(path, lambda data: os.write(writer, data))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    return child, reader


def drain(reader):
    parts = []
    while part := os.read(reader, 1 << 16):
        parts.append(part)
    os.close(reader)
    return b"".join(parts)


def test_what_was_spent_is_there_when_the_ledger_is_opened_again(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path, run="first") as ledger:
        ledger.spend(ONCE)
        ledger.spend(STEP, 10)
        assert ledger.events() == [(ONCE, 1), (STEP, 10)]
    with Ledger.open(path, run="second") as ledger:
        ledger.spend(STEP, 5)
        ledger.spend(LaplaceDpEvent(3.0))
    assert Ledger.read(path).events() == [(ONCE, 1), (STEP, 15), (LaplaceDpEvent(3.0), 1)]
    assert [run.name for run in Ledger.read(path).runs] == ["first", "second"]


def test_opening_and_looking_write_nothing(tmp_path):
    path = tmp_path / "data.ledger"
    Ledger.open(path).close()
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        ledger.step_reserver(STEP)
        assert ledger.events() == []
        assert ledger.position == len(before)
    assert path.read_bytes() == before


def test_a_step_is_on_disk_before_the_call_returns_and_unused_ones_are_given_back(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path) as ledger:
        step = ledger.step_reserver(STEP, reserve=8)
        for taken in range(1, 21):
            step()
            assert counts(path)[STEP] == -(-taken // 8) * 8
            assert ledger.events() == [(STEP, taken)]  # the writer itself knows what it has not taken
        assert Ledger.read(path).reserved_steps == 24
    assert counts(path) == {STEP: 20}
    assert Ledger.read(path).reserved_steps == 0
    with pytest.raises(ValueError, match="closed"):
        step()


def test_without_close_the_reserved_steps_stay_counted(tmp_path):
    path = tmp_path / "data.ledger"
    step = Ledger.open(path, run="crashes").step_reserver(STEP, reserve=8)
    for _ in range(10):
        step()
    del step
    with Ledger.open(path, run="resumes") as ledger:
        assert ledger.events() == [(STEP, 16)]
        step = ledger.step_reserver(STEP, reserve=8)
        step()
    assert counts(path) == {STEP: 17}
    assert Ledger.read(path).reserved_steps == 16


def test_an_error_in_training_still_closes_exactly(tmp_path):
    path = tmp_path / "data.ledger"

    def train():
        with Ledger.open(path) as ledger:
            step = ledger.step_reserver(STEP)
            step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert counts(path) == {STEP: 1}


def test_a_writer_killed_at_100_random_moments_never_loses_a_committed_event(tmp_path):
    """Each round acknowledges through a pipe what has returned, and is killed with SIGKILL somewhere."""
    path = tmp_path / "data.ledger"
    Ledger.open(path).close()
    rng = random.Random(20231)
    acknowledged = {b"o": 0, b"s": 0}
    reserve, rounds = 3, 100

    def write(seed):
        def work(path, report):
            choice = random.Random(seed)
            with Ledger.open(path, run="victim") as ledger:
                step = ledger.step_reserver(STEP, reserve)
                while True:
                    kind = choice.random()
                    if kind < 0.2:
                        ledger.spend(ONCE)
                        report(b"o")
                    elif kind < 0.3:
                        step.close()  # also the settlement is interrupted somewhere
                        step = ledger.step_reserver(STEP, reserve)
                    else:
                        step()
                        report(b"s")

        return work

    for number in range(rounds):
        child, reader = in_child(write(number), path)
        seen = b""
        for _ in range(rng.randrange(15)):  # so far into its work, however busy the machine is
            seen += os.read(reader, 1)
        time.sleep(rng.uniform(0.0, 0.003))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen += drain(reader)
        for kind in acknowledged:
            acknowledged[kind] += seen.count(kind)
        total = counts(path)
        assert total.get(ONCE, 0) >= acknowledged[b"o"]
        assert total.get(STEP, 0) >= acknowledged[b"s"]
        # A kill costs at most one event that had not been acknowledged, and one reservation.
        assert total.get(ONCE, 0) <= acknowledged[b"o"] + number + 1
        assert total.get(STEP, 0) <= acknowledged[b"s"] + reserve * (number + 1)
    assert acknowledged[b"o"] + acknowledged[b"s"] > 500


def test_two_processes_may_write_at_once(tmp_path):
    path = tmp_path / "data.ledger"
    Ledger.open(path).close()

    def work(path, report):
        with Ledger.open(path, run="worker") as ledger:
            step = ledger.step_reserver(STEP, reserve=2)
            for _ in range(51):
                step()
                ledger.spend(ONCE)
            report(b"done")

    children = [in_child(work, path) for _ in range(3)]
    for child, reader in children:
        assert drain(reader) == b"done"
        assert os.waitpid(child, 0)[1] == 0
    assert counts(path) == {STEP: 153, ONCE: 153}
    assert len(Ledger.read(path).runs) == 3


def test_threads_share_a_ledger_and_a_stepper(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path) as ledger, ThreadPoolExecutor(4) as pool:
        step = ledger.step_reserver(STEP, reserve=5)
        list(pool.map(lambda _: step(), range(200)))
        list(pool.map(lambda _: ledger.spend(ONCE), range(20)))
    assert counts(path) == {STEP: 200, ONCE: 20}


def test_a_fork_cannot_use_or_give_back_its_parents_steps(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path) as ledger:
        step = ledger.step_reserver(STEP, reserve=8)
        step()

        def work(path, report):
            try:
                step()
            except RuntimeError:
                report(b"refused ")
            report(str(dict(ledger.events())[STEP]).encode())  # the parent may take all eight meanwhile
            ledger.close()

        child, reader = in_child(work, path)
        assert drain(reader) == b"refused 8"
        os.waitpid(child, 0)
        assert counts(path) == {STEP: 8}
    assert counts(path) == {STEP: 1}


def test_the_position_only_grows_and_a_mark_exposes_an_older_copy(tmp_path):
    path, old = tmp_path / "data.ledger", tmp_path / "old"
    positions = []
    with Ledger.open(path) as ledger:
        ledger.spend(ONCE)
        shutil.copyfile(path, old)
        step = ledger.step_reserver(STEP, reserve=4)
        for _ in range(9):
            step()
            positions.append(ledger.position)
        noted = ledger.mark
    assert positions == sorted(positions)
    Ledger.open(path).require_mark(noted)
    Ledger.read(path).require_mark(noted)
    with pytest.raises(LedgerDamaged, match="older copy"):
        Ledger.open(old).require_mark(noted)


def test_an_older_copy_that_grew_since_and_another_ledger_are_exposed(tmp_path):
    """Both are longer than what was noted: comparing lengths would let the forgotten steps pass."""
    path, old, other = (tmp_path / name for name in ("data.ledger", "old", "other"))
    with Ledger.open(path) as ledger:
        ledger.spend(ONCE)
        shutil.copyfile(path, old)
        ledger.spend(STEP, 100)
        noted, length = ledger.mark, ledger.position
    for stale in (old, other):
        with Ledger.open(stale) as ledger:
            for _ in range(20):
                ledger.spend(ONCE)
            assert ledger.position > length
            with pytest.raises(LedgerDamaged, match="older copy of the ledger, or another"):
                ledger.require_mark(noted)


def test_a_million_steps_are_recorded_compactly_and_open_quickly(tmp_path):
    path = tmp_path / "data.ledger"
    with Ledger.open(path) as ledger:
        step = ledger.step_reserver(STEP, reserve=1024)
        for _ in range(1_000_000):
            step()
    assert counts(path) == {STEP: 1_000_000}
    lines = [line for line in path.read_bytes().splitlines() if b'"reserve"' in line]
    # The same with the default batch, without waiting for 15,625 disk writes: the cost is per record.
    began = time.perf_counter()
    Ledger.read(path)
    a_record = (time.perf_counter() - began) / len(lines)
    assert a_record * 1e6 / 64 < 10  # seconds; a benchmark measures it properly (about 0.15)


OPERATIONS = st.lists(st.sampled_from(["spend", "step", "step", "step", "close", "crash"]), max_size=30)


@given(OPERATIONS, st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_work_and_crashes_counts_at_least_what_happened(
    tmp_path_factory, operations, reserve
):
    path = tmp_path_factory.mktemp("ledger") / "data.ledger"
    ledger = Ledger.open(path)
    step = ledger.step_reserver(STEP, reserve)
    taken = spent = crashes = 0
    for operation in operations:
        if operation == "spend":
            ledger.spend(ONCE)
            spent += 1
        elif operation == "step":
            step()
            taken += 1
        else:
            if operation == "close":
                ledger.close()
            crashes += operation == "crash"
            ledger = Ledger.open(path)
            step = ledger.step_reserver(STEP, reserve)
        total = dict(ledger.events())
        assert total.get(ONCE, 0) == spent
        assert taken <= total.get(STEP, 0) <= taken + crashes * (reserve - 1)
    ledger.close()
    assert taken <= counts(path).get(STEP, 0) <= taken + crashes * (reserve - 1)


MIDDLE = np.linspace(0.0, 1.0, 1201)


MIXTURES = [
    MixtureOfGaussiansDpEvent(
        2.0, tuple(range(1201)), np.eye(1201)[where] if where else MIDDLE / MIDDLE.sum()
    )
    for where in (0, 500, 700)
]
"""Long arrays that differ in the middle, where numpy's `repr` leaves them out."""


def test_events_are_told_apart_to_the_last_digit_whatever_numpy_prints(tmp_path):
    near = [GaussianDpEvent(np.float64(1.0)), GaussianDpEvent(np.nextafter(1.0, 2.0))]
    short = [MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), np.array([0.5 - x, 0.5 + x])) for x in (1e-6, 2e-6)]
    path = tmp_path / "data.ledger"
    with np.printoptions(precision=3, suppress=True), Ledger.open(path) as ledger:
        assert len({repr(event) for event in MIXTURES[1:]}) == 1  # the control: what they looked like
        assert len({repr(event) for event in short}) == 1
        for count, event in enumerate([*MIXTURES, *near, *short], start=1):
            ledger.spend(event, count)
            ledger.step_reserver(event, reserve=2)()
        found = ledger.events()
    assert [count for _, count in found] == list(range(2, 9))
    recorded = Ledger.read(path).events()
    for (event, _), original in zip(recorded, [*MIXTURES, *near, *short], strict=True):
        assert event_key(event) == event_key(original)


def test_a_reader_is_told_the_events_of_one_run(tmp_path):
    """A name that is not on the ledger has none."""
    path = tmp_path / "data.ledger"
    Ledger.open(path, run="a").spend(STEP, 3)
    Ledger.open(path, run="b").spend(STEP, 4)
    Ledger.open(path, run="b").spend(ONCE)
    ledger = Ledger.read(path)
    assert ledger.events_of("a") == [(STEP, 3)]
    assert ledger.events_of("b") == [(STEP, 4), (ONCE, 1)]
    assert ledger.events_of("c") == []
    assert counts(path) == {STEP: 7, ONCE: 1}
