import gzip
import tempfile
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.blocks import first_line, read_parquet, read_text, source_of
from sparsedp.data.quotes import Quotes
from sparsedp.data.schema import SourcePosition

texts = st.lists(st.text(alphabet="ab\t0", max_size=12), max_size=30).map(
    lambda lines: "\n".join(lines).encode()
)


def blocks_of(*contents, start=None, **options):
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, content in enumerate(contents):
            files.append(Path(folder) / f"file-{number}")
            files[-1].write_bytes(content)
        return list(read_text(files, start or SourcePosition(), **options))


@settings(deadline=None, max_examples=50)
@given(texts, texts, st.integers(1, 40))
def test_blocks_are_the_text_in_whole_lines_and_restart_anywhere(first, second, size):
    blocks = blocks_of(first, second, size=size)
    for source, text in enumerate((first, second)):
        assert b"".join(block.text for block in blocks if block.start.source == source) == text
    for block in blocks:
        assert block.text.endswith(b"\n") or (first, second)[block.start.source].endswith(block.text)
        assert block.lines == block.text.count(b"\n") + (not block.text.endswith(b"\n"))
    for number, block in enumerate(blocks):
        assert blocks_of(first, second, size=size, start=block.start) == blocks[number:]


def test_lines_are_counted_within_a_file_and_before_it():
    blocks = blocks_of(b"a\nb\nc\n", b"d\ne", size=4)
    places = [(b.start.source, b.start.line, b.start.earlier_lines) for b in blocks]
    assert places == [(0, 0, 0), (0, 2, 0), (1, 0, 3), (1, 1, 3)]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_text_is_recognised_by_its_content(pack):
    text = b"".join(b"line %d\n" % n for n in range(3000))
    # Two members one after the other, as `cat a.gz b.gz` makes them.
    packed = pack(text[:10_000]) + pack(text[10_000:])
    plain = blocks_of(text, size=1000)
    found = blocks_of(packed, size=1000)
    assert [(b.start, b.end, b.text) for b in found] == [(b.start, b.end, b.text) for b in plain]
    assert [b.text for b in blocks_of(packed, size=1000, start=plain[3].start)] == [b.text for b in plain[3:]]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b[: len(b) // 2], lambda b: b + b"and more"])
def test_damaged_packed_text_names_the_last_good_line(pack, damage):
    text = b"".join(b"line %d\n" % (n * 7919 % 100_003) for n in range(30_000))
    with pytest.raises(ValueError, match=r"file-0: damaged compressed data after line \d+"):
        blocks_of(damage(pack(text)), size=1000)


def test_a_break_between_quotes_does_not_end_a_line():
    text = b'h\n1,"two\nlines"\n2,x\n"3 ""\n",y\n'
    for size in range(1, 40):
        blocks = blocks_of(text, size=size, quotes=Quotes(","))
        assert b"".join(block.text for block in blocks) == text
        assert all(block.text.count(b'"') % 2 == 0 for block in blocks)
    assert blocks_of(text, size=3, quotes=Quotes(","), header=True)[0].text == b'1,"two\nlines"\n'


def test_a_header_is_passed_over_in_every_file():
    blocks = blocks_of(b"h\na\n", b"h\nb\n", header=True)
    assert [(block.text, block.start.line) for block in blocks] == [(b"a\n", 1), (b"b\n", 1)]


def test_text_without_lines_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr("sparsedp.data.blocks.MAX_LINE_BYTES", 100)
    with pytest.raises(ValueError, match=r"no end of line after line 1"):
        blocks_of(b"a\n" + b"x" * 1000, size=10)


def test_parquet_comes_in_rows_and_restarts(tmp_path):
    for number in range(2):
        pl.DataFrame({"x": range(number * 100, number * 100 + 100)}).write_parquet(
            tmp_path / f"{number}.parquet"
        )
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    blocks = list(read_parquet(files, SourcePosition(), rows=30))
    assert pl.concat([block.content for block in blocks])["x"].to_list() == list(range(200))
    assert blocks[5].start == SourcePosition(1, 30, 30, 100)
    again = list(read_parquet(files, blocks[5].start, rows=30))
    assert [block.content["x"].to_list() for block in again] == [b.content["x"].to_list() for b in blocks[5:]]
    with pytest.raises(TypeError):
        _ = blocks[0].text


def test_a_source_is_known_by_size_and_ends(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 200_000)
    before = source_of(path)
    path.write_bytes(b"x" * 199_999 + b"y")
    assert source_of(path) != before
    assert first_line(path) == path.read_bytes()
