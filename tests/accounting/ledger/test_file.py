"""The file under attack: cuts, flipped bits, full disks, crashes between system calls, other writers."""

import errno
import fcntl
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent

from sparsedp.accounting.ledger import Ledger
from sparsedp.accounting.ledger import file as ledger_file
from sparsedp.accounting.ledger.file import LedgerBusy, LedgerFile
from sparsedp.accounting.ledger.format import SEAL_BYTES, LedgerDamaged

GAUSSIAN = GaussianDpEvent(2.0)
LAPLACE = LaplaceDpEvent(3.0)


def counts(path):
    return [count for _, count in Ledger.read(path).events()]


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.fixture
def small(tmp_path):
    """A ledger with every kind of entry but `truncated`."""
    path = tmp_path / "small.ledger"
    with Ledger.open(path, run="a") as ledger:
        ledger.spend(GAUSSIAN, 3)
        step = ledger.step_reserver(LAPLACE, reserve=4)
        for _ in range(6):
            step()
    assert counts(path) == [3, 6]
    return path


def test_a_cut_at_every_byte_is_detected_and_its_position_said(small, tmp_path):
    whole = small.read_bytes()
    cut = tmp_path / "cut.ledger"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(LedgerDamaged, match=rf"cut.*byte ({length}|0|\d+)\b") as caught:
            Ledger.read(cut)
        if length > len(whole.split(b"\n")[0]) + 2 * SEAL_BYTES:
            assert f"cut off at byte {length}:" in str(caught.value)
        with pytest.raises(LedgerDamaged):
            Ledger.open(cut)
        assert cut.read_bytes() == whole[:length]  # a damaged file is left as it is


def test_every_flipped_bit_is_reported_and_none_lowers_a_count(small, tmp_path):
    whole = small.read_bytes()
    first_seal = whole.index(b"\n") + 1
    body = first_seal + 2 * SEAL_BYTES
    flipped = tmp_path / "flipped.ledger"
    flipped.write_bytes(whole)
    for bit in range(8 * len(whole)):
        overwrite(flipped, bit // 8, bytes([whole[bit // 8] ^ 1 << bit % 8]))
        if first_seal <= bit // 8 < body:  # one of two seals: nothing is lost, but it is said
            ledger = Ledger.read(flipped)
            assert [count for _, count in ledger.events()] == [3, 6]
            assert any("seal" in notice and "damaged" in notice for notice in ledger.notices)
        else:
            with pytest.raises(LedgerDamaged, match=r"byte \d+"):
                Ledger.read(flipped)
        overwrite(flipped, bit // 8, whole[bit // 8 : bit // 8 + 1])


def test_the_position_of_a_flipped_bit_is_the_start_of_its_record(small, tmp_path):
    whole = small.read_bytes()
    starts = [0]
    while (end := whole.find(b"\n", starts[-1])) >= 0:
        starts.append(end + 1)
    for start in starts[3:-1]:
        data = bytearray(whole)
        data[start + 5] ^= 1
        small.write_bytes(data)
        with pytest.raises(LedgerDamaged, match=f"damaged at byte {start}:"):
            Ledger.open(small)


def test_a_damaged_seal_is_repaired_by_the_next_entry(small):
    data = bytearray(small.read_bytes())
    for slot in (0, 1):
        data[data.index(b"\n") + 1 + slot * SEAL_BYTES + 20] ^= 1
        small.write_bytes(data)
        with Ledger.open(small) as ledger:
            assert ledger.notices
            ledger.spend(GAUSSIAN)
            assert not ledger.notices
        data = bytearray(small.read_bytes())
    assert counts(small) == [5, 6]


def test_two_damaged_seals_are_damage(small):
    data = bytearray(small.read_bytes())
    for slot in (0, 1):
        data[data.index(b"\n") + 1 + slot * SEAL_BYTES + 20] ^= 1
    small.write_bytes(data)
    with pytest.raises(LedgerDamaged, match="both seals"):
        Ledger.read(small)


def test_records_moved_removed_or_doubled_are_detected(small):
    lines = small.read_bytes().splitlines(keepends=True)
    head, records = lines[:3], lines[3:]
    rng = random.Random(0)
    variants = [records[:i] + records[i + 1 :] for i in range(len(records) - 1)]
    variants += [[*records[:i], record, *records[i:]] for i, record in enumerate(records[:-1])]
    variants += [rng.sample(records, len(records)) for _ in range(20)]
    for variant in variants:
        if variant == records:
            continue
        small.write_bytes(b"".join(head + variant))
        with pytest.raises(LedgerDamaged, match="byte"):
            Ledger.read(small)
    small.write_bytes(b"".join([*lines, lines[-1]]))  # beyond the seal: like a write cut short
    assert counts(small) == [3, 6]
    assert Ledger.read(small).notices


def test_the_records_of_another_ledger_do_not_fit(small, tmp_path):
    other = tmp_path / "other.ledger"
    with Ledger.open(other, run="b") as ledger:
        ledger.spend(GAUSSIAN)
    lines, foreign = (path.read_bytes().splitlines(keepends=True) for path in (small, other))
    small.write_bytes(b"".join(lines[:3] + foreign[3:] + lines[3:]))
    with pytest.raises(LedgerDamaged, match="damaged at byte"):
        Ledger.read(small)


@pytest.mark.parametrize("content", [b"", b"\n", b"something else\n", b"\xff\xfe\x00" * 100])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    for way in (Ledger.open, Ledger.read):
        with pytest.raises(ValueError, match="not a ledger"):
            way(path)
    assert path.read_bytes() == content


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/tty", "/dev", "", "pipe", "link"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, pipe, name):
    """/dev/zero never ends, and a pipe without a writer never begins."""
    path = tmp_path / name if name in ("pipe", "link") else Path(name)
    if name == "link":
        path.symlink_to("/dev/zero")
    for way in (Ledger.open, Ledger.read):
        with pytest.raises((ValueError, OSError), match=r"ledger must be a regular file|No such device"):
            way(path)


def test_a_large_file_that_is_no_ledger_is_not_read_whole(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: a terabyte that would take hours to read
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.open(path)


def test_a_link_to_a_ledger_is_the_ledger(small, tmp_path):
    (tmp_path / "link").symlink_to(small)
    Ledger.open(tmp_path / "link").spend(GAUSSIAN)
    assert counts(small) == [4, 6]


def test_an_entry_cut_short_is_set_aside_said_and_never_counted_less_than_before(small, tmp_path):
    """Every state a crash can leave: the old seals, and any prefix of the next entry."""
    before = small.read_bytes()
    with Ledger.open(small, run="b") as ledger:
        ledger.spend(LAPLACE, 5)
    entry = small.read_bytes()[len(before) :]
    truncated = tmp_path / "truncated.ledger"
    for length in range(1, len(entry)):
        truncated.write_bytes(before + entry[:length])
        ledger = Ledger.open(truncated, run="c")
        assert [count for _, count in ledger.events()] == [3, 6]
        boundary = entry.rfind(b"\n", 0, length) + 1
        assert bool(ledger.notices) == (length != boundary)
        ledger.spend(GAUSSIAN)
        assert counts(truncated) == [4, 6]
        if length != boundary:
            assert f"{length - boundary} bytes" in Ledger.read(truncated).notices[0]
    truncated.write_bytes(before + entry)  # whole, but the crash came before the seal: it counts
    assert counts(truncated) == [3, 11]


def test_garbage_after_the_committed_part_is_set_aside(small):
    small.write_bytes(small.read_bytes() + b"\0" * 5000)
    ledger = Ledger.open(small)
    assert "5000 bytes" in ledger.notices[0]
    ledger.spend(GAUSSIAN)
    assert counts(small) == [4, 6]


class Crash(BaseException):
    """The process ends here: nothing in the code may handle this as an ordinary error."""


@pytest.mark.parametrize("partial", [False, True])
def test_a_crash_before_any_system_call_keeps_what_was_acknowledged(small, tmp_path, monkeypatch, partial):
    calls = {name: getattr(os, name) for name in ("pwrite", "fsync", "ftruncate")}
    for fatal in range(20):
        path = tmp_path / "crash.ledger"
        shutil.copyfile(small, path)
        with path.open("ab") as tail:
            tail.write(b'{"kind":"spe')  # the entry also has a truncated one to clear away
        ledger = Ledger.open(path)
        seen = 0

        def interposed(name, fatal=fatal):
            def call(*arguments):
                nonlocal seen
                seen += 1
                if seen == fatal + 1:
                    if partial and name == "pwrite":
                        descriptor, data, position = arguments
                        calls["pwrite"](descriptor, data[: len(data) // 2], position)
                    raise Crash
                return calls[name](*arguments)

            return call

        for name in calls:
            monkeypatch.setattr(os, name, interposed(name))
        try:
            ledger.spend(LAPLACE, 2)
            acknowledged = 2
        except Crash:
            acknowledged = 0
        monkeypatch.undo()
        survivor = counts(path)
        assert survivor[0] == 3
        assert survivor[1] >= 6 + acknowledged
        assert ledger.events()[1][1] == survivor[1]  # the object itself recovers as well
        Ledger.open(path).spend(GAUSSIAN)
        assert counts(path) == [4, survivor[1]]
        if acknowledged:
            break
    assert fatal >= 4  # ftruncate, write, fsync, seal were each tried
    assert acknowledged


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_full_or_failing_disk_refuses_the_step_and_loses_nothing(small, monkeypatch, code, failing):
    before = small.read_bytes()
    ledger = Ledger.open(small)
    real_pwrite = os.pwrite

    def fail(descriptor, *arguments):
        if failing == "pwrite":  # as a full disk does: a part fits, then nothing
            data, position = arguments
            if len(data) > 10:
                return real_pwrite(descriptor, data[: len(data) - 10], position)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match=r"cannot be written.*refused") as caught:
        ledger.spend(GAUSSIAN)
    assert caught.value.errno == code
    monkeypatch.undo()
    assert small.read_bytes() == before
    ledger.spend(GAUSSIAN)  # once there is room again the same object goes on
    assert counts(small) == [4, 6]


def test_the_limit_on_file_sizes_is_met_like_a_full_disk(small):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ledger = Ledger.open(small)
    step = ledger.step_reserver(LAPLACE, reserve=4)
    step()
    before = small.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        for _ in range(3):
            step()  # already on disk
        with pytest.raises(OSError, match="cannot be written"):
            step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert small.read_bytes() == before
    step()
    ledger.close()
    assert counts(small) == [3, 11]


def test_a_full_disk_at_the_making_of_a_ledger_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="No space"):
        Ledger.open(tmp_path / "new.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_is_made_once_even_if_two_make_it_at_the_same_time(tmp_path, monkeypatch):
    path = tmp_path / "new.ledger"
    real_link = os.link

    def overtaken(draft, target):
        monkeypatch.undo()
        with Ledger.open(path, run="faster") as faster:
            faster.spend(GAUSSIAN, 7)
        real_link(draft, target)

    monkeypatch.setattr(os, "link", overtaken)
    with Ledger.open(path, run="slower") as slower:
        slower.spend(GAUSSIAN)
    assert counts(path) == [8]
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_ledger_is_durable_with_its_folder(tmp_path, monkeypatch):
    synced = []
    real_fsync = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    LedgerFile.create(tmp_path / "new.ledger", {"unit": "example"})
    assert synced[-1] == str(tmp_path)
    assert any("new.ledger" in name for name in synced[:-1])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent is not a folder"):
        Ledger.open(tmp_path / "absent" / "new.ledger")
    with pytest.raises(FileNotFoundError):
        Ledger.read(tmp_path / "none.ledger")


def test_a_lock_that_is_never_released_is_a_clear_error(small, monkeypatch):
    monkeypatch.setattr(ledger_file, "LOCK_SECONDS", 0.1)
    ledger = Ledger.open(small)
    with small.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_SH)
        assert counts(small) == [3, 6]  # readers do not exclude each other
        with pytest.raises(LedgerBusy, match="another process has been writing"):
            ledger.spend(GAUSSIAN)
    ledger.spend(GAUSSIAN)
    assert counts(small) == [4, 6]


def test_a_file_replaced_under_a_writer_is_noticed(small, tmp_path):
    copy = tmp_path / "copy"
    shutil.copyfile(small, copy)
    ledger = Ledger.open(small)
    ledger.spend(GAUSSIAN)
    os.replace(copy, small)
    with pytest.raises(LedgerDamaged, match="replaced"):
        ledger.spend(GAUSSIAN)


def test_a_file_cut_under_a_writer_is_noticed(small):
    ledger = Ledger.open(small)
    ledger.spend(GAUSSIAN)
    with small.open("r+b") as file:
        file.truncate(small.stat().st_size - 90)
    with pytest.raises(LedgerDamaged, match="cut off"):
        ledger.spend(GAUSSIAN)
