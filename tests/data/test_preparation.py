import os
import resource
import signal
import subprocess
import sys
import textwrap
import time

import polars as pl
import pytest

from sparsedp.data import ClickData, Schema, prepare, write_criteo_days
from sparsedp.data.criteo import CATEGORIES, Criteo
from sparsedp.data.hashing import buckets, hash_strings
from sparsedp.data.preparation import in_order

SMALL = 64 * 1024

SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from sparsedp.data.preparation import prepare
    from sparsedp.data.rules import HashRule
    from sparsedp.core.criteo import VOCABULARY_SIZES
    from sparsedp.data.criteo import CATEGORIES, Criteo
    rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES)}
    prepare(Criteo((Path(sys.argv[1]),), None, block_bytes=int(sys.argv[3])), sys.argv[2], rules)
    """
)


def start(file, out, **options):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(file), str(out), str(SMALL)], **options)


def reader(file):
    return Criteo((file,), None, block_bytes=SMALL)


def test_columns_rows_and_hashes_of_a_prepared_file(criteo_file, criteo_rules, tmp_path):
    schema = prepare(reader(criteo_file), tmp_path, criteo_rules)
    assert (schema.rows, schema.malformed) == (4000, 0)
    assert len(schema.parts) > 5
    frame = pl.concat([pl.read_parquet(tmp_path / part.file) for part in schema.parts])
    assert frame.columns == ["label", *schema.numeric, *CATEGORIES, "row"]
    assert frame["row"].to_list() == list(range(4000))
    raw = pl.read_csv(criteo_file, separator="\t", has_header=False, infer_schema=False)
    expected = buckets(hash_strings(raw.to_series(16)), criteo_rules["C3"].rows)
    assert frame["C3"].to_list() == expected.tolist()
    assert frame["label"].cast(pl.Int8).cast(pl.String).to_list() == raw.to_series(0).to_list()


def test_preparing_again_changes_nothing(criteo_file, criteo_rules, tmp_path, folder_bytes):
    first = prepare(reader(criteo_file), tmp_path, criteo_rules)
    before = folder_bytes(tmp_path)
    assert prepare(reader(criteo_file), tmp_path, criteo_rules) == first
    assert folder_bytes(tmp_path) == before


def test_a_killed_preparation_goes_on_and_gives_the_same_bytes(
    criteo_file, criteo_rules, tmp_path, folder_bytes
):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prepare(reader(criteo_file), whole, criteo_rules)
    total = len(Schema.read(whole).parts)
    kills = 0
    for wanted in (2, total // 2):
        process = start(criteo_file, killed)
        deadline = time.monotonic() + 60
        while process.poll() is None and len(list(killed.glob("part-*.parquet"))) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += process.returncode == -signal.SIGKILL
    assert kills, "no attempt was killed in time to test anything"
    prepare(reader(criteo_file), killed, criteo_rules)
    assert folder_bytes(killed) == folder_bytes(whole)


def test_a_disk_that_fills_up_is_an_error_that_can_be_taken_up_again(
    criteo_file, criteo_rules, tmp_path, folder_bytes
):
    """A limit on the size of files stands for the full disk: the kernel refuses the write half-way."""
    whole, full = tmp_path / "whole", tmp_path / "full"
    prepare(reader(criteo_file), whole, criteo_rules)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))

    process = start(criteo_file, full, preexec_fn=limit, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "no space left in" in said
    prepare(reader(criteo_file), full, criteo_rules)
    assert folder_bytes(full) == folder_bytes(whole)


def test_malformed_lines_are_counted_with_file_and_line(criteo_file, criteo_rules, tmp_path):
    lines = criteo_file.read_text().splitlines(keepends=True)
    lines[1234] = "what\n"
    lines[3000] = lines[3000].replace("\t", " ", 1)
    spoiled = tmp_path / "spoiled.txt"
    spoiled.write_text("".join(lines))
    schema = prepare(reader(spoiled), tmp_path / "out", criteo_rules)
    assert (schema.rows, schema.malformed) == (3998, 2)
    assert [example for part in schema.parts for example in part.examples] == [
        (1235, "1 columns instead of 40"),
        (3001, "39 columns instead of 40"),
    ]
    time_of_rows = ClickData.open(tmp_path / "out").time
    assert 1234 not in time_of_rows
    assert 1235 in time_of_rows
    with pytest.raises(
        ValueError, match=r"^malformed line in spoiled\.txt, line 1235: 1 columns instead of 40"
    ):
        prepare(reader(spoiled), tmp_path / "strict", criteo_rules, strict=True)


def test_strict_also_judges_what_an_earlier_run_let_pass(criteo_file, criteo_rules, tmp_path):
    spoiled = tmp_path / "spoiled.txt"
    spoiled.write_text("what\n" + criteo_file.read_text())
    spoiled_reader = reader(spoiled)

    class Stops(Exception):
        pass

    def stop(done):
        raise Stops

    with pytest.raises(Stops):
        prepare(spoiled_reader, tmp_path / "out", criteo_rules, progress=stop)
    with pytest.raises(ValueError, match=r"line 1: 1 columns"):
        prepare(spoiled_reader, tmp_path / "out", criteo_rules, strict=True)


def test_a_file_of_another_format_is_refused(criteo_rules, tmp_path):
    path = tmp_path / "test.txt"
    path.write_text("a,b,c\n" * 100)
    with pytest.raises(
        ValueError, match=r"^none of the first 100 lines can be read; test\.txt, line 1: 1 columns"
    ):
        prepare(reader(path), tmp_path / "out", criteo_rules)


def test_an_empty_file_has_no_rows(criteo_rules, tmp_path):
    path = tmp_path / "empty.txt"
    path.touch()
    with pytest.raises(ValueError, match=r"^files: no rows in empty\.txt"):
        prepare(reader(path), tmp_path / "out", criteo_rules)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_day_files_of_every_packing_prepare_alike(suffix, criteo_rules, tmp_path):
    files = write_criteo_days(tmp_path, 900, 3, suffix=suffix)
    prepare(Criteo.of(files[::-1]), tmp_path / "out", criteo_rules)
    data = ClickData.open(tmp_path / "out")
    assert data.time.tolist() == [0] * 300 + [1] * 300 + [2] * 300
    assert data.schema.time == "day"


def test_progress_reaches_the_size_of_the_files(criteo_file, criteo_rules, tmp_path):
    seen = []
    prepare(reader(criteo_file), tmp_path, criteo_rules, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == os.path.getsize(criteo_file)


def test_results_come_in_order_and_few_items_are_ahead():
    ahead, done = 0, 0

    def items():
        nonlocal ahead
        for number in range(50):
            ahead = max(ahead, number - done)
            yield number

    def work(number):
        time.sleep(0.001 * (number % 3))
        return number

    for number in in_order(work, items()):
        assert number == done
        done += 1
    assert done == 50
    assert ahead <= (os.cpu_count() or 1) + 2
