"""Reading texts: what is there is read as it is, what is missing is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from sparsedp.data.sentences import Sentences, read_lines, read_tsv

GOOD = 'sentence\tlabel\na "quoted" film\t1\nno\u2028break\t0\r\n'


def write(folder: Path, text: str) -> Path:
    (folder / "train.tsv").write_text(text, newline="")
    return folder / "train.tsv"


def test_single_sentences_are_read_without_quoting(tmp_path: Path) -> None:
    found = read_tsv(write(tmp_path, GOOD))
    assert found == Sentences(['a "quoted" film', "no\u2028break"], None, ["1", "0"])


def test_pairs_by_the_names_of_their_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "id\tquestion\tanswer\tgold\n7\twho\tme\tyes\n")
    found = read_tsv(path, text="question", pair="answer", label="gold")
    assert found == Sentences(["who"], ["me"], ["yes"])
    assert read_tsv(path, text="question", label=None).labels is None


def test_a_column_that_files_name_differently(tmp_path: Path) -> None:
    names = ["sentence", "content"]
    assert read_tsv(write(tmp_path, GOOD), text=names) == read_tsv(write(tmp_path, GOOD))
    path = write(tmp_path, "label\tcontent\n1\tfine\n")
    assert read_tsv(path, text=names) == Sentences(["fine"], None, ["1"])
    with pytest.raises(
        ValueError, match=r"text: .* has no column 'a' or 'b', only 'label', 'content'; .* all names"
    ):
        read_tsv(path, text=["a", "b"])


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\tcontent\tsentence\tlabel\none\ttwo\tthree\t1\n")
    with pytest.raises(ValueError, match=r"text: .* has 2 columns 'sentence'; name one"):
        read_tsv(path)
    with pytest.raises(ValueError, match=r"text: .* has 3 columns 'content' or 'sentence'"):
        read_tsv(path, text=["content", "sentence"])


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    assert read_tsv(write(tmp_path, "\ufeff" + GOOD)) == read_tsv(write(tmp_path, GOOD))


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_damaged_compressed_file_is_refused(kept: float, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv.zst"
    whole = zstandard.compress((GOOD + "film\t1\n" * 50).encode())
    path.write_bytes(whole + whole[: int(kept * len(whole))])
    with pytest.raises(ValueError, match=r"train\.tsv\.zst: is not a whole .zst file .it ends too early"):
        read_tsv(path)
    path.write_bytes(b"no zstandard frame")
    with pytest.raises(ValueError, match=r"train\.tsv\.zst: is not a whole .zst file"):
        read_tsv(path)


def test_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv.zst"
    frames = [zstandard.compress(part.encode()) for part in (GOOD[:20], GOOD[20:])]
    path.write_bytes(b"".join(frames))
    assert read_tsv(path) == read_tsv(write(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with a header"),
        ("sentence\tlabel\n", "no examples"),
        ("sentence\tlabel\nfine\t\n", "line 2: its label .* is empty"),
        ("sentence\tlabel\n \t1\n", "line 2: its text .* is empty"),
        ("sentence\tlabel\nfine\n", "line 2: has 1 columns, the header 2"),
        ("sentence\tlabel\nfine\t1\textra\n", "line 2: has 3 columns"),
        ("text\tlabel\nfine\t1\n", "no column 'sentence', only 'text', 'label'"),
        ("sentence\nfine\n", "no column 'label'.*label=None"),
    ],
)
def test_what_is_missing_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        read_tsv(write(tmp_path, text))


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        read_lines(tmp_path / "latin.txt")


def test_plain_text_has_one_example_a_line(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path, "one\n\ntwo words\n")) == Sentences(["one", "two words"])
    with pytest.raises(ValueError, match="no text"):
        read_lines(write(tmp_path, "\n\n"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([],), "texts: there are none"),
        ((["a", " "],), "texts: number 1 is empty"),
        ((["a"], [""]), "pairs: number 0 is empty"),
        ((["a"], ["b", "c"]), "pairs: there are 2 for 1 texts"),
        ((["a"], None, []), "labels: there are 0 for 1 texts"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: tuple[list[str], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sentences(*columns)
