"""Zip archives: members read in place; paths, bombs, passwords and damage refused in one line."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from sparsedp.data import archives
from sparsedp.data.archives import ZipMember, open_archives, refuse_repeats, size_of
from sparsedp.data.blocks import first_line, read_text, source_of
from sparsedp.data.schema import SourcePosition

TEXT = b"a,b\n" + b"1,2\n" * 5000


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_tables_are_found_and_the_rest_is_passed_over(tmp_path: Path) -> None:
    names = ("b.csv", "a/a.tsv", "README.txt", "__MACOSX/b.csv", "deep/c.tab")
    path = packed(tmp_path / "x.zip", dict.fromkeys(names, TEXT))
    opened = open_archives([path])
    assert opened == tuple(ZipMember(path, name) for name in ("a/a.tsv", "b.csv", "deep/c.tab"))
    assert opened[0].name == "x.zip/a/a.tsv"
    assert (opened[0].suffix, opened[0].suffixes, size_of(opened[0])) == (".tsv", [".tsv"], len(TEXT))
    plain = tmp_path / "plain.csv"
    plain.write_bytes(TEXT)
    assert open_archives([plain]) == (plain,)
    assert open_archives([path], "deep/*") == (ZipMember(path, "deep/c.tab"),)


def test_a_member_reads_as_its_file_does_also_from_the_middle(tmp_path: Path) -> None:
    member = ZipMember(packed(tmp_path / "x.zip", {"t.csv": TEXT}), "t.csv")
    plain = tmp_path / "t.csv"
    plain.write_bytes(TEXT)
    assert first_line(member) == first_line(plain) == b"a,b\n"
    ways = [list(read_text([file], SourcePosition(), header=True, size=1000)) for file in (member, plain)]
    assert [block.content for block in ways[0]] == [block.content for block in ways[1]]
    later = list(read_text([member], ways[0][3].end, header=True, size=1000))
    assert [block.content for block in later] == [block.content for block in ways[0][4:]]


def test_an_exchanged_member_is_another_source(tmp_path: Path) -> None:
    one = source_of(ZipMember(packed(tmp_path / "1.zip", {"t.csv": TEXT}), "t.csv"))
    middle = TEXT[:9000] + b"3" + TEXT[9001:]
    two = source_of(ZipMember(packed(tmp_path / "2.zip", {"t.csv": middle}), "t.csv"))
    assert one.size == two.size
    assert one.sample_sha256 != two.sample_sha256


@pytest.mark.parametrize("name", ["../t.csv", "/etc/t.csv", "a/../../t.csv", "..\\t.csv"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {"good.csv": TEXT, name: TEXT})
    with pytest.raises(ValueError, match=r"^files: .* which leads out of it"):
        open_archives([path])


@pytest.mark.parametrize(
    ("two", "message"),
    [
        (b"", "has a member without a name"),
        (b"one.csv", "has two members named 'one.csv', of which one would be read twice"),
    ],
)
def test_members_that_no_name_tells_apart_are_refused(two: bytes, message: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {"one.csv": TEXT, "two.csv": TEXT})
    data = path.read_bytes()
    at = data.rindex(b"two.csv")  # in the directory; the length of the name stands 18 bytes before it
    head = data[: at - 18] + len(two).to_bytes(2, "little") + data[at - 16 : at]
    size = int.from_bytes(data[-10:-6], "little") + len(two) - len(b"two.csv")
    path.write_bytes(head + two + data[at + 7 : -10] + size.to_bytes(4, "little") + data[-6:])
    with pytest.raises(ValueError, match=rf"^files: .* {message}"):
        open_archives([path])


def test_a_bomb_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SMALL_BYTES", 2**20)
    path = packed(tmp_path / "x.zip", {"t.csv": bytes(2**21)})
    with pytest.raises(ValueError, match="as no table does: refused"):
        open_archives([path])


def test_encrypted_empty_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {"t.csv": TEXT})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + 8
    data[at] |= 1
    (tmp_path / "locked.zip").write_bytes(data)
    with pytest.raises(ValueError, match="is encrypted: unpack it first"):
        open_archives([tmp_path / "locked.zip"])
    with pytest.raises(ValueError, match="no member that matches"):
        open_archives([packed(tmp_path / "words.zip", {"README": TEXT})])
    (tmp_path / "cut.zip").write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="damaged zip archive"):
        open_archives([tmp_path / "cut.zip"])
    spoiled = bytearray(path.read_bytes())
    spoiled[60] ^= 0xFF
    (tmp_path / "spoiled.zip").write_bytes(spoiled)
    with pytest.raises(ValueError, match="damaged compressed data"):
        list(read_text([ZipMember(tmp_path / "spoiled.zip", "t.csv")], SourcePosition()))


def test_a_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y\n1\n")
    (tmp_path / "same.csv").symlink_to(tmp_path / "a.csv")
    packed(tmp_path / "b.zip", {"t.csv": TEXT, "UPPER.CSV": TEXT})
    members = open_archives([tmp_path / "b.zip"])
    assert members == tuple(ZipMember(tmp_path / "b.zip", name) for name in ("UPPER.CSV", "t.csv"))
    refuse_repeats([tmp_path / "a.csv", *members])
    os.link(tmp_path / "a.csv", tmp_path / "linked.csv")
    os.link(tmp_path / "b.zip", tmp_path / "linked.zip")
    for files in (
        [tmp_path / "a.csv", tmp_path / "same.csv"],
        [tmp_path / "a.csv", tmp_path / "linked.csv"],
        [*members, members[0]],
        [*members, *open_archives([tmp_path / "linked.zip"])],
    ):
        with pytest.raises(ValueError, match=r"is given twice, so that each of its rows would be"):
            refuse_repeats(files)
